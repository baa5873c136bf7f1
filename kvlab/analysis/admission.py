"""Whether to store at all: hits, bytes to disk and promotions in vain, with and without an admission filter.

Requests of a trace go through a CPU tier above a disk that keeps everything, with vLLM's manager calls in the
connector's order. Whatever enters the CPU tier is written through to disk, so a filter in front of the CPU tier is what
spares the disk, and what it keeps out cannot be found there either.

Notes:
* `off`: every block is stored. `seen N times`: only blocks that N requests have asked for, as `store_threshold` does
  (vLLM refuses it above secondary tiers; so this is a question to the trace, not a configuration). `tiny_lfu`: the
  policy of that name, which lets newcomers in only if they are asked for as often as what would have to go.
* Order only: no time passes, every copy is done at once. What pins and waiting add is the engine's business.
* A prompt larger than the CPU tier cannot be promoted whole: after some rounds it is served with what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvlab.analysis.replay import block_ids
from kvlab.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from kvlab.checks import checked_int, require
from kvlab.reuse import ReuseTracker
from kvlab.tiering import CPUPrimaryTierOffloadingManager, ExampleTier, TieringOffloadingManager

if TYPE_CHECKING:
    import pandas as pd

#: Without a filter, and under the one that counts askers. `tiny_lfu` is this LRU with a filter.
POLICY = "logical_recency_lru"
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """One filter. `references` of `requests` and the hits among them, in blocks: found in the CPU tier at once, or only
    after a promotion. `blocks_written`, `bytes_written`: to disk. `kept_out`: blocks that were computed and not stored.
    `promoted_unused`: promoted and evicted before they were read."""

    admission: str
    requests: int
    references: int
    cpu_hits: int
    disk_hits: int
    kept_out: int
    blocks_written: int
    bytes_written: int
    promoted: int
    promoted_unused: int

    @property
    def hit_ratio(self) -> float:
        """Of all references, on either tier; 0.0 without references."""
        return (self.cpu_hits + self.disk_hits) / self.references if self.references else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hit_ratio": self.hit_ratio}


def admission_table(trace: Any, cpu_blocks: int, *, block_bytes: int = 1, seen: Sequence[int] = (2,)) -> AdmissionTable:
    """A row without a filter, one for each number of `seen`, one for `tiny_lfu`, on `trace` (as for `replay`).

    `cpu_blocks`: slots of the CPU tier, >= 1. `block_bytes`: bytes of a block, for the column of bytes. Raises
    ValueError for a number that cannot be, or a trace without block ids.
    """
    checked_int("cpu_blocks", cpu_blocks, 1)
    checked_int("block_bytes", block_bytes, 1)
    for times in seen:
        checked_int("seen", times, 2)
    prompts = [tuple(ids) for ids in block_ids(trace)]
    filters = [("off", POLICY, 0), *((f"seen {times} times", POLICY, times) for times in seen)]
    rows = [
        _Run(name, policy, times, cpu_blocks).over(prompts, block_bytes)
        for name, policy, times in (*filters, ("tiny_lfu", "tiny_lfu", 0))
    ]
    return AdmissionTable(tuple(rows), cpu_blocks, block_bytes)


@dataclass(frozen=True, slots=True)
class AdmissionTable:
    """`rows`, of one trace and one CPU tier of `cpu_blocks` slots of `block_bytes`. Prints as a table."""

    rows: tuple[AdmissionRow, ...]
    cpu_blocks: int
    block_bytes: int = 1

    def row(self, admission: str) -> AdmissionRow:
        """Raises KeyError."""
        return {row.admission: row for row in self.rows}[admission]

    def to_frame(self) -> pd.DataFrame:
        """A row a filter, the columns of `AdmissionRow` and hit_ratio. Needs pandas."""
        require("pandas", extra="lab")
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        from kvlab.results import Table

        to_disk = "bytes to disk" if self.block_bytes > 1 else "blocks to disk"
        columns = ("admission", "hits", "in CPU", "from disk", to_disk, "kept out", "promoted", "in vain")
        title = f"CPU tier of {self.cpu_blocks:,} blocks above a disk that keeps everything; counts of blocks"
        return str(Table(columns, [_cells(row) for row in self.rows], title=title))


def _cells(row: AdmissionRow) -> list[str]:
    counts = (row.cpu_hits, row.disk_hits, row.bytes_written, row.kept_out, row.promoted, row.promoted_unused)
    return [row.admission, f"{row.hit_ratio:.1%}", *(f"{count:,}" for count in counts)]


class _Run:
    def __init__(self, name: str, policy: str, times: int, cpu_blocks: int) -> None:
        self.name = name
        self.tier = ExampleTier()
        self.manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(cpu_blocks, policy), (self.tier,))
        self.askers = ReuseTracker(times, 1 << 40) if times else None
        self.cpu_hits = self.disk_hits = self.kept_out = 0

    def over(self, prompts: Sequence[Sequence[int]], block_bytes: int) -> AdmissionRow:
        for number, ids in enumerate(prompts):
            self._serve([make_offload_key(str(block).encode(), 0) for block in ids], ReqContext(str(number)))
        stats, written = self.manager.stats, len(self.tier.blocks)
        return AdmissionRow(
            self.name, len(prompts), sum(map(len, prompts)), self.cpu_hits, self.disk_hits, self.kept_out, written,
            written * block_bytes, stats.promotions, self.manager.promotions_evicted_unused,
        )  # fmt: skip

    def _serve(self, keys: list[OffloadKey], request: ReqContext) -> None:
        manager = self.manager
        manager.on_new_request(request)
        in_cpu, rounds = self._ready(keys), 0
        while self._ask(keys, request) and rounds < _ROUNDS:
            manager.on_schedule_end()
            rounds += 1
        # Counted anew: the promotion of a block far back may have pushed out one that was there.
        ready = self._ready(keys)
        manager.touch(keys, request)
        hit = keys[:ready]
        manager.prepare_load(hit, request)
        manager.complete_load(hit, request)
        self.cpu_hits += min(in_cpu, ready)
        self.disk_hits += max(0, ready - in_cpu)
        self._store(keys[ready:], keys, request)
        manager.on_request_finished(request)
        for _ in range(2):
            manager.on_schedule_end()

    def _ask(self, keys: Iterable[OffloadKey], request: ReqContext) -> bool:
        """Look up to the first miss, as the connector does; whether a block on the way is not there yet."""
        pending = False
        for key in keys:
            answer = self.manager.lookup(key, request)
            if answer is LookupResult.MISS:
                break
            pending = pending or answer is not LookupResult.HIT
        return pending

    def _ready(self, keys: Iterable[OffloadKey]) -> int:
        """Blocks at the front that can be read now; asks nobody, so nothing is promoted."""
        get, ready = self.manager.primary_tier.cache_policy.get, 0
        for key in keys:
            block = get(key)
            if block is None or not block.is_ready:
                break
            ready += 1
        return ready

    def _store(self, computed: list[OffloadKey], asked: Iterable[OffloadKey], request: ReqContext) -> None:
        wanted = computed
        if self.askers is not None:
            for key in asked:
                self.askers.looked_up(key)
            wanted = self.askers.seen_often(computed)
        output = self.manager.prepare_store(wanted, request) if wanted else None
        if output is not None:
            self.manager.complete_store(output.keys_to_store, request)
        self.kept_out += len(computed) - (len(wanted) if output is not None else 0)
