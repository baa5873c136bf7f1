"""Reports B91 to B100: assumptions of a simulator, an optimum that is one, and traces that are read or refused."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.analysis import replay, replay_policies
from kvlab.base import LookupResult
from kvlab.tiering import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from kvlab.traces import TraceError, load
from kvlab.workload import Workload
from tests.engine.rig import drain, make_engine, primary, spec
from tests.helpers import CTX, to_key, to_keys
from tests.tiering.stubs import ManualTier, make_manager, ref_counts

# --- B91, B93, B94: what the simulator assumes ---


def repeating(num_cpu: int, policy: str = "evictable_list_lru") -> tuple[int, float]:
    """Hit tokens and mean seconds to the first token of one-turn conversations over four prefixes of 20 blocks."""
    engine = make_engine(
        spec(prefix_tokens=320, prompt_tokens=16, prefix_count=4, turns=1, rate=1),
        samples=24, num_cpu=num_cpu, num_gpu=80, policy=policy, bandwidth=1e7, max_num_batched_tokens=512,
        gpu_rate=2000.0,
    )  # fmt: skip
    engine.start()
    drain(engine)
    assert engine.stats.completed_requests == 24
    return engine.stats.cached_tokens, fmean(done.first_token_s - done.arrival_s for done in engine.completed)


@pytest.mark.parametrize("policy", ["evictable_list_lru", "full_scan_lru"])
def test_b91_whenever_hits_change_so_does_the_time_to_the_first_token(policy: str) -> None:
    found = [repeating(num_cpu, policy) for num_cpu in (0, 10, 30, 60, 100, 1000)]
    hits, seconds = zip(*found, strict=True)
    assert hits[0] == 0 < hits[-1]
    assert len(set(hits)) >= 3
    for (fewer, slower), (more, faster) in pairwise(found):
        assert fewer <= more
        assert (fewer == more) or faster < slower, "more hits, and not a bit sooner"
        assert faster <= slower * 1.01, "more capacity made it worse"
    assert seconds[-1] < 0.5 * seconds[0]


def test_b93_a_prefix_in_the_cpu_tier_is_loaded_although_the_gpu_is_empty() -> None:
    engine = make_engine(spec(prefix_count=1, turns=1, rate=1), samples=2, num_gpu=1000)
    engine.start()
    drain(engine)
    assert engine.stats.max_running == 1
    assert [done.cached_tokens for done in engine.completed] == [0, 32]


def test_b94_what_a_count_means() -> None:
    """-1 being written, 0 idle, n readers; load and store are CPU <-> GPU, read and write CPU <-> tier."""
    tier = ManualTier()
    manager = make_manager((tier,))
    seen = []

    def note() -> None:
        seen.append((ref_counts(manager).get(to_key(1)), manager.lookup(to_key(1), CTX)))

    output = manager.prepare_store(to_keys([1]), CTX)
    assert output is not None
    note()
    manager.complete_store(output.keys_to_store, CTX)  # the tier now reads it
    note()
    for _ in range(2):
        manager.prepare_load(to_keys([1]), CTX)
    note()
    manager.on_schedule_end()
    tier.finish_all()
    manager.on_schedule_end()
    for _ in range(2):
        manager.complete_load(to_keys([1]), CTX)
    note()
    assert seen == [
        (-1, LookupResult.HIT_PENDING), (1, LookupResult.HIT), (3, LookupResult.HIT), (0, LookupResult.HIT),
    ]  # fmt: skip
    assert {"prepare_load", "prepare_store"} <= set(dir(TieringOffloadingManager))
    assert {"prepare_read", "prepare_write"} <= set(dir(CPUPrimaryTierOffloadingManager))
    assert (manager.stats.stores, manager.stats.loads, manager.stats.cascades) == (1, 2, 1)


def test_b94_a_cold_hit_on_disk_takes_three_steps_at_least() -> None:
    """Exists?, promote, load: with everything else as fast as can be."""
    engine = make_engine(spec(prefix_count=1, turns=1, rate=1), samples=1, disk=True, num_gpu=100)
    engine.start()
    drain(engine)
    primary(engine).reset_cache()
    again = Workload(spec(prefix_count=1, turns=1, rate=1)).request(7)
    before = engine.stats.steps
    engine.add_request(again)
    while not engine.running:
        engine.step()
    assert engine.stats.steps - before >= 3
    drain(engine)
    assert engine.completed[-1].cached_tokens == 32


# --- B95: the optimum ---

REFERENCES = st.lists(st.integers(0, 8), max_size=60)


@given(REFERENCES, st.integers(1, 10))
def test_b95_nothing_beats_the_optimum_whose_future_kvlab_works_out_itself(ids: list[int], capacity: int) -> None:
    best = replay([ids], "belady", capacity).hits
    for policy in replay_policies():
        assert replay([ids], policy, capacity).hits <= best, policy
    assert best <= len(ids) - len(set(ids))
    assert capacity < len(set(ids)) or best == len(ids) - len(set(ids))


def test_b95_a_generator_is_read_once_and_still_has_a_future() -> None:
    assert replay(iter([[1, 2, 3], [1, 2, 4], [1, 2]]), "belady", 3).hits == 4


# --- B98, B100: traces ---


def write(path: Path, *records: Any) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def record(ids: Any, input_length: int = 20, **more: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": input_length, "output_length": 1, "hash_ids": ids, **more}


def test_b98_more_ids_than_the_length_has_blocks_is_an_error_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", record([0], 10), record([0, 1]))
    with pytest.raises(TraceError, match=r"t\.jsonl:2: .*20 tokens fill 1 blocks of 512, but there are 2 ids"):
        list(load(path, block_tokens=512))
    assert [request.hash_ids for request in load(path, block_tokens=15)] == [[0], [0, 1]]


def test_b100_ids_may_be_ints_or_text(tmp_path: Path) -> None:
    ints = list(load(write(tmp_path / "ints.jsonl", record([10, 11]), record([10, 12])), block_tokens=16))
    hexes = list(load(write(tmp_path / "hex.jsonl", record(["0xa", "0xB"]), record(["0xA", "0x0c"])), block_tokens=16))
    assert [r.hash_ids for r in hexes] == [r.hash_ids for r in ints] == [[10, 11], [10, 12]]
    text = list(load(write(tmp_path / "text.jsonl", record(["ab", "cd"]), record(["ab", "ef"])), block_tokens=16))
    (first, second), (again, third) = (r.hash_ids for r in text)
    assert first == again and len({first, second, third}) == 3
    assert replay(tmp_path / "text.jsonl", "lru", 4).hits == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([record([1, "a"])], r":1: hash_ids must hold ints only, it has 'a'"),
        ([record([1, 2]), record(["a", "b"])], r":2: hash_ids holds text, before it held ints"),
        ([record(["0xzz"])], r":1: '0xzz' is no hexadecimal number"),
        ([record([1, -2])], r":1: hash_ids must hold ints >= 0, it has -2"),
        ([record([1, 2.0])], r":1: hash_ids must hold ints only, it has 2.0"),
        ([record([1]), "timestamp,input_length,hash_ids"], r":2: is not JSON"),
        (["timestamp,input_length,hash_ids", record([1])], r":1: no known trace format starts like this"),
    ],
)
def test_b100_other_ids_and_headers_are_refused_with_file_and_line(
    tmp_path: Path, lines: list[Any], message: str
) -> None:
    with pytest.raises(TraceError, match=rf"t\.jsonl{message}"):
        list(load(write(tmp_path / "t.jsonl", *lines), block_tokens=16))


@pytest.mark.parametrize("end", ["", "\n", "\n\n  \n", "\r\n\r\n"])
def test_b100_blank_last_lines_and_compression_change_nothing(tmp_path: Path, end: str) -> None:
    text = json.dumps(record([1, 2])) + "\n" + json.dumps(record([1, 3])) + end
    plain, packed = tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    assert [r.hash_ids for r in load(plain, block_tokens=16)] == [[1, 2], [1, 3]]
    assert [r.hash_ids for r in load(packed, block_tokens=16)] == [[1, 2], [1, 3]]
