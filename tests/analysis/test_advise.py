"""`kvlab advise` on traces small enough to size by hand: blocks of 4 tokens, 16 ids at most, rates of a few bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.analysis import replay
from kvlab.analysis.advise import Advice, advise
from kvlab.analysis.kv_cost import KVCost, kv_cost
from kvlab.analysis.walk import walk
from kvlab.cli import main
from kvlab.config import ConfigError, KVCacheGroup, KVLayout, KVTransferConfig, parse_serve, parse_shell
from kvlab.engine import SchedulerCosts
from kvlab.experiment.arm import build_engine
from kvlab.experiment.config import ExperimentConfig, resolve
from kvlab.paths import data_dir
from kvlab.spec import PAGE_BYTES, offloading_spec
from kvlab.traces import RequestRecorder, TraceRequest

PAGE = PAGE_BYTES
# One group, one key a block of 4 tokens: 2 (K, V) x 1 head x 128 x 4 bytes x 4 tokens = 4,096 bytes, one page.
ONE_PAGE = KVLayout("one-page", (KVCacheGroup("full", "full_attention", 1, None, 1, 128, 4),), "float32", 4)
TWO_GROUPS = KVLayout(
    "two-groups",
    (
        KVCacheGroup("full", "full_attention", 1, None, 1, 128, 4),
        KVCacheGroup("sliding", "sliding_window", 1, 8, 1, 128, 4),
    ),
    "float32",
    4,
)
FAST = {"gpu_rate": 4.0, "disk_write": 1e9, "disk_read": 1e9}


def request(at_s: float, *ids: int, extra_tokens: int = 1, output_tokens: int = 0) -> TraceRequest:
    return TraceRequest(at_s, 4 * len(ids) + extra_tokens, output_tokens, ids)


def sized(*requests: TraceRequest, **changes: object) -> Advice:
    figures: dict[str, object] = {"layout": ONE_PAGE, "block_tokens": 4, **FAST, **changes}
    return advise(requests, **figures)  # type: ignore[arg-type]


# Four blocks, then the first request again: a cache hits it from 4 blocks on.
AGAIN = (request(0, 1, 2), request(100, 3, 4), request(200, 1, 2))


def test_the_smallest_cpu_tier_is_the_distance_of_the_reuse() -> None:
    advice = sized(*AGAIN)
    assert advice.sizing.cpu_bytes == 4 * PAGE
    assert [tier.hit_tokens for tier in advice.sizing.tiers] == [0, 8, 0]
    assert advice.line("cpu_bytes_to_use").value == 4 * PAGE
    assert advice.line("prefill_saved").value == 8 / 4.0


def test_a_cpu_tier_no_larger_than_the_gpus_cache_adds_nothing() -> None:
    """Stores are immediate: it holds only what the GPU holds too."""
    advice = sized(*AGAIN, gpu_blocks=4, cpu_bytes=3 * PAGE)
    assert [tier.hit_tokens for tier in advice.sizing.tiers] == [8, 0, 0]
    assert "it adds no hit" in advice.line("cpu_reach").text
    assert advice.kv_transfer_config is None and advice.serve_command is None


def test_a_gpu_cache_that_has_all_hits_needs_no_cpu_tier() -> None:
    advice = sized(*AGAIN, gpu_blocks=4)
    assert advice.sizing.cpu_blocks == 0
    assert "the GPU's own cache has 100.0%" in advice.line("cpu_bytes_to_use").text


def test_within_trades_hits_for_bytes() -> None:
    """Nine hits at a distance of 1 block and one at 4: nine tenths of the hits need 2 blocks, all of them 5."""
    stream = [request(0, 1), *(request(1 + i, 1) for i in range(9)), request(20, 5, 6, 7, 8), request(30, 1)]
    assert sized(*stream, within=10.0).sizing.cpu_blocks < sized(*stream, within=0.0).sizing.cpu_blocks
    exact = sized(*stream, within=0.0).sizing
    assert exact.curve.hits_at(exact.cpu_blocks) == exact.curve.infinite_hits
    assert exact.curve.hits_at(exact.cpu_blocks - 1) < exact.curve.infinite_hits


def test_a_small_cpu_tier_leaves_the_rest_to_the_disk() -> None:
    advice = sized(*AGAIN, cpu_bytes=3 * PAGE, disk_read=2 * PAGE)
    assert [tier.hit_tokens for tier in advice.sizing.tiers] == [0, 0, 8]
    assert advice.sizing.tiers[2].load_s == 1.0
    assert advice.sizing.tiers[2].saved_s == 2.0
    assert advice.kv_transfer_config is not None
    assert advice.kv_transfer_config["kv_connector_extra_config"]["spec_name"] == "TieringOffloadingSpec"


def test_a_disk_that_loads_more_slowly_than_the_gpu_computes_is_left_out() -> None:
    advice = sized(*AGAIN, cpu_bytes=3 * PAGE, disk_read=PAGE / 2)
    assert advice.line("disk_break_even").value is None
    assert "slower than computing" in advice.line("disk_break_even").text
    assert advice.serve_command is None


def test_ids_of_partly_filled_blocks_are_not_stored() -> None:
    """Five tokens are one full block of 4: the second id never becomes a block."""
    advice = sized(TraceRequest(0, 5, 0, (1, 2)), TraceRequest(1, 5, 0, (1, 2)))
    assert advice.sizing.walk.new_blocks == 1
    assert advice.line("cpu_hit_tokens").value == 4


# --- the write backlog -------------------------------------------------------------------------------------------


def test_backlog_grows_by_what_the_disk_does_not_write_in_time() -> None:
    """40 tokens a second make 10 pages a second; the disk writes 2: ten blocks leave 8 pages waiting after a second,
    and 4 s later it has caught up."""
    first = request(0, *range(10), extra_tokens=0)
    second = request(5, *range(20, 30), extra_tokens=0)
    advice = sized(first, second, gpu_rate=40.0, disk_write=2.0 * PAGE)
    backlog = advice.sizing.walk.backlog
    assert list(backlog.times_s) == [1.0, 6.0]
    assert list(backlog.bytes) == [8.0 * PAGE, 8.0 * PAGE]
    assert backlog.peak_s == 1.0


@pytest.mark.parametrize(("pages", "full_s"), [(8, 1.0), (9, None)])
def test_pins_fill_a_cpu_tier_that_is_no_larger_than_the_peak(pages: int, full_s: float | None) -> None:
    advice = sized(request(0, *range(10), extra_tokens=0), gpu_rate=40.0, disk_write=2.0 * PAGE, cpu_bytes=pages * PAGE)
    assert advice.line("pins_fill").value == full_s
    assert advice.line("full_scan_inspects").value == 8 + 1


def test_what_is_on_disk_already_is_not_written_again() -> None:
    same = [request(10.0 * i, 1, 2) for i in range(5)]
    advice = sized(*same)
    assert advice.sizing.walk.new_blocks == 2
    hours = advice.sizing.walk.span_s / 3600
    assert advice.line("written_per_hour").value == pytest.approx(2 * PAGE / hours)


def test_drive_lifetime_is_the_rating_over_the_rate() -> None:
    per_hour = sized(*AGAIN).line("written_per_hour").value
    assert per_hour is not None
    years = sized(*AGAIN, tbw=600).line("drive_lifetime").value
    assert years == pytest.approx(600e12 / per_hour / 8760)
    assert sized(*AGAIN).line("drive_lifetime").value is None


def test_one_request_of_no_duration_has_no_rate() -> None:
    assert sized(TraceRequest(0, 0, 0, ())).line("written_per_hour").value is None


def test_the_gpu_takes_requests_one_after_the_other() -> None:
    """Both arrive at once, 8 tokens each at 4 tokens/s: the second is stored from 2 s to 4 s."""
    advice = sized(request(7, 1, 2, extra_tokens=0), request(7, 3, 4, extra_tokens=0))
    assert list(advice.sizing.walk.backlog.times_s) == [2.0, 4.0]
    assert advice.sizing.walk.span_s == advice.sizing.walk.busy_s == 4.0


@pytest.mark.parametrize("disk_write", [0.5e9, 1e9])
def test_pins_fill_no_later_than_in_kvlabs_engine(disk_write: float) -> None:
    """The pull request's workload at scale tiny on a slow disk, its requests recorded and walked. The engine has fixed
    seconds a step and a GPU pool for 8 requests, so it is slower; but not by half."""
    config = ExperimentConfig(
        scale="tiny", scheduler_clock="counted", overrides={"disk_write": disk_write, "disk_read": 2 * disk_write}
    )
    experiment = resolve(config)
    spec = replace(experiment.arms[1], scheduler_costs=SchedulerCosts(0, 0, 0, 0, 0, 0, 0, 0))
    engine, manager = build_engine(spec)
    recorder = RequestRecorder(engine.source, engine.clock)
    engine.source = recorder  # type: ignore[assignment]
    engine.start()
    full = 0.95 * spec.num_cpu_blocks
    engine.run(until_s=spec.workload.max_seconds, should_stop=lambda: manager.primary_tier.num_pinned >= full)
    engine_full_s = engine.clock.now
    manager.shutdown()
    assert engine_full_s < spec.workload.max_seconds

    cost = KVCost(experiment.layout, spec.world_size, 16, spec.block_bytes, len(spec.groups))
    sent = [replace(r, hash_ids=tuple(r.hash_ids[: r.input_tokens // 16])) for r in recorder.requests]
    walked = walk(sent, cost, 0, full * spec.block_bytes, spec.engine.gpu_rate, spec.tiers[0].write_bandwidth)
    assert walked.backlog.full_s is not None
    assert engine_full_s / 1.5 < walked.backlog.full_s <= engine_full_s


# --- one trace worked out in full --------------------------------------------------------------------------------


def test_a_whole_advice_by_hand() -> None:
    """40 tokens/s make 10 pages/s, the disk writes 2 and reads 20. Ten blocks, the same ten and a token more; two
    others, and these and a token more. The GPU keeps two blocks, so only the last request finds its blocks there."""
    long, short = range(10), (20, 21)
    stream = [request(0, *long, extra_tokens=0), request(100, *long), request(200, *short, extra_tokens=0),
              request(300, *short)]  # fmt: skip
    advice = sized(*stream, gpu_rate=40.0, disk_write=2.0 * PAGE, disk_read=20.0 * PAGE, gpu_blocks=2, tbw=1)
    # A long prompt comes back after 10 blocks, its own: 10 slots give all 12 hits, 2 slots the 2 of the short one.
    assert advice.sizing.cpu_bytes == 10 * PAGE
    assert [(t.hit_blocks, t.hit_tokens, t.saved_s) for t in advice.sizing.tiers] == [
        (2, 8, 0.2),
        (10, 40, 1.0),
        (0, 0, 0),
    ]
    # Computed: 40 + 1 + 8 + 1 tokens; the last one is done 1/40 s after it came.
    span_s = 300 + 1 / 40
    hourly = 12 * PAGE / span_s * 3600
    expected = {
        "block_bytes": PAGE, "gpu_busy": 50 / 40 / span_s, "gpu_reach": 2, "cpu_reach": 10, "disk_reach": 12,
        "prefill_saved": 1.2, "disk_break_even": 0.0, "copy_break_even": 40 * PAGE / 4, "written_per_hour": hourly,
        "drive_lifetime": 1e12 / hourly / 24 / 365, "production": 10 * PAGE,
        # 10 pages made in the first second, 2 of them written meanwhile; 10 slots are not full of 8 pins.
        "peak_backlog": 8 * PAGE, "pins_fill": None, "full_scan_inspects": 9, "full_scan_seconds": 1900e-9,
        "cpu_bytes_to_use": 10 * PAGE, "disk_gain": 0.0,
    }  # fmt: skip
    assert {name: advice.line(name).value for name in expected} == pytest.approx(expected)
    assert advice.sizing.walk.backlog.peak_s == 1.0
    assert "1.25 s of that fill the CPU tier" in advice.line("production").text
    extra = (advice.kv_transfer_config or {})["kv_connector_extra_config"]
    assert extra == {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 10 * PAGE, "eviction_policy": "lru"}


def test_lines_read_well_where_nothing_waits() -> None:
    advice = sized(*AGAIN)
    assert advice.line("peak_backlog").text == "nothing ever waits for the disk longer than a prefill takes"
    assert "inspects 1 block for a victim" in advice.line("full_scan_inspects").text
    assert advice.line("full_scan_seconds").value == pytest.approx(1100e-9)


# --- properties against what replay counts -----------------------------------------------------------------------


@st.composite
def prefix_traces(draw: st.DrawFn) -> list[TraceRequest]:
    """Ids chained as a trace's are: each names its block and everything before it."""
    tree: dict[tuple[int, ...], int] = {}
    requests = []
    for at_s in range(draw(st.integers(1, 12))):
        path = tuple(draw(st.lists(st.integers(0, 1), max_size=5)))
        ids = [tree.setdefault(path[: i + 1], len(tree)) for i in range(len(path))]
        requests.append(request(at_s, *ids))
    return requests


