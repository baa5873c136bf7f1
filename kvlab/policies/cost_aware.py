"""What is dearest to compute again and was used most often stays: hits weighed against the cost of a miss.

Not in vLLM; asked for there and in SGLang. GreedyDual with frequency (Cherkasova 1998): a block is worth `inflation +
uses x cost`; the lowest goes, and its worth becomes the inflation of all that come later, so that old fame fades. The
cost of a block is that of a token of its prompt: 1 plus attention, which a long prompt pays on all that stands before
(`PROMPT_TOKENS` / `attention_tokens` / 2 on average). Within one prompt the furthest back goes first.

Blocks have one size, so a token saved is a token saved: what decides is the number of uses, and attention between
prompts of unequal length. Wins when few prompts are asked often in a stream that never comes again: 202 of 476 blocks
found where LRU finds 52 (`sessions_in_a_flood` of `data/policy_traces`). Loses among conversations: what an old one had
asked for often outranks the newest turn of those that live: 29,686 of 45,993 where LRU finds 31,015
(`data/traces/conversations.jsonl.gz`, 1,500 blocks, order `prefix`).

Notes:
* `heap_lru` with another rank. Uses count once per request, however many calls it takes.
* A block whose position or prompt nobody said costs 1: then it is LFU that forgets, ties by recency.
"""

from collections.abc import Collection, Iterable

from kvlab.base import OffloadKey, ReqContext
from kvlab.block_status import BlockStatus
from kvlab.checks import checked_int
from kvlab.policies.context import position_of, prompt_tokens_of
from kvlab.policies.heap_lru import HeapLRUCachePolicy
from kvlab.policies.registry import register_policy

# Worth, position and use in one whole number: more tokens than a prompt has, more uses than there ever are.
_TOKENS, _USES = 1 << 32, 1 << 48
# Worth is counted in parts of the cost of a token without attention.
_PARTS = 1024


@register_policy("cost_aware")
class CostAwareCachePolicy(HeapLRUCachePolicy):
    """`worth` and `uses` of each resident block. `attention_tokens`: with so many tokens before it, a token's attention
    costs as much as all the rest of it."""

    def __init__(self, cache_capacity: int, *, attention_tokens: int = 32_768) -> None:
        super().__init__(cache_capacity)
        self.attention_tokens = checked_int("attention_tokens", attention_tokens, at_least=1)
        self.inflation = 0
        self.worth: dict[OffloadKey, int] = {}
        self.uses: dict[OffloadKey, int] = {}
        self._last_request: dict[OffloadKey, str] = {}
        self._of_prompt: dict[OffloadKey, tuple[int, int]] = {}
        self._last_victims_worth = 0

    def insert(self, key: OffloadKey, block: BlockStatus, req_context: ReqContext | None = None) -> None:
        self._note(key, req_context)
        super().insert(key, block)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        keys = list(keys)
        for key in keys:
            if key in self.blocks:
                self._note(key, req_context)
        super().touch(keys)

    def evict(self, n: int, protected: Collection[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]] | None:
        victims = super().evict(n, protected)
        if victims:
            self.inflation = max(self.inflation, self._last_victims_worth)
        return victims

    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self._last_victims_worth = self.worth.pop(key)
        for known in (self.uses, self._last_request, self._of_prompt):
            known.pop(key, None)

    def clear(self) -> None:
        super().clear()
        for known in (self.worth, self.uses, self._last_request, self._of_prompt):
            known.clear()
        self.inflation = 0

    def _note(self, key: OffloadKey, req_context: ReqContext | None) -> None:
        """One use more, unless this request has counted; the longest prompt the block was part of."""
        position, tokens = position_of(key, req_context) or 0, prompt_tokens_of(req_context) or 0
        _, longest = self._of_prompt.get(key, (0, 0))
        self._of_prompt[key] = position, max(longest, tokens)
        if req_context is None or self._last_request.get(key) != req_context.req_id:
            self.uses[key] = self.uses.get(key, 0) + 1
            cost = _PARTS + _PARTS * self._of_prompt[key][1] // (2 * self.attention_tokens)
            self.worth[key] = self.inflation + self.uses[key] * cost
            if req_context is not None:
                self._last_request[key] = req_context.req_id

    def _use(self, key: OffloadKey) -> None:
        super()._use(key)
        self.ranks[key] += (self.worth[key] * _TOKENS - self._of_prompt[key][0]) * _USES
