"""What the policies were meant to cost, and what a recorded run says: text for `kvlab/policies/README.md`.

    python -m kvlab.profiling.policy_aims data/recorded/policy-costs.json

kvlab's own; it mirrors no vLLM file.

Notes:
* An aim over many cells (sizes, places) is met only if every cell meets it; how many do stands beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from kvlab.profiling.policy_costs import KINDS, PLACES, SIZES

LIST, ROW, HEAP, SCAN = "evictable_list_lru", "logical_recency_lru", "heap_lru", "full_scan_lru"
LIST_ARC, ARC = "evictable_list_arc", "arc"
WITHIN, FASTER = 1.5, 3.0
Record = dict[str, Any]
Place = tuple[float, bool]


class Aim(NamedTuple):
    """`measured`: lowest and highest of the cells, in words; `met` of `cells` cells meet it."""

    what: str
    measured: str
    met: int
    cells: int

    @property
    def verdict(self) -> str:
        return "met" if self.met == self.cells else f"met in {self.met} of {self.cells} cells"


class Figures:
    """A record of `policy_costs`, read by what was called. KeyError for what is not recorded."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._rows = {
            (row["policy"], row["kind"], row["blocks"], (row["pinned"], row["scattered"])): row
            for row in record["costs"]
        }

    def ns(self, policy: str, kind: str, blocks: int, place: Place) -> float:
        """ns a block, the median of the rounds."""
        return float(self._rows[policy, kind, blocks, place]["ns"])

    def quotient(self, above: str, below: str, kind: str, blocks: int, place: Place) -> float:
        """One policy's cost over another's, from their ratios to a third within the same rounds."""
        ratios = [float(self._rows[policy, kind, blocks, place]["ratio"]) for policy in (above, below)]
        return ratios[0] / ratios[1]

    def quotients(self, above: str, below: str, kind: str, sizes: Iterable[int] = tuple(SIZES)) -> list[float]:
        """`quotient` for each of the sizes, in all places."""
        return [self.quotient(above, below, kind, n, place) for n in sizes for place in PLACES]

    def growth(self, policy: str) -> list[float]:
        """An eviction's cost over the list's with blocks pinned, over the same with nothing pinned: what pins add."""
        nothing, *others = PLACES
        without = {n: self.quotient(policy, LIST, "evict", n, nothing) for n in SIZES}
        return [self.quotient(policy, LIST, "evict", n, place) / without[n] for n in SIZES for place in others]

    def aims(self) -> list[Aim]:
        """Every aim, in the order of the text."""
        kinds = ("evict", "pin", "unpin")
        found = [
            _at_most(f"`{ROW}`: {kind} within {WITHIN} times `{LIST}`", self.quotients(ROW, LIST, kind))
            for kind in kinds
        ]
        for kind in kinds:
            cells = self.quotients(HEAP, ROW, kind)
            met = sum(cell >= FASTER for cell in cells)
            found.append(Aim(f"`{ROW}`: {kind} {FASTER:.0f} times as fast as `{HEAP}`", span(cells), met, len(cells)))
        for name, scan in ((ROW, SCAN), (LIST_ARC, ARC)):
            what = f"`{name}`: evict behind pins within {WITHIN} times without, where `{LIST}` stays at 1"
            beside = f" (`{scan}`: up to {_figure(max(self.growth(scan)))})"
            found.append(_at_most(what, self.growth(name), beside))
        return [*found, self._memory()]

    def _memory(self) -> Aim:
        of = {row["policy"]: row for row in self.record["bytes_a_block"]}
        both = [(of[ROW][state], of[HEAP][state]) for state in ("filled", "most")]
        text = ", ".join(f"{own:.0f} against {heap:.0f} bytes a block" for own, heap in both)
        met = sum(own <= heap for own, heap in both)
        return Aim(f"`{ROW}`: no more memory than `{HEAP}` (filled, at most)", text, met, len(both))


def span(cells: list[float]) -> str:
    """Lowest and highest, as the texts give them: one digit after the point below 10; one figure where they agree."""
    low, high = _figure(min(cells)), _figure(max(cells))
    return low if low == high else f"{low} to {high}"


def _at_most(what: str, cells: list[float], beside: str = "") -> Aim:
    return Aim(what, span(cells) + beside, sum(cell <= WITHIN for cell in cells), len(cells))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def markdown(record: Record) -> str:
    """The aims and three tables of ratios, with the machine and the day they are of."""
    machine, figures = record["environment"], Figures(record)
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    lines = [
        f"Measured on {record['created'][:10]} ({where}): {record['num_blocks']:,} blocks,",
        f"medians of {record['rounds']} rounds in which the policies take turns.",
        "",
        "| aim | lowest to highest measured | |",
        "|---|---|---|",
        *(f"| {aim.what} | {aim.measured} | {aim.verdict} |" for aim in figures.aims()),
    ]
    for above, below, kinds in ((ROW, LIST, KINDS), (HEAP, ROW, KINDS), (LIST_ARC, ARC, ("evict", "touch"))):
        lines += ["", f"`{above}` over `{below}`, ns a block:", "", *_ratios(figures, above, below, kinds)]
    lines += ["", f"A pin or unpin is nothing to `{ARC}`, which walks instead; `{LIST_ARC}` pays, ns a block:", ""]
    lines += _table(("pin", "unpin"), lambda *at: f"{figures.ns(LIST_ARC, *at):.0f}")
    return "\n".join(lines) + "\n"


def _ratios(figures: Figures, above: str, below: str, kinds: Iterable[str]) -> list[str]:
    def shown(kind: str, n: int, place: Place) -> str:
        ratio = figures.quotient(above, below, kind, n, place)
        return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.5f}"

    return _table(kinds, shown)


def _table(kinds: Iterable[str], shown: Callable[[str, int, Place], str]) -> list[str]:
    places = [f"{share:.0%} pinned{', scattered' if scattered else ''}" for share, scattered in PLACES]
    lines = [f"| call | blocks | {' | '.join(places)} |", f"|---|--:|{'--:|' * len(PLACES)}"]
    for kind in kinds:
        for n in SIZES:
            lines.append(f"| {kind} | {n} | {' | '.join(shown(kind, n, place) for place in PLACES)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="the text that a recorded run of policy_costs gives")
    parser.add_argument("record", type=Path)
    print(markdown(json.loads(parser.parse_args().record.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
