"""Public reports about the tier's files: wrong bytes, drifting counters, files that are gone, endless queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.base import LookupResult, OffloadKey
from kvlab.tiering.fs.index import FileIndex
from tests.fs.rig import CTX, ROW, finished, jobs, key, keys, stamp, verdict
from tests.fs.test_existence import A, B, ask, verdicts
from tests.fs.test_options import flip_a_bit, on_disk, store_in_turn
from tests.fs.test_tier import Gate, path_of
from tests.helpers import to_keys

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


def test_b46_files_that_others_remove_do_not_count_for_ever(tmp_path: Path) -> None:
    with jobs(tmp_path, max_bytes=2 * ROW) as made:
        for number in range(60):
            store_in_turn(made, [number])
            path_of(made, number).unlink()
        assert made.tier.index is not None
        assert made.tier.index.total_bytes <= 2 * ROW
        assert made.tier.stats.writes_failed == 0


def test_b47_removing_a_file_that_is_gone_raises_nothing(tmp_path: Path) -> None:
    with jobs(tmp_path, max_bytes=2 * ROW) as made:
        store_in_turn(made, [1, 2])
        path_of(made, 1).unlink()
        store_in_turn(made, [3])
        assert on_disk(made) == [2, 3]
        assert made.tier.index is not None and made.tier.index.total_bytes == 2 * ROW


def test_b42_a_flipped_bit_is_a_miss_and_the_file_is_kept_aside(tmp_path: Path) -> None:
    with jobs(tmp_path, checksum=True) as made:
        made.store([key(1)])
        flip_a_bit(path_of(made, 1))
        assert verdict(made.tier, key(1)) is HIT
        assert not made.load([key(1)]).success
        assert made.tier.lookup(key(1), CTX) is MISS
        assert not path_of(made, 1).exists()
        (kept,) = made.tier.mapper.quarantine_dir.iterdir()
        assert kept.name.endswith(path_of(made, 1).name) and kept.stat().st_size == ROW + 4096
        assert "checksum" in made.tier.problems[-1] and str(path_of(made, 1)) in made.tier.problems[-1]
        # the recomputed block is stored and read again
        assert made.store([key(1)]).success and made.load([key(1)], 3).success
        assert made.region.row(3) == stamp(key(1))


def test_b42_without_checksums_wrong_bytes_pass(tmp_path: Path) -> None:
    """As in vLLM: the price of the default."""
    with jobs(tmp_path) as made:
        made.store([key(1)])
        flip_a_bit(path_of(made, 1))
        assert made.load([key(1)], 3).success
        assert made.region.row(3) != stamp(key(1))


def test_b36_writes_beyond_the_bound_are_skipped_and_counted_reads_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jobs(tmp_path, max_queued_write_bytes=3 * ROW) as made:
        made.store([key(0)])
        gate = Gate(monkeypatch, "pwritev")
        made.submit_store(keys([1, 2]), 1)
        made.submit_store(keys([3, 4]), 3)
        made.submit_store(keys([5]), 5)
        assert made.tier.queued_write_bytes == 3 * ROW
        assert made.tier.stats.writes_skipped == 2
        # a job of which nothing is accepted ends at once
        assert [(result.job_id, result.success) for result in finished(made.tier)] == [(3, False)]
        # every thread is held in a write, so the read waits for a thread, but it is accepted
        made.submit([key(0)], [7], is_promotion=True)
        gate.open()
        results = {result.job_id: result for result in finished(made.tier, 3)}
        assert results[1].success and results[4].success
        assert (results[2].success, results[2].successful_keys) == (False, (key(3),))
        assert made.region.row(7) == stamp(key(0))
        assert made.tier.queued_write_bytes == 0
        assert made.store([key(6)], 6).success


def test_b46_a_thousand_times_in_and_out_leaves_a_counter_of_0(tmp_path: Path) -> None:
    def path(block: OffloadKey) -> str:
        return str(tmp_path / block.hex())

    index = FileIndex(250, path)
    for number in range(1_000):
        index.reserve(100)
        Path(path(key(number))).write_bytes(b"x")
        index.written(key(number), 100)
        Path(path(key(number))).unlink()
        index.gone(key(number))
        assert index.total_bytes == 0
    index.reserve(200)
    index.cancelled(200)
    assert index.total_bytes == 0


# --- a job that was refused, a verdict that is out of date ---


@pytest.mark.parametrize("is_promotion", [True, False])
def test_b24_a_job_that_is_refused_leaves_nothing_open(tmp_path: Path, is_promotion: bool) -> None:
    with jobs(tmp_path) as made:
        with pytest.raises(ValueError, match="zip"):
            made.submit(keys([1, 2]), [0], is_promotion)
        assert not made.tier.has_pending_work()
        made.tier.shutdown()
        with pytest.raises(RuntimeError, match="has been shut down"):
            made.submit(keys([1, 2]), [0, 1], is_promotion)
        assert not made.tier.has_pending_work()
        assert made.tier.queued_write_bytes == 0
        assert made.tier.get_finished_jobs() == []


@pytest.mark.parametrize("correct", [False, True])
def test_b38_a_miss_that_a_write_has_made_untrue(tmp_path: Path, correct: bool) -> None:
    """0.24 keeps it while anybody who asked lives; the remedy by name tells him too."""
    with jobs(tmp_path, correct_misses=correct) as made:
        assert verdict(made.tier, key(1)) is MISS
        made.store([key(1)])
        assert made.tier.lookup(key(1), CTX) is (HIT if correct else MISS)


def test_b38_an_answer_from_before_the_write_does_not_undo_it() -> None:
    with verdicts() as (made, prober):
        assert ask(made, [1, 2]) == [RETRY, RETRY]
        made.flush()
        made.written(to_keys([1, 3]))
        assert ask(made, [1, 2]) == [HIT, RETRY]
        prober.answer(False, False)
        assert ask(made, [1, 2], A) == [HIT, MISS]
        assert ask(made, [1, 2], B) == [HIT, MISS]
        made.forget_request("a")
        made.forget_request("b")
        assert len(made) == 0 and not made._probed_by
