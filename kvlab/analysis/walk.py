"""One walk over a trace in time: what a GPU of a given rate computes, what goes to disk, how far the disk is behind.

The GPU serves requests in order of arrival, one after the other, at a given rate of computed tokens. What it has not
seen before is stored evenly over its prefill and handed to the disk, which writes at a given rate. What has been
handed over and is not written yet is the backlog: each of its blocks is pinned in the CPU tier.

Notes:
* Hits are looked for on a disk that keeps everything. A block that is there already is not written again.
* Left out: fixed seconds of a step, steps that are not full, scheduler seconds, a GPU pool too small for the requests.
  All of them slow an engine down, so a backlog of seconds comes earlier here: in kvlab's own engine with the pull
  request's workload at scale tiny and a slow disk, pins fill the CPU tier 1.4 times as late (1.7 times with scheduler
  costs, which weigh most at that scale).
* Left out, too: what lies in a step's own stores until their copies are done. It adds to a small backlog.
* A disk that is too slow would make vLLM refuse stores once the CPU tier is full. Here the backlog just grows on, so
  that its peak says how much would have been needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.analysis.kv_cost import KVCost
from kvlab.analysis.policies import make_replay_policy
from kvlab.analysis.replay import leading_run
from kvlab.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Backlog:
    """`times_s` from the first arrival, and the bytes not written yet right after each request's prefill.
    `full_s`: when it first reached the CPU tier's size; None: never."""

    times_s: Sequence[float]
    bytes: Sequence[float]
    full_s: float | None

    @property
    def peak_bytes(self) -> float:
        return max(self.bytes, default=0.0)

    @property
    def peak_s(self) -> float:
        """When it was highest first; 0.0 for an empty trace."""
        return self.times_s[self.bytes.index(self.peak_bytes)] if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class Walk:
    """Blocks are those of the trace. `near_hits`: in the GPU or CPU tier; `disk_hits`: on disk only. `load_bytes`: read
    from disk for them. `new_blocks`: written to disk. `whole_prompts`: requests of which every token hit. `span_s`:
    from the first arrival to the last arrival or the end of the GPU's work; `busy_s`: seconds of it that it works."""

    requests: int
    near_hits: int
    disk_hits: int
    load_bytes: float
    new_blocks: int
    whole_prompts: int
    span_s: float
    busy_s: float
    backlog: Backlog


def walk(
    requests: Sequence[TraceRequest], cost: KVCost, near_blocks: int, cpu_bytes: float, gpu_rate: float,
    disk_write: float,
) -> Walk:  # fmt: skip
    """`near_blocks`: LRU blocks (of the trace) that GPU and CPU reach together; `cpu_bytes`: the CPU tier, for the
    backlog. `gpu_rate` computed tokens/s, `disk_write` bytes/s."""
    near = make_replay_policy("lru", near_blocks) if near_blocks else None
    seen: set[int] = set()
    near_hits = disk_hits = whole = 0
    load_bytes = busy_s = gpu_free_s = 0.0
    start_s = requests[0].timestamp_s if requests else 0.0
    queue = _WriteQueue(disk_write, cpu_bytes)
    last_s = 0.0
    for request in requests:
        ids = request.hash_ids
        close = leading_run(near, ids) if near is not None else 0
        known = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        near_hits += close
        disk_hits += known - close
        load_bytes += cost.load_bytes((known - close) * cost.block_tokens)
        whole += bool(ids) and known * cost.block_tokens == request.input_tokens
        if near is not None:
            near.access(ids)
        before = len(seen)
        seen.update(ids)

        arrival_s = request.timestamp_s - start_s
        prefill_s = (request.input_tokens - known * cost.block_tokens) / gpu_rate
        decode_s = request.output_tokens / gpu_rate
        begin_s = max(gpu_free_s, arrival_s)
        gpu_free_s = begin_s + prefill_s + decode_s
        busy_s += prefill_s + decode_s
        last_s = max(last_s, arrival_s, gpu_free_s)
        queue.add(begin_s, prefill_s, (len(seen) - before) * cost.block_bytes)
    return Walk(
        len(requests), near_hits, disk_hits, load_bytes, len(seen), whole, last_s, busy_s,
        Backlog(queue.times_s, queue.bytes, queue.full_s),
    )  # fmt: skip


class _WriteQueue:
    """First in, first out, at a constant rate."""

    def __init__(self, bandwidth: float, limit: float) -> None:
        self.bandwidth, self.limit = bandwidth, limit
        self.times_s: list[float] = []
        self.bytes: list[float] = []
        self.full_s: float | None = None

    def add(self, begin_s: float, seconds: float, new_bytes: int) -> None:
        """`new_bytes` arrive evenly over `seconds`, which lie after all that was added before."""
        waiting = 0.0
        if self.bytes:
            waiting = max(0.0, self.bytes[-1] - (begin_s - self.times_s[-1]) * self.bandwidth)
        self.times_s.append(begin_s + seconds)
        self.bytes.append(max(0.0, waiting + new_bytes - seconds * self.bandwidth))
        if self.full_s is None and self.bytes[-1] >= self.limit:
            self.full_s = self.times_s[-1]