@given(prefix_traces(), st.integers(0, 8), st.integers(0, 8))
def test_tiers_add_up_to_what_replay_counts(requests: list[TraceRequest], gpu: int, cpu: int) -> None:
    advice = sized(*requests, gpu_blocks=gpu, cpu_bytes=cpu * PAGE)
    on_gpu, on_cpu, on_disk = (tier.hit_blocks for tier in advice.sizing.tiers)
    ids = [r.hash_ids for r in requests]

    def hits(capacity: int) -> int:
        return replay(ids, "lru", capacity, "prefix").hits if capacity else 0

    assert on_gpu == hits(gpu)
    assert on_gpu + on_cpu == hits(max(gpu, cpu))
    assert on_gpu + on_cpu + on_disk == hits(1000)


@given(prefix_traces(), st.floats(0.1, 100), st.floats(1, 1e6))
def test_backlog_is_never_more_than_all_that_was_made(
    requests: list[TraceRequest], gpu_rate: float, disk_write: float
) -> None:
    found = sized(*requests, gpu_rate=gpu_rate, disk_write=disk_write).sizing.walk
    assert 0 <= found.backlog.peak_bytes <= found.new_blocks * PAGE
    assert all(a <= b for a, b in pairwise(found.backlog.times_s))


# --- break-even ----------------------------------------------------------------------------------------------------


