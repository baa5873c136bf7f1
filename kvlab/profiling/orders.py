"""The same calls on two policies, call by call: who is where in the order, and where their next victims part.

kvlab's own; it mirrors no vLLM file.

Notes:
* Both policies hear the same calls through a manager, so their blocks and counts are equal at every step. Only the
  order may differ.
* `shortest_disagreement` tries every legal sequence, shorter ones first: nothing shorter exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from kvlab.base import OffloadingStateError, OffloadKey, ReqContext, make_offload_key
from kvlab.checks import unknown_name
from kvlab.manager import CPUOffloadingManager

Verb = Literal["prepare_store", "complete_store", "prepare_load", "complete_load", "touch"]
VERBS: tuple[Verb, ...] = ("prepare_store", "complete_store", "prepare_load", "complete_load", "touch")
_CONTEXT = ReqContext("order")


@dataclass(frozen=True, slots=True)
class Call:
    """One call with its keys, given as numbers: `Call("touch", (1, 2))`."""

    verb: Verb
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise unknown_name("call", self.verb, VERBS)

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(map(str, self.numbers))})"


@dataclass(frozen=True, slots=True)
class OrderStep:
    """After one call: the blocks in the policy's order, coldest first; those outside it; each one's `ref_cnt`; and who
    would go if room for one block were needed now (None: nobody can)."""

    call: Call
    order: tuple[int, ...]
    outside: tuple[int, ...]
    ref_cnt: dict[int, int]
    next_victim: int | None


@dataclass(frozen=True, slots=True)
class OrderComparison:
    """`steps[policy]` has one entry a call; `victims[policy]` is the order in which the idle blocks would go at the
    end."""

    calls: tuple[Call, ...]
    steps: dict[str, tuple[OrderStep, ...]]
    victims: dict[str, tuple[int, ...]]

    @property
    def agree(self) -> bool:
        return len(set(self.victims.values())) == 1

    def __repr__(self) -> str:
        rows = [f"{number}. {call}" for number, call in enumerate(self.calls, 1)]
        rows += [f"{policy} would evict {list(victims)}" for policy, victims in self.victims.items()]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        calls = "".join(f"<li><code>{call}</code></li>" for call in self.calls)
        rows = "".join(f"<tr><td>{policy}</td><td>{list(v)}</td></tr>" for policy, v in self.victims.items())
        return f"<ol>{calls}</ol><table><tr><th></th><th>would evict, in this order</th></tr>{rows}</table>"


def compare_orders(calls: Sequence[Call], policies: Sequence[str], *, num_blocks: int = 3) -> OrderComparison:
    """Make the calls on a fresh cache of `num_blocks` for each policy.

    ValueError for a call that is not legal there: loading what is not readable, completing what was not begun, storing
    what is resident or more than fits.
    """
    runs = {policy: _Run(policy, num_blocks) for policy in policies}
    steps = {policy: tuple(run.make(call) for call in calls) for policy, run in runs.items()}
    return OrderComparison(tuple(calls), steps, {policy: run.idle_order() for policy, run in runs.items()})


def shortest_disagreement(policies: Sequence[str], *, num_blocks: int = 2, most_calls: int = 6) -> OrderComparison:
    """The first legal sequence, by length, of one-key calls after which the policies would evict in different orders.

    LookupError if there is none of up to `most_calls` calls.
    """
    possible = [Call(verb, (number,)) for verb in VERBS for number in range(1, num_blocks + 1)]
    for length in range(1, most_calls + 1):
        for calls in _legal(possible, length, num_blocks):
            comparison = compare_orders(calls, policies, num_blocks=num_blocks)
            if not comparison.agree:
                return comparison
    raise LookupError(f"{' and '.join(policies)} agree after every sequence of up to {most_calls} calls")


def _legal(possible: Sequence[Call], length: int, num_blocks: int) -> Iterator[tuple[Call, ...]]:
    for calls in product(possible, repeat=length):
        ref_cnt: dict[int, int] = {}
        if all(_follow(ref_cnt, call) for call in calls):
            yield calls


def _follow(ref_cnt: dict[int, int], call: Call) -> bool:
    """Whether a one-key call is legal in this state, and if so the state after it."""
    (number,) = call.numbers
    count = ref_cnt.get(number)
    if call.verb == "prepare_store":
        ref_cnt[number] = -1
        return count is None
    if call.verb == "touch":
        return count is not None
    if call.verb == "complete_store":
        ref_cnt[number] = 0
        return count == -1
    ref_cnt[number] = (count or 0) + (1 if call.verb == "prepare_load" else -1)
    return count is not None and count >= (0 if call.verb == "prepare_load" else 1)


class _Run:
    def __init__(self, policy: str, num_blocks: int) -> None:
        self.manager = CPUOffloadingManager(num_blocks, policy)

    def make(self, call: Call) -> OrderStep:
        keys = [_key(number) for number in call.numbers]
        self._check(call, keys)
        try:
            getattr(self.manager, call.verb)(keys, _CONTEXT)
        except OffloadingStateError as error:
            raise ValueError(f"{call}: {error}") from None
        order = tuple(map(_number, self.manager.cache_policy.keys_cold_to_hot()))
        counts = {_number(state.key): state.ref_cnt for state in self.manager.states()}
        idle = self.idle_order()
        return OrderStep(call, order, tuple(n for n in counts if n not in order), counts, idle[0] if idle else None)

    def idle_order(self) -> tuple[int, ...]:
        policy = self.manager.cache_policy
        blocks = ((key, policy.get(key)) for key in policy.keys_cold_to_hot())
        return tuple(_number(key) for key, block in blocks if block is not None and block.ref_cnt == 0)

    def _check(self, call: Call, keys: Sequence[OffloadKey]) -> None:
        get = self.manager.cache_policy.get
        resident = [number for number, key in zip(call.numbers, keys, strict=True) if get(key) is not None]
        if call.verb == "prepare_store" and (resident or len(keys) > self.manager.num_free_blocks):
            raise ValueError(f"{call}: of {len(keys)} keys {resident} are resident; {self.manager.num_free_blocks} fit")
        if call.verb == "complete_store":
            not_begun = [number for number, key in zip(call.numbers, keys, strict=True) if not _is_pending(get(key))]
            if not_begun:
                raise ValueError(f"{call}: {not_begun} are not being written")


def _is_pending(block: object) -> bool:
    return block is not None and getattr(block, "ref_cnt", 0) < 0


def _key(number: int) -> OffloadKey:
    return make_offload_key(str(number).encode(), 0)


def _number(key: OffloadKey) -> int:
    return int(key[:-4])
