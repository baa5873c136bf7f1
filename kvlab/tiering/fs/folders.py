"""The folders of block files: each is made once, before the first file in it is opened, and remembered.

kvlab's own; vLLM asks for both folders of every file it writes.

Notes:
* There are nearly as many folders as blocks (4,096 x 256 a cache group), so they cannot all be made ahead: a block
  that comes first into its folder has it made, in one call, or in two where the folder above is not known either.
* Who has just made a folder knows that the block's file is not there, and need not ask.
* What is remembered is only a hint, a bit a folder (128 KiB a cache group). Somebody may remove a folder at any time:
  then opening a file in it fails, and `make_again` asks the disk.
"""

from __future__ import annotations

import os
from contextlib import suppress

from kvlab.base import OffloadKey, get_offload_group_idx

_FOLDER_BITS = 20
_PARENT_BITS = 12


class BlockFolders:
    """May be used from any thread: a bit that gets lost costs one more call."""

    def __init__(self) -> None:
        self._parents = bytearray(1 << _PARENT_BITS - 3)
        self._folders: dict[int, bytearray] = {}

    def make(self, path: str, key: OffloadKey) -> bool:
        """The folder of a block's file at `path`. True if it is new, so that no file can be in it. Raises OSError."""
        group = get_offload_group_idx(key)
        known = self._folders.get(group)
        if known is None:
            known = self._folders.setdefault(group, bytearray(1 << _FOLDER_BITS - 3))
        # Five hex digits of the hash: three for the folder above, two for the folder.
        number = int.from_bytes(key[:3], "big") >> 4
        if _has(known, number):
            return False
        folder = os.path.dirname(path)
        parent = number >> _FOLDER_BITS - _PARENT_BITS
        if not _has(self._parents, parent):
            _make_one(os.path.dirname(folder))
            _add(self._parents, parent)
        is_new = _make_one(folder)
        _add(known, number)
        return is_new


def make_again(path: str) -> None:
    """The folder of the file at `path`, whatever is remembered. Raises OSError."""
    _make_one(os.path.dirname(path))


def _make_one(path: str) -> bool:
    """As `os.makedirs`, the last folder first, because those above it are nearly always there. True if it is new."""
    try:
        os.mkdir(path)
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in ("", path):
            raise
        _make_one(parent)
        with suppress(FileExistsError):
            os.mkdir(path)
            return True
        return False
    except OSError:
        # Some file systems give other reasons priority over "it is there".
        if not os.path.isdir(path):
            raise
        return False


def _has(bits: bytearray, number: int) -> bool:
    return bool(bits[number >> 3] >> (number & 7) & 1)


def _add(bits: bytearray, number: int) -> None:
    bits[number >> 3] |= 1 << (number & 7)