def slow_break_even(cost: KVCost, bandwidth: float, gpu_rate: float) -> int | None:
    for tokens in range(1, 2000):
        if cost.load_bytes(tokens) / bandwidth <= tokens / gpu_rate:
            return tokens
    return None


@given(st.floats(1.0, 3000.0))
def test_break_even_is_where_loading_overtakes(bandwidth: float) -> None:
    """Two groups: 2 KiB a token up to the window's 8, 1 KiB after it."""
    cost = kv_cost(TWO_GROUPS, 4)
    found, slow = cost.break_even_tokens(bandwidth, 1.0), slow_break_even(cost, bandwidth, 1.0)
    if found is None or found > 1999:
        assert slow is None
    else:
        assert slow is not None and slow - 1 <= found <= slow + 1e-6


def test_a_sliding_window_makes_long_prefixes_cheaper_to_load() -> None:
    """1.5 KiB a token allowed: 8 x 1 KiB / 0.5 KiB = 16 tokens."""
    assert kv_cost(TWO_GROUPS, 4).break_even_tokens(1536.0, 1.0) == pytest.approx(16.0)


# --- what comes out ------------------------------------------------------------------------------------------------


def test_the_configuration_is_read_by_kvlabs_own_reader() -> None:
    advice = sized(*AGAIN, cpu_bytes=3 * PAGE, root_dir="/mnt/it's here")
    config = KVTransferConfig.from_dict(advice.kv_transfer_config or {})
    assert config.secondary_tiers[0].root_dir == "/mnt/it's here"
    assert offloading_spec(config, ONE_PAGE).num_blocks == 3
    assert not config.warnings


