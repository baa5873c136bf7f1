"""`kvlab replay --full`: serve a trace with each policy, print tables that add up, or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvlab.config import ConfigError, format_bytes, read_bytes
from kvlab.experiment.config import parse_policies
from kvlab.experiment.full_replay import OnProgress, export_sent, full_replay
from kvlab.experiment.full_replay_config import ReplayConfig, ReplayServer, resolve_server
from kvlab.experiment.full_replay_result import FullReplay, PromptTokens
from kvlab.results import utc_now, write_atomic
from kvlab.results.environment import collect_environment
from kvlab.traces.main import trace_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

#: Options that mean something with --full only, and those that mean nothing with it.
FULL_ONLY = (
    "concurrency", "limit", "layout", "block_size", "cpu_bytes", "gpu_blocks", "no_disk", "prefix_caching", "storage",
    "disk_write", "disk_read", "gpu_rate", "scheduler_clock", "max_deferred_walks", "out", "to",
)  # fmt: skip
ORDER_ONLY = ("capacities", "order", "curve")
_SHOWN_TURNS = 10
_SHOWN_SESSIONS = 5
_EVERY_STEPS = 100


def main(args: argparse.Namespace, console: Console) -> int:
    """Exit code: 0; 130 after Ctrl-C, 1 if a run stopped by itself (either way with a partial result). Raises
    ConfigError, ValueError or TraceError for wrong input."""
    servers = [
        resolve_server(_config(args, policy)) for policy in parse_policies(args.policies or (ReplayConfig().policy,))
    ]
    trace = trace_of(args)
    if args.to:
        export_sent(trace, servers[0].spec, args.to, limit=args.limit)
    status = _status_console(console, args.json)
    found: list[FullReplay] = []
    for server in servers:
        with _progress(status, server.spec.policy, quiet=args.progress) as on_progress:
            found.append(
                full_replay(
                    trace,
                    server.spec,
                    concurrency=args.concurrency,
                    limit=args.limit,
                    max_deferred_walks=args.max_deferred_walks,
                    on_progress=on_progress,
                )
            )
        if found[-1].stopped_because == "interrupted":
            break
    text = json.dumps(_document(servers[0], found), indent=2) + "\n"
    if args.json:
        sys.stdout.write(text)
    else:
        for server, result in zip(servers, found, strict=False):
            _print(console, server, result)
    if args.out:
        write_atomic(args.out, text)
    if not args.json:
        for what, path in (("Result", args.out), ("Mooncake JSONL", args.to)):
            if path:
                console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
    if any(result.stopped_because == "interrupted" for result in found):
        return 130
    return 1 if any(result.partial for result in found) else 0


def refuse_mixed(args: argparse.Namespace) -> None:
    """ConfigError for options of the other kind of replay."""
    wrong, hint = (ORDER_ONLY, "belongs to a replay without --full") if args.full else (FULL_ONLY, "needs --full")
    for name in wrong:
        if getattr(args, name) not in (None, False):
            raise ConfigError(f"--{name.replace('_', '-')} {hint}", key=name)


def _config(args: argparse.Namespace, policy: str) -> ReplayConfig:
    return ReplayConfig(
        policy=policy,
        scheduler_clock=args.scheduler_clock or "counted",
        layout=args.layout or ReplayConfig().layout,
        block_size=args.block_size,
        cpu_bytes=None if args.cpu_bytes is None else read_bytes(args.cpu_bytes, "--cpu-bytes"),
        gpu_blocks=args.gpu_blocks,
        disk=not args.no_disk,
        prefix_caching=args.prefix_caching,
        storage=args.storage,
        overrides={name: getattr(args, name) for name in ("disk_write", "disk_read", "gpu_rate")},
    )


def _document(server: ReplayServer, found: Sequence[FullReplay]) -> dict[str, Any]:
    return {
        "kind": "full-replay",
        "created": utc_now(),
        "environment": collect_environment(),
        "config": server.describe(),
        "partial": any(result.partial for result in found),
        "results": [result.to_dict() for result in found],
    }


def _status_console(console: Console, as_json: bool) -> Console:
    from rich.console import Console

    return Console(stderr=True) if as_json else console


@contextmanager
def _progress(console: Console, policy: str, quiet: bool) -> Iterator[OnProgress]:
    """A line that says how far it is; nothing where nobody looks, or where the trace has a bar of its own."""
    if quiet or not console.is_terminal:
        yield lambda read, finished, seconds: None
        return
    with console.status(policy) as status:
        steps = 0

        def on_progress(read: int, finished: int, seconds: float) -> None:
            nonlocal steps
            steps += 1
            if steps % _EVERY_STEPS == 0:
                status.update(
                    f"{policy}: {finished:,} of {read:,} requests read, {seconds:,.0f} s of the server's time"
                )

        yield on_progress


# --- tables ---


def _print(console: Console, server: ReplayServer, result: FullReplay) -> None:
    total = result.total()
    label = "PARTIAL RESULT: " if result.partial else ""
    how = "at the trace's own times" if result.concurrency is None else f"{result.concurrency:,} at a time"
    console.print(
        f"\n{label}{result.trace}: {total.requests:,} requests served {how} by {result.policy}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if result.partial:
        console.print(
            f"Stopped: {result.stopped_because}. {result.requests['unfinished']:,} requests were under way: what "
            "follows counts finished ones.",
            highlight=False, markup=False,
        )  # fmt: skip
    _print_tiers(console, result)
    title = "Prompt tokens by turn (known: an earlier prompt began alike); TTFT: mean"
    _print_rows(console, title, "turn", _shown_turns(result))
    if result.sessions:
        _print_rows(console, "Prompt tokens by session, the largest", "session", _shown_sessions(result))
    for line in _lines(server, result):
        console.print(f"* {line}", highlight=False, markup=False)


_TIER_LINES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("prompt tokens", "hit_tokens", "{:,}".format),
    ("share", "share", "{:.1%}".format),
    ("blocks", "capacity_blocks", "{:,}".format),
    ("used at the end", "used_blocks", "{:,}".format),
    ("most pinned", "most_pinned_blocks", "{:,}".format),
    ("bytes in", "bytes_in", format_bytes),
    ("bytes out", "bytes_out", format_bytes),
    ("refused", "refused", "{:,}".format),
    ("failures", "failures", "{:,}".format),
)


def _print_tiers(console: Console, result: FullReplay) -> None:
    rows = result.tier_rows()
    table = _table("Where prompt tokens came from", "", [row["tier"] for row in rows])
    for label, name, shown in _TIER_LINES:
        table.add_row(label, *("" if row[name] is None else shown(row[name]) for row in rows))
    console.print(table)


def _print_rows(console: Console, title: str, name: str, rows: Iterable[tuple[str, PromptTokens]]) -> None:
    table = _table(title, name, ["req.", "input", "GPU", "CPU", "disk", "computed", "hit", "TTFT s"])
    for label, tokens in rows:
        counts = (tokens.requests, tokens.input, tokens.gpu, tokens.cpu, tokens.disk, tokens.computed)
        ttft_s = tokens.ttft()["ttft_mean_s"]
        ttft = "" if ttft_s is None else f"{ttft_s:,.{2 if ttft_s < 100 else 1}f}"
        table.add_row(label, *(f"{count:,}" for count in counts), f"{tokens.hit_ratio:.0%}", ttft)
    console.print(table)


def _table(title: str, first: str, columns: Sequence[str]) -> Table:
    """Narrow, and nothing is cut off in a window that is narrower still."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def _shown_turns(result: FullReplay) -> list[tuple[str, PromptTokens]]:
    """The first ones, the rest in one row, so that the column still adds up."""
    prefix = {None: "", True: "known", False: "new"}
    ordered = sorted(result.turns.items(), key=lambda item: (item[0][0], bool(item[0][1])))
    rows = [(", ".join(filter(None, (str(turn or ""), prefix[known]))), tokens) for (turn, known), tokens in ordered]
    return _with_rest(rows, _SHOWN_TURNS + 1, lambda rest: f"{ordered[-rest][0][0]}+", result)


