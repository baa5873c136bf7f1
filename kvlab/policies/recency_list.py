"""Blocks in order of use, whose idle ones are found without walking past the others.

Idea. Each use stamps a block with the next *position*, counted up from 0: `_order[position]` is its key, `_at[key]` its
position, and its old position is left behind as a gap. So the order of use is the order of positions, pinned or not. A
byte per position, `_idle[position]`, is 1 while the block is idle. Pinning and unpinning write one byte, which moves
nothing: a block that comes back is where it always was. The coldest idle block is the first 1, which `bytearray.find`
looks for at memory speed. Positions come in chunks of 4,096; `_maybe[chunk]` is 0 where a chunk surely has no idle
block, so the search skips it.

Cost. Pin, unpin: one look-up and one or two bytes. The n coldest: O(n), plus protected blocks met, plus chunks found
empty: each of those is searched once (4,096 bytes) and then marked 0 until a block in it becomes idle again, so whoever
unpinned there has paid. Even after 200,000 pins at once that is 50 searches, once. Gaps are closed a few chunks at a
time (`_close_gaps`), so no call renumbers everything. Memory: positions number at most about 4.5 a block, 9 bytes each.

Why it is right. Positions are handed out upwards and gaps are closed without reordering, so at every moment
position(a) < position(b) if and only if a was last used before b. Idle bytes are written at each change of state, and a
block takes its byte along when its position changes. A chunk is marked 0 only right after a search found no 1 in it,
and marked 1 by everything that writes a 1 into it. So the first 1 among chunks not marked 0 is the coldest idle block.

Notes:
* Weighed against it: a heap with lazy invalidation (`heap_lru`); bits in wide integers (each pin and unpin makes new
  integers); an ordered map of the idle plus a heap of those that come back (each unpin is a push); a scan that sets
  aside what it walked past (cheapest on average, but one evict pays for all pins since the last); one flat byte array
  (each search starts at the coldest pin).
"""

from collections.abc import Collection, ItemsView, Iterable, Iterator
from itertools import compress

from kvlab.base import OffloadKey
from kvlab.block_status import BlockStatus

_BITS = 12
_CHUNK = 1 << _BITS
# Gaps are closed from 3 positions a block on, 3 chunks for each new one: the sweep ends before there are 4.5 a block.
_SPARSE = 3
_SWEPT = 3 * _CHUNK
# Below this, one search for each victim is cheaper than cutting out a stretch of positions.
_FEW = 8


