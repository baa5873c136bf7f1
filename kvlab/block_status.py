"""The record of one resident block, written four ways: two integers, a reference count and a slot number.

Mirrors `BlockStatus` in `vllm/v1/kv_offload/cpu/policies/base.py` (0.24; `ChunkStatus` from 0.30). Nothing is left out.

Notes:
* vLLM uses the ctypes record in every release from 0.21 to 0.33. PR #46216 proposed slots; they never shipped.
* ctypes looks like the compact one (12 bytes of data) and is the largest: the object around the data weighs more.
* The count does not say who reads: GPU loads and writes to lower tiers both add one.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvlab.checks import unknown_name


class BlockStatus(Protocol):
    """`ref_cnt`: -1 being written, 0 idle (the only state that may be evicted), n > 0 read by n transfers.
    `block_id`: slot of the CPU tier, 0 <= block_id < num_blocks."""

    ref_cnt: int
    block_id: int

    @property
    def is_ready(self) -> bool:
        """Whether the data is there to be read: `ref_cnt >= 0`."""


class _Readable:
    """What the four records share. Empty slots, so that a subclass alone decides whether it has a `__dict__`."""

    __slots__ = ()
    ref_cnt: int
    block_id: int

    @property
    def is_ready(self) -> bool:
        return self.ref_cnt >= 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(block_id={self.block_id}, ref_cnt={self.ref_cnt}: {describe_state(self)})"


def describe_state(block: BlockStatus | None) -> str:
    """In words: `being written`, `idle`, `pinned by n`, or `not resident` for None."""
    if block is None:
        return "not resident"
    if block.ref_cnt < 0:
        return "being written"
    return f"pinned by {block.ref_cnt}" if block.ref_cnt else "idle"


class CtypesBlockStatus(_Readable, ctypes.Structure):
    """vLLM's record. Each read builds a Python int from C memory, each write goes back through a descriptor."""

    _fields_ = [("ref_cnt", ctypes.c_int32), ("block_id", ctypes.c_int64)]

    def __init__(self, block_id: int) -> None:
        super().__init__()
        self.ref_cnt = -1
        self.block_id = block_id


class PlainBlockStatus(_Readable):
    """An ordinary class: attributes live in the instance's dictionary."""

    def __init__(self, block_id: int) -> None:
        self.ref_cnt = -1
        self.block_id = block_id


class SlotsBlockStatus(_Readable):
    """The record PR #46216 proposed: two fixed places, no dictionary."""

    __slots__ = ("block_id", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.ref_cnt = -1
        self.block_id = block_id


@dataclass(slots=True, eq=False, repr=False)
class DataclassBlockStatus(_Readable):
    """Slots again, with a generated `__init__`. `eq=False`: two records are never equal, as with the others."""

    block_id: int
    ref_cnt: int = field(default=-1, init=False)


BLOCK_STATUS: dict[str, Callable[[int], BlockStatus]] = {
    "ctypes": CtypesBlockStatus,
    "plain": PlainBlockStatus,
    "slots": SlotsBlockStatus,
    "dataclass": DataclassBlockStatus,
}


def get_block_status(name_or_class: str | Callable[[int], BlockStatus]) -> Callable[[int], BlockStatus]:
    """The record class of that name; anything callable is taken as it is. ValueError for an unknown name."""
    if callable(name_or_class):
        return name_or_class
    if name_or_class not in BLOCK_STATUS:
        raise unknown_name("block_status", name_or_class, BLOCK_STATUS)
    return BLOCK_STATUS[name_or_class]
