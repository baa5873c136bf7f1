"""`make bench`: what the policies cost against each other, and which aims that meets.

On a busy machine calls of more than a millisecond are interrupted: read those ratios from a quiet run. The recorded run
is in `data/recorded/policy-costs.json`, its text in `kvlab/policies/README.md`.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from kvlab.profiling import policy_costs
from kvlab.profiling.policy_aims import Figures
from kvlab.profiling.policy_memory import memory_of

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]
console = Console(width=200)


def test_costs_and_aims() -> None:
    costs = []
    for table in policy_costs.all_costs():
        console.print(policy_costs.table(table) + "\n", highlight=False)
        costs += table
    memory = [memory_of(name, policy_costs.NUM_BLOCKS) for name in policy_costs.LRUS]
    figures = Figures({"costs": [c._asdict() for c in costs], "bytes_a_block": [m._asdict() for m in memory]})
    for aim in figures.aims():
        console.print(f"{aim.what}: {aim.measured}: {aim.verdict}", highlight=False, soft_wrap=True)
