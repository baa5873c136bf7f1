"""A Result on the terminal: the published table beside ours, the ratio, and where the time went."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from kvlab.results import (
    CALL_KINDS,
    ArmResult,
    Beside,
    Result,
    Table,
    assumed_lines,
    beside_notes,
    beside_table,
    derived_table,
    guidellm_table,
    ratio_lines,
    run_length_table,
    value_at,
)

MOMENTS = 8


def print_result(result: Result, console: Console, beside: Beside | None = None) -> None:
    """Everything `kvlab reproduce` says at its end, with the recorded Results of `beside` next to it."""
    console.print()
    if result.partial:
        console.print("[bold]PARTIAL: this run did not reach its end; rates are over what was run.[/]")
    _print_table(result, console)
    for line in ratio_lines(result):
        console.print(f"  {line}", highlight=False)
    if beside is not None:
        _print_beside(result, beside, console)
    console.print()
    console.print(where_the_time_went(result))
    console.print(blocks_inspected(result))
    for arm in result.arms[:2] if result.kind == "reproduce" else ():
        console.print(block_states(arm, result.clock))
    for note in (*assumed_lines(result), *result.notes):
        console.print(f"  {note}", highlight=False, style="dim")


def _print_table(result: Result, console: Console) -> None:
    table, derived = guidellm_table(result), derived_table(result)
    for part in (table, derived):
        console.print(_rich(part, two_line_heads=part is table))
    for note in table.notes:
        console.print(f"  {note}", highlight=False, style="dim")


def _print_beside(result: Result, beside: Beside, console: Console) -> None:
    console.print()
    tables = (beside_table(result, beside), run_length_table(result, beside))
    for table in tables:
        if table is not None:
            console.print(_rich(table))
    for line in beside_notes(result, beside):
        console.print(f"  {line}", highlight=False)


def _rich(table: Table, two_line_heads: bool = True) -> RichTable:
    rich = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for i, column in enumerate(table.columns):
        # Headers in two lines leave room for whole figures in 80 columns.
        head = column.replace(" ", "\n", 1) if two_line_heads else column
        text = i < table.text_columns
        rich.add_column(head, justify="left" if text else "right", no_wrap=not text)
    for row in table.rows:
        rich.add_row(*row)
    return rich


def where_the_time_went(result: Result) -> RichTable:
    """Scheduler seconds by kind of call, and what the rest of the run's seconds were."""
    table = RichTable(title=f"Where the seconds went ({result.clock} seconds)", title_justify="left")
    table.add_column("")
    for arm in result.arms:
        table.add_column(arm.name, justify="right")

    def row(label: str, kind: str, source: str) -> None:
        values = [getattr(arm, source).get(kind, 0.0) for arm in result.arms]
        if any(values):
            table.add_row(label, *(f"{v:,.3f}" for v in values))

    for kind in CALL_KINDS:
        row(f"scheduler: {kind}", kind, "seconds")
    row("  of which in evict", "evict", "seconds")
    row("GPU: fixed part of a step", "gpu_fixed", "step_seconds")
    row("GPU: computed tokens", "gpu_compute", "step_seconds")
    row("waiting for copies and disk", "wait", "step_seconds")
    table.add_section()
    row("longest step", "longest_step", "step_seconds")
    table.add_row("steps", *(f"{arm.steps:,}" for arm in result.arms))
    return table


def blocks_inspected(result: Result) -> RichTable:
    table = RichTable(title="Blocks inspected per evict call", title_justify="left")
    for column in ("", "evict calls", "median", "p99", "max", "in all"):
        table.add_column(column, justify="right" if column else "left")
    for arm in result.arms:
        values = (arm.evict_calls, *(arm.inspected_percentile(p) for p in (50, 99, 100)), inspected_in_all(arm))
        table.add_row(arm.name, *("-" if v is None else f"{v:,}" for v in values))
    return table


def inspected_in_all(arm: ArmResult) -> int:
    return sum(blocks * calls for blocks, calls in arm.inspected_per_evict.items())


def block_states(arm: ArmResult, clock: str = "virtual") -> RichTable:
    """CPU blocks by state at a few moments."""
    names = ("pinned", "pending", "idle", "free", "running", "waiting")
    table = RichTable(title=f"CPU blocks over time, {arm.name}", title_justify="left")
    for column in (f"{clock} s", *names):
        table.add_column(column, justify="right")
    for i in range(1, MOMENTS + 1):
        moment = arm.duration_s * i / MOMENTS
        values = [value_at(arm, name, moment) for name in names]
        table.add_row(f"{moment:.1f}", *("-" if v is None else f"{v:,.0f}" for v in values))
    return table