def test_the_command_line_is_read_by_kvlabs_own_reader() -> None:
    command = sized(*AGAIN, cpu_bytes=3 * PAGE, root_dir="/mnt/it's $HOME", model="some/model").serve_command
    ((_, arguments),) = parse_shell(command or "").find("vllm", "serve")
    serve = parse_serve(arguments)
    assert serve.model == "some/model"
    assert not serve.enable_prefix_caching
    assert serve.kv_transfer is not None
    assert serve.kv_transfer.cpu_bytes_to_use == 3 * PAGE
    assert serve.kv_transfer.secondary_tiers[0].root_dir == "/mnt/it's $HOME"
    assert not serve.warnings and not serve.unknown_flags


def test_two_workers_are_two_in_the_command() -> None:
    layout = KVLayout("two", (KVCacheGroup("full", "full_attention", 1, None, 2, 128, 4),), "float32", 4)
    advice = sized(*AGAIN, layout=layout, world_size=2)
    assert advice.sizing.cost.key_bytes == 2 * PAGE
    ((_, arguments),) = parse_shell(advice.serve_command or "").find("vllm", "serve")
    assert parse_serve(arguments).tensor_parallel_size == 2


def test_every_line_has_its_reason_and_frames_hold_them() -> None:
    advice = sized(*AGAIN, tbw=600)
    frame = advice.to_frame()
    assert list(frame.columns) == ["topic", "name", "value", "unit", "text", "reason", "assumed"]
    assert len(frame) == len(advice.lines)
    assert frame["name"].is_unique
    assert (frame["reason"] != "").all() and (frame["assumed"] != "").all()
    assert advice.tiers_to_frame()["hit_blocks"].sum() == 2
    json.dumps(advice.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gpu_rate": 0.0}, "gpu_rate"),
        ({"disk_write": float("nan")}, "disk_write"),
        ({"disk_read": -1.0}, "disk_read"),
        ({"within": 100.0}, "within"),
        ({"gpu_blocks": -1}, "gpu_blocks"),
        ({"cpu_bytes": -1}, "cpu_bytes"),
        ({"tbw": 0.0}, "tbw"),
        ({"world_size": 0}, "world_size"),
        ({"block_tokens": None}, "block_tokens"),
    ],
)
def test_a_figure_that_cannot_be_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        sized(*AGAIN, **changes)