class RecencyList:
    """Blocks by key, used like an ordered map; iterated coldest first. Of the idle ones it is told by the two hooks."""

    def __init__(self) -> None:
        self.blocks: dict[OffloadKey, BlockStatus] = {}
        self._at: dict[OffloadKey, int] = {}
        self._order: list[OffloadKey | None] = []
        self._idle = bytearray()
        self._maybe = bytearray(1)
        self._read = self._write = 0  # positions: gaps before _write are closed, from there to _read is one gap

    def get(self, key: OffloadKey) -> BlockStatus | None:
        return self.blocks.get(key)

    def __getitem__(self, key: OffloadKey) -> BlockStatus:
        return self.blocks[key]

    def __setitem__(self, key: OffloadKey, block: BlockStatus) -> None:
        """Add a block that is not there at the hot end; idle if its count is 0."""
        position = len(self._order)
        self.blocks[key] = block
        self._at[key] = position
        self._order.append(key)
        self._idle.append(0)
        if len(self._order) % _CHUNK == 0:
            self._grown(position)
        if block.ref_cnt == 0:
            self.mark_evictable(key)

    def add_all(self, keys: Iterable[OffloadKey], blocks: Iterable[BlockStatus]) -> None:
        """Add blocks that are not there, one after the other, without a call for each."""
        resident, at, order, idle = self.blocks, self._at, self._order, self._idle
        start = len(order)
        for key, block in zip(keys, blocks, strict=True):
            resident[key] = block
            at[key] = len(order)
            order.append(key)
            idle.append(block.ref_cnt == 0)
        self._maybe[start >> _BITS] = 1
        if start >> _BITS != len(order) >> _BITS:
            self._grown(start)

    def __delitem__(self, key: OffloadKey) -> None:
        del self.blocks[key]
        position = self._at.pop(key)
        self._order[position] = None
        self._idle[position] = 0

    def pop(self, key: OffloadKey) -> BlockStatus:
        """Take a block out. KeyError if it is not there."""
        block = self.blocks[key]
        del self[key]
        return block

    def pop_all(self, keys: Iterable[OffloadKey]) -> list[tuple[OffloadKey, BlockStatus]]:
        """`pop` for many: keys with their blocks, in the order given."""
        blocks, at, order, idle = self.blocks, self._at, self._order, self._idle
        popped: list[tuple[OffloadKey, BlockStatus]] = []
        for key in keys:
            popped.append((key, blocks.pop(key)))
            position = at.pop(key)
            order[position] = None
            idle[position] = 0
        return popped

    def move_to_end(self, key: OffloadKey) -> None:
        """Make a block the hottest, whatever its count. KeyError if it is not there."""
        order, idle = self._order, self._idle
        old = self._at[key]
        position = self._at[key] = len(order)
        order.append(key)
        order[old] = None
        idle.append(idle[old])
        idle[old] = 0
        self._maybe[position >> _BITS] = 1
        if len(order) % _CHUNK == 0:
            self._grown(position)

    def move_all_to_end(self, keys: Iterable[OffloadKey]) -> None:
        """`move_to_end` for one key after the other, without a call for each. Unknown keys are ignored."""
        at, order, idle = self._at, self._order, self._idle
        start = len(order)
        for key in keys:
            old = at.get(key)
            if old is not None:
                at[key] = len(order)
                order.append(key)
                order[old] = None
                idle.append(idle[old])
                idle[old] = 0
        self._maybe[start >> _BITS] = 1
        if start >> _BITS != len(order) >> _BITS:
            self._grown(start)

    def mark_evictable(self, key: OffloadKey) -> None:
        position = self._at[key]
        self._idle[position] = 1
        self._maybe[position >> _BITS] = 1

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._idle[self._at[key]] = 0

    def mark_all_evictable(self, keys: Iterable[OffloadKey]) -> None:
        at, idle, maybe = self._at, self._idle, self._maybe
        for key in keys:
            position = at[key]
            idle[position] = 1
            maybe[position >> _BITS] = 1

    def mark_all_non_evictable(self, keys: Iterable[OffloadKey]) -> None:
        at, idle = self._at, self._idle
        for key in keys:
            idle[at[key]] = 0

    def coldest(self, n: int, protected: Collection[OffloadKey]) -> tuple[list[OffloadKey], int]:
        """The n coldest idle blocks not in `protected`, or as many as there are, and how many were looked at."""
        order, idle, maybe = self._order, self._idle, self._maybe
        found: list[OffloadKey] = []
        passed_over = 0
        chunk = maybe.find(1)
        while chunk >= 0:
            end = (chunk + 1) << _BITS
            position = idle.find(1, chunk << _BITS, end)
            if position < 0:
                maybe[chunk] = 0
            while position >= 0:
                missing = n - len(found)
                if missing < _FEW:
                    key = order[position]
                    if key in protected:
                        passed_over += 1
                    else:
                        found.append(key)  # type: ignore[arg-type]
                    position += 1
                else:
                    stretch = slice(position, min(position + missing, end))
                    keys = list(compress(order[stretch], idle[stretch]))
                    wanted = [key for key in keys if key not in protected]
                    found += wanted  # type: ignore[arg-type]
                    passed_over += len(keys) - len(wanted)
                    position = stretch.stop
                if len(found) == n:
                    return found, n + passed_over
                position = idle.find(1, position, end)
            chunk = maybe.find(1, chunk + 1)
        return found, len(found) + passed_over

    def evictable(self) -> Iterator[OffloadKey]:
        """Idle keys, coldest first, each looked for only when asked for. The list must not change meanwhile."""
        chunk = self._maybe.find(1)
        while chunk >= 0:
            end = (chunk + 1) << _BITS
            position = self._idle.find(1, chunk << _BITS, end)
            if position < 0:
                self._maybe[chunk] = 0
            while position >= 0:
                yield self._order[position]  # type: ignore[misc]
                position = self._idle.find(1, position + 1, end)
            chunk = self._maybe.find(1, chunk + 1)

    def items(self) -> ItemsView[OffloadKey, BlockStatus]:
        """In no promised order."""
        return self.blocks.items()

    def clear(self) -> None:
        RecencyList.__init__(self)

    def __contains__(self, key: object) -> bool:
        return key in self.blocks

    def __iter__(self) -> Iterator[OffloadKey]:
        return (key for key in self._order if key is not None)

    def __len__(self) -> int:
        return len(self.blocks)

    def _grown(self, start: int) -> None:
        """Positions from `start` on filled the chunk it is in, or more: open the next, close gaps once for each."""
        first, last = start >> _BITS, len(self._order) >> _BITS
        self._maybe[first + 1 :] = b"\1" * (last - first)
        for _ in range(last - first):
            self._close_gaps()

    def _close_gaps(self) -> None:
        """Move the keys of the next few chunks down to the earlier ones; after the last, cut off what is left empty."""
        order, idle, start, write = self._order, self._idle, self._read, self._write
        if not start and len(order) < _SPARSE * len(self._at) + _CHUNK:
            return
        stop = min(start + _SWEPT, len(order))
        keys = [key for key in order[start:stop] if key is not None]
        flags = bytes(compress(idle[start:stop], [key is not None for key in order[start:stop]]))
        order[start:stop] = [None] * (stop - start)
        idle[start:stop] = bytes(stop - start)
        end = write + len(keys)
        order[write:end] = keys
        idle[write:end] = flags
        self._at.update(zip(keys, range(write, end), strict=True))
        for chunk in range(write >> _BITS, (end >> _BITS) + 1):
            self._maybe[chunk] = 1
        self._read, self._write = stop, end
        if stop == len(order):
            del order[end:], idle[end:]
            self._read = self._write = 0
