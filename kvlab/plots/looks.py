"""One policy's evict calls by the number of blocks they looked at: what share of the calls, and what share of the work.

Notes:
* A histogram of calls alone hides the scan's cost: most calls are cheap. The second row of bars is where the work is.
"""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from kvlab.plots.scans import COUNTED
from kvlab.plots.style import OTHER_COLOUR, POLICY_COLOURS, finish

#: Calls that look at more blocks than this are told of in the title.
MANY = 100


def calls_and_looks(inspected_per_evict: Mapping[int, int], policy: str, more: str = "") -> go.Figure:
    """`inspected_per_evict[n]`: evict calls that looked at n blocks, as in `ManagerStats`. `more` ends the caption."""
    bins = _by_decade(inspected_per_evict)
    calls, looks = sum(often for often, _ in bins.values()), sum(seen for _, seen in bins.values())
    figure = go.Figure()
    colour = POLICY_COLOURS.get(policy, OTHER_COLOUR)
    for name, ink, total, values in (
        ("share of the evict calls", "#6B7280", calls, [often for often, _ in bins.values()]),
        ("share of the blocks inspected", colour, looks, [seen for _, seen in bins.values()]),
    ):
        shares = [100 * value / total if total else 0.0 for value in values]
        figure.add_bar(
            x=list(bins),
            y=shares,
            name=name,
            marker={"color": ink},
            text=[f"{share:.3g} %" if share >= 0.05 else "< 0.1 %" if share else "" for share in shares],
            textposition="outside",
            textfont={"color": ink, "size": 13},
            cliponaxis=False,
        )
    figure.update_xaxes(title="blocks inspected by one evict call", type="category")
    figure.update_yaxes(title="share (%)", range=[0, 108])
    many = {n: often for n, often in inspected_per_evict.items() if n > MANY}
    title = "No block was evicted"
    if calls:
        share_of_calls = 100 * sum(many.values()) / calls
        share_of_looks = 100 * sum(n * often for n, often in many.items()) / looks if looks else 0.0
        title = (
            f"{policy}: the {share_of_calls:.2g} % of the evict calls that look at more than {MANY} blocks "
            f"make {share_of_looks:.3g} % of the work"
        )
    key = [("share of the evict calls", "#6B7280"), ("share of the blocks inspected", colour)]
    return finish(figure, title, f"{COUNTED} {more}".strip(), right=40, key=key)


def _by_decade(inspected_per_evict: Mapping[int, int]) -> dict[str, tuple[int, int]]:
    """ "1", "2 to 10", "11 to 100" ... -> (calls, blocks inspected by them), up to the last that is not empty."""
    bins: dict[str, tuple[int, int]] = {}
    low, high = 0, 1
    while not bins or low <= max(inspected_per_evict, default=0):
        inside = {n: often for n, often in inspected_per_evict.items() if low <= n <= high}
        name = f"{low:,} to {high:,}" if low else "at most 1"
        bins[name] = sum(inside.values()), sum(n * often for n, often in inside.items())
        low, high = high + 1, 10 * high
    return bins
