"""Made-up Results for the tests of tables, figures and the report. None of these numbers was measured anywhere."""

from __future__ import annotations

from typing import Any

from kvlab.results import SERIES, ArmResult, Result

NAMED_SYNTHETIC = "SYNTHETIC: made up by a test, not measured"


def synthetic_series(
    rate: float, stall_at: float, floor: float, duration: float, points: int
) -> dict[str, list[float]]:
    """Full `rate` tokens/s until `stall_at` seconds, then `floor` times as much. Blocks add up to 1,000."""
    series: dict[str, list[float]] = {name: [] for name in SERIES}
    for i in range(points):
        t = duration * i / (points - 1)
        tokens = rate * (min(t, stall_at) + floor * max(0.0, t - stall_at))
        pinned = min(900.0, 900.0 * t / stall_at) if floor < 1 else min(600.0, 20.0 * t)
        pending = min(30.0, t)
        idle = max(0.0, min(1000.0 - pinned - pending, 100.0 * t))
        row = {
            "t_s": t,
            "total_tokens": tokens,
            "scheduler_s": 0.02 * min(t, stall_at) + (1 - floor) * max(0.0, t - stall_at),
            "pinned": pinned,
            "idle": idle,
            "pending": pending,
            "free": 1000.0 - pinned - idle - pending,
            "running": 20.0,
            "waiting": 80.0,
            "queued_write_blocks": pinned,
            "evictions": max(0.0, t - 10) * 5,
            "blocks_inspected": max(0.0, t - 10) * (4000 if floor < 1 else 5),
        }
        for name, value in row.items():
            series[name].append(value)
    return series


def synthetic_arm(policy: str = "full_scan_lru", *, points: int = 300, **changes: Any) -> ArmResult:
    slow = policy == "full_scan_lru"
    duration = 44.0
    series = synthetic_series(48_000.0, 12.0 if slow else duration, 0.05 if slow else 1.0, duration, points)
    total = int(series["total_tokens"][-1])
    output = total // 85
    fields: dict[str, Any] = {
        "name": policy,
        "policy": policy,
        "guard": True,
        "block_status": "slots",
        "duration_s": duration,
        "wall_s": 31.5 if slow else 12.25,
        "steps": 120 if slow else 900,
        "tokens": {"input": total - output, "output": output},
        "completed_requests": output // 32,
        "started_requests": output // 32 + 100,
        "counts": {
            "evictions": 160,
            "evict_calls": 150,
            "blocks_inspected": 136_000 if slow else 160,
            "promotions": 140,
        },
        "seconds": {
            "lookup_walk": 25.1 if slow else 0.4,
            "touch": 0.2,
            "prepare_store": 5.5 if slow else 0.3,
            "complete_store": 0.3,
            "prepare_load": 0.1,
            "complete_load": 0.1,
            "on_schedule_end": 0.05,
            "other": 0.3,
            "evict": 29.0 if slow else 0.01,
        },
        "step_seconds": {
            "scheduler": 31.65 if slow else 1.45,
            "gpu_fixed": 2.4 if slow else 18.0,
            "gpu_compute": 8.0 if slow else 23.0,
            "wait": 1.95 if slow else 1.55,
        },
        "inspected_per_evict": {1: 40, 500: 60, 900: 45, 907: 5} if slow else {1: 140, 2: 10},
        "series": series,
        "marks": {"first_evict_s": 10.5, "first_refused_s": 12.0 if slow else None, "cpu_full_s": 10.0},
    }
    return ArmResult(**{**fields, **changes})


PUBLISHED = {
    "source": "https://github.com/vllm-project/vllm/pull/46216",
    "date": "2026-06-20",
    "output_tokens": 128,
    "rows": [
        {
            "tree": tree,
            "policy": policy,
            "strategy": "concurrent",
            "concurrency": 100.0,
            "per_sec": per_sec,
            "input_tok_s": input_rate,
            "output_tok_s": output_rate,
            "total_tok_s": total_rate,
        }
        for tree, policy, per_sec, input_rate, output_rate, total_rate in (
            ("main", "full_scan_lru", 0.1, 1936.9, 22.1, 1959.0),
            ("PR", "evictable_list_lru", 1.1, 11562.3, 138.0, 11700.3),
        )
    ],
}


def synthetic_result(**changes: Any) -> Result:
    """A `reproduce` Result of both LRUs at an invented laptop scale."""
    fields: dict[str, Any] = {
        "kind": "reproduce",
        "created": "2026-01-02T03:04:05Z",
        "environment": {
            "cpu": NAMED_SYNTHETIC,
            "cores": 2,
            "memory_gib": 8.0,
            "python": "3.11.7 (CPython)",
            "platform": "Linux x86_64",
            "kvlab": "0.1.0",
            "git_commit": None,
            "git_changed": None,
        },
        "config": {
            "scale": "laptop",
            "scale_factor": 4,
            "seed": 889,
            "scheduler_clock": "measured",
            "strategy": "concurrent",
            "concurrency": 100,
            "output_tokens": 32,
            "assumed": [
                {"name": "disk write", "value": "3 GB/s", "source": NAMED_SYNTHETIC},
                {"name": "GPU rate", "value": "20,000 computed tokens/s", "source": "bisection <b>&</b> luck"},
            ],
        },
        "arms": [synthetic_arm("full_scan_lru"), synthetic_arm("evictable_list_lru")],
        "published": PUBLISHED,
        "notes": [NAMED_SYNTHETIC],
    }
    return Result(**{**fields, **changes})


def synthetic_sweep() -> Result:
    """Both LRUs at five disk bandwidths; the slow arm recovers once the disk is fast."""
    arms = []
    for gb_s in (0.5, 1, 2, 4, 8):
        for policy in ("full_scan_lru", "evictable_list_lru"):
            tokens = int(500_000 * (min(1, gb_s / 8) if policy == "full_scan_lru" else 1))
            arms.append(
                synthetic_arm(
                    policy,
                    name=f"{policy} {gb_s:g} GB/s",
                    tokens={"input": tokens, "output": tokens // 85},
                    settings={"disk_write_bytes_per_s": gb_s * 1e9},
                    series={},
                )
            )
    return synthetic_result(kind="sweep", arms=arms)


def synthetic_ablation() -> Result:
    """Policies x guard x record class, series left out."""
    arms = []
    for policy, factor in (("full_scan_lru", 1), ("evictable_list_lru", 5)):
        for guard in (False, True):
            for status in ("ctypes", "slots"):
                tokens = 100_000 * factor + 5_000 * guard + 20_000 * (status == "slots")
                arms.append(
                    synthetic_arm(
                        policy,
                        name=f"{policy}, guard {'on' if guard else 'off'}, {status}",
                        guard=guard,
                        block_status=status,
                        tokens={"input": tokens, "output": tokens // 85},
                        series={},
                    )
                )
    return synthetic_result(kind="ablation", arms=arms)
