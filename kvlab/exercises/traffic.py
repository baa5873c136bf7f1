"""Small traffic for the exercises' cases: keys from numbers, managers, and a policy driven the way a manager does.

The words are vLLM's own test idiom (`tests/v1/kv_offload/cpu/test_manager.py`): four blocks, `to_keys([1, 2])`.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from kvlab.base import OffloadKey, ReqContext, make_offload_key
from kvlab.block_status import BlockStatus, SlotsBlockStatus
from kvlab.manager import CPUOffloadingManager
from kvlab.policies import CachePolicy

CTX = ReqContext("exercise")


def to_key(number: int) -> OffloadKey:
    return make_offload_key(str(number).encode(), 0)


def to_keys(numbers: Iterable[int]) -> list[OffloadKey]:
    return [to_key(number) for number in numbers]


def to_number(key: OffloadKey) -> int:
    return int(key[:-4])


def to_numbers(keys: Iterable[OffloadKey]) -> list[int]:
    return [to_number(key) for key in keys]


def in_numbers(message: str, numbers: Iterable[int]) -> str:
    """A manager's message with the numbers that a learner wrote in place of the keys made of them."""
    for number in numbers:
        message = message.replace(repr(to_key(number)), str(number))
    return message


def store(manager: CPUOffloadingManager, *numbers: int) -> list[int] | None:
    """Store and complete; the victims, or None if refused."""
    output = manager.prepare_store(to_keys(numbers), CTX)
    if output is None:
        return None
    manager.complete_store(output.keys_to_store, CTX)
    return to_numbers(output.evicted_keys)


def add_idle(policy: CachePolicy, *numbers: int) -> None:
    """Insert each as being written, then finish the write."""
    for number in numbers:
        add_pending(policy, number).ref_cnt = 0
        policy.mark_evictable(to_key(number))


def add_pending(policy: CachePolicy, number: int) -> BlockStatus:
    block = SlotsBlockStatus(number)
    policy.insert(to_key(number), block)
    return block


def pin(policy: CachePolicy, *numbers: int) -> None:
    for number in numbers:
        block = policy.get(to_key(number))
        assert block is not None, f"block {number} is gone"
        if block.ref_cnt == 0:
            policy.mark_non_evictable(to_key(number))
        block.ref_cnt += 1


def unpin(policy: CachePolicy, *numbers: int) -> None:
    for number in numbers:
        block = policy.get(to_key(number))
        assert block is not None, f"block {number} is gone"
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            policy.mark_evictable(to_key(number))


def evict(policy: CachePolicy, n: int, *protected: int) -> list[int] | None:
    """Victims by number, or None. Anything else that the policy gives comes through as it is."""
    victims = policy.evict(n, set(to_keys(protected)))
    return None if victims is None else [to_number(key) for key, _ in victims]


class TwinManagers:
    """The same random traffic on two managers; `step` gives what each answered, to be compared by the caller."""

    def __init__(self, managers: tuple[CPUOffloadingManager, CPUOffloadingManager], num_keys: int, seed: int) -> None:
        self.managers = managers
        self._random = Random(seed)
        self._keys = num_keys
        self._writing: list[list[OffloadKey]] = []
        self._reading: list[list[OffloadKey]] = []

    def step(self) -> tuple[str, object, object]:
        """One random call on both: (the call in words, the first's answer, the second's)."""
        action = self._random.choice(("store", "store", "stored", "load", "loaded", "touch"))
        numbers = self._random.sample(range(self._keys), self._random.randint(1, 3))
        keys = to_keys(numbers)
        if action == "store":
            outputs = [manager.prepare_store(keys, CTX) for manager in self.managers]
            answers = [
                None if o is None else (to_numbers(o.keys_to_store), to_numbers(o.evicted_keys)) for o in outputs
            ]
            if outputs[1] is not None and outputs[1].keys_to_store:
                self._writing.append(outputs[1].keys_to_store)
            return f"prepare_store({numbers})", answers[0], answers[1]
        if action == "stored" and self._writing:
            keys = self._writing.pop(self._random.randrange(len(self._writing)))
            success = self._random.random() < 0.9
            for manager in self.managers:
                manager.complete_store(keys, CTX, success)
            return f"complete_store({to_numbers(keys)}, success={success})", None, None
        if action == "load":
            keys = [key for key in keys if self._is_ready(key)]
            if keys:
                self._reading.append(keys)
            for manager in self.managers:
                manager.prepare_load(keys, CTX)
            return f"prepare_load({to_numbers(keys)})", None, None
        if action == "loaded" and self._reading:
            keys = self._reading.pop(self._random.randrange(len(self._reading)))
            for manager in self.managers:
                manager.complete_load(keys, CTX)
            return f"complete_load({to_numbers(keys)})", None, None
        for manager in self.managers:
            manager.touch(keys, CTX)
        return f"touch({numbers})", None, None

    def _is_ready(self, key: OffloadKey) -> bool:
        block = self.managers[1].cache_policy.get(key)
        return block is not None and block.ref_cnt >= 0