def _shown_sessions(result: FullReplay) -> list[tuple[str, PromptTokens]]:
    largest = sorted(result.sessions.items(), key=lambda item: -item[1].input)
    outside = PromptTokens()
    for (turn, _), tokens in result.turns.items():
        if not turn:
            outside.add(tokens)
    if outside.requests:
        largest.insert(0, ("(no session)", outside))
    return _with_rest(largest, _SHOWN_SESSIONS, lambda rest: f"{rest:,} others", result)


def _with_rest(
    rows: Sequence[tuple[str, PromptTokens]], most: int, name: Callable[[int], str], result: FullReplay
) -> list[tuple[str, PromptTokens]]:
    shown, rest = list(rows[:most]), rows[most:]
    if rest:
        together = PromptTokens()
        for _, tokens in rest:
            together.add(tokens)
        shown.append((name(len(rest)), together))
    return [*shown, ("all", result.total())]


def _lines(server: ReplayServer, result: FullReplay) -> list[str]:
    spec = server.spec
    disk = "no disk" if not spec.tiers else (
        f"disk {spec.tiers[0].write_bandwidth / 1e9:g} GB/s write, {spec.tiers[0].read_bandwidth / 1e9:g} GB/s read"
    )  # fmt: skip
    lines = [
        f"{result.seconds:,.1f} s of the server's time, {result.total().output:,} tokens answered."
        + (f" The requests came within {result.arrivals_s:,.1f} s." if result.concurrency is None else ""),
        f"Server: {spec.num_gpu_blocks:,} GPU blocks of {spec.groups[0].block_size_tokens} tokens, "
        f"{spec.num_cpu_blocks:,} CPU blocks of {format_bytes(spec.block_bytes)}, {disk}, "
        f"{spec.engine.gpu_rate:,.0f} computed tokens/s. Layout {server.layout.name}"
        + (" (assumed)" if server.layout.assumed else "")
        + ".",
        _assumed(server),
        *result.notes,
    ]
    lines += [f"{number:,} requests were not sent: {reason}." for reason, number in result.refused.items()]
    if result.recomputed_tokens:
        lines.append(f"{result.recomputed_tokens:,} tokens were computed again after preemptions, beside the table.")
    if unused := result.counts["promotions_evicted_unused"]:
        lines.append(f"{unused:,} blocks came up from disk and were evicted before anybody read them.")
    return [line for line in lines if line]


def _assumed(server: ReplayServer) -> str:
    names: Mapping[str, str] = {a.name: a.source for a in server.assumptions.values()}
    assumed = [name for name, source in names.items() if source.startswith("assumed")]
    return f"Assumed, not published: {', '.join(assumed)}." if assumed else ""
