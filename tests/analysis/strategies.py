"""Small traces that hypothesis makes: any ids, or prefix-chained ones."""

from __future__ import annotations

from hypothesis import strategies as st

REQUESTS = st.lists(st.lists(st.integers(0, 14), max_size=8), max_size=25)
CAPACITIES = st.integers(1, 12)


@st.composite
def chained_requests(draw: st.DrawFn) -> list[list[int]]:
    """Each request walks down a tree from the root, so an id always follows the same ids."""
    numbers: dict[tuple[int, ...], int] = {}
    requests = []
    for path in draw(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=20)):
        prefixes = [tuple(path[: end + 1]) for end in range(len(path))]
        requests.append([numbers.setdefault(prefix, len(numbers)) for prefix in prefixes])
    return requests