def test_blocks_of_the_trace_must_be_whole_gpu_blocks() -> None:
    with pytest.raises(ConfigError, match=r"6 tokens.*no multiple of the 4"):
        sized(*AGAIN, block_tokens=6)


def test_no_requests_no_advice() -> None:
    with pytest.raises(ValueError, match="no requests"):
        sized()


# --- the command ---------------------------------------------------------------------------------------------------

GIVEN = ("--layout", "plain", "--gpu-rate", "12000", "--disk-write", "3GB/s", "--disk-read", "6GB/s")


def test_the_command_prints_what_the_function_finds(capsys: pytest.CaptureFixture[str]) -> None:
    path = data_dir() / "traces" / "conversations.jsonl.gz"
    assert main(["advise", str(path), *GIVEN, "--gpu-blocks", "6000", "--within", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = advise(
        path, layout="plain", gpu_rate=12000.0, disk_write=3e9, disk_read=6e9, gpu_blocks=6000, within=2.0
    ).to_dict()
    assert shown == json.loads(json.dumps(found))


def test_the_command_shows_reasons_and_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = data_dir() / "traces" / "conversations.jsonl.gz"
    assert main(["advise", str(path), *GIVEN]) == 0
    out = capsys.readouterr().out
    assert "because" in out and "assumed" in out
    assert "vllm serve MODEL" in out


@pytest.mark.parametrize("name", ["azure.csv", "ragpulse.jsonl"])
def test_a_trace_without_usable_ids_is_one_message(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(data_dir() / "traces" / name), *GIVEN]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("kvlab advise: ") and captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("name", ["qwen_bailian.jsonl", "lmcache_lookup.jsonl", "weka_sessions"])
def test_every_kind_of_trace_with_ids_can_be_sized(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(data_dir() / "traces" / name), *GIVEN, "--json"]) == 0


def test_the_report_is_one_page_with_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "advice.html"
    path = data_dir() / "traces" / "conversations.jsonl.gz"
    assert main(["advise", str(path), *GIVEN, "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<figure") == 4
    assert "vllm serve MODEL" in text and "http://" not in text.split("plotly", 1)[0]


REAL = Path(__file__).parents[3] / "shared" / "traces" / "weka-claude-code" / "interleaved_a.jsonl.gz"


@pytest.mark.slow  # 1.3 million references
@pytest.mark.skipif(not REAL.is_file(), reason="the real traces are not here (../shared/traces)")
def test_a_real_trace_of_agents() -> None:
    """Its 69,180 different blocks of 64 tokens are 8 MiB each in layout plain."""
    advice = advise(REAL, layout="plain", gpu_rate=12000.0, disk_write=1e9, disk_read=3e9, gpu_blocks=30_000)
    gpu, cpu, disk = advice.sizing.tiers
    assert disk.bytes == 69_180 * 8 * 2**20
    assert gpu.hit_blocks + cpu.hit_blocks + disk.hit_blocks == 1_332_513 - 69_180
    assert gpu.hit_blocks == replay(REAL, "lru", 7_500, "prefix").hits
    assert (gpu.hit_blocks + cpu.hit_blocks) / (1_332_513 - 69_180) == pytest.approx(0.95, abs=0.001)
