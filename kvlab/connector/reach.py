"""How much of a stored prompt a lookup can reach: matching goes front to back, so what follows a hole is useless.

kvlab's own; vLLM has no such count.

Notes:
* Nothing is counted, promoted or made recent by asking: `is_there` is a plain question, see `resident`.
* A key stands for a block and everything before it, so a block that one prompt cannot reach no other can either.
* For groups with full attention. A sliding-window group needs its last window only, and no block before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvlab.base import OffloadKey
from kvlab.manager import CPUOffloadingManager

IsThere = Callable[[OffloadKey], bool]


@dataclass(frozen=True, slots=True)
class PrefixReach:
    """Of a prompt of `blocks` full blocks: `hits` from the front, `holes` (indices of blocks that are missing before
    the last one stored), `unreachable` blocks stored behind the first hole."""

    blocks: int
    hits: int
    holes: tuple[int, ...]
    unreachable: int

    def __str__(self) -> str:
        found = f"{self.hits} of {self.blocks} blocks found"
        if not self.holes:
            return found
        shown = ", ".join(map(str, self.holes[:4])) + (", ..." if len(self.holes) > 4 else "")
        behind = "1 block" if self.unreachable == 1 else f"{self.unreachable} blocks"
        return f"{found}; hole at {shown}, {behind} unreachable"


def prefix_reach(keys: Sequence[OffloadKey], is_there: IsThere) -> PrefixReach:
    """`keys`: a prompt's, in its order, of one group."""
    there = [index for index, key in enumerate(keys) if is_there(key)]
    hits = next((index for index, found in enumerate(there) if index != found), len(there))
    stored = set(there)
    holes = tuple(index for index in range(there[-1] if there else 0) if index not in stored)
    return PrefixReach(len(keys), hits, holes, len(there) - hits)


def unreachable_keys(prompts: Iterable[Sequence[OffloadKey]], is_there: IsThere) -> set[OffloadKey]:
    """Blocks of these prompts that are stored behind a hole: they take room and can never be hit."""
    found: set[OffloadKey] = set()
    for keys in prompts:
        rest = iter(keys)
        if any(not is_there(key) for key in rest):  # stops at the first hole
            found.update(key for key in rest if is_there(key))
    return found


def resident(manager: CPUOffloadingManager) -> IsThere:
    """Whether a block is in this CPU tier, being written or not."""
    get = manager.cache_policy.get
    return lambda key: get(key) is not None
