"""Content that only one block can have: written where a model would write keys and values, compared after a load.

Word w of a page of tensor t on rank r holds `stamp + ramp[t][w]`: another block's bytes, a page in the wrong tensor, a
rank's part in the other's place, a shifted or torn row all differ in every word or in some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch

from kvlab.worker.kv_caches import KVCaches, as_words

_STEP, _TENSOR, _RANK, _GROUP = 0x9E3779B97F4A7C1, 0xC2B2AE3D27D4EB4, 0x165667B19E3779F, 0x27D4EB2F165667C
_MASK = 2**63 - 1

#: (group, GPU block, stamp)
Stamped = tuple[int, int, int]


def stamp_of(content: bytes, group: int = 0) -> int:
    """A number for what a block holds: its block hash, in this group's layers."""
    return (int.from_bytes(blake2b(content, digest_size=8).digest(), "big") + group * _GROUP) & _MASK


class Stamps:
    """Of one rank. Raises ValueError if pages are not whole words of 8 bytes."""

    def __init__(self, kv: KVCaches, rank: int = 0) -> None:
        self._kv = kv
        self._words: list[torch.Tensor] = []
        self._ramps: list[torch.Tensor] = []
        for t, tensor in enumerate(kv.tensors):
            words = as_words(tensor)
            if words is None:
                raise ValueError(
                    f"KV tensor {t}: pages of {kv.page_bytes[t]} bytes are no multiple of 8, as stamps need"
                )
            first = (t * _TENSOR + rank * _RANK) & _MASK
            self._words.append(words)
            self._ramps.append(torch.arange(words.shape[1], device=words.device) * _STEP + first)

    def write(self, blocks: Sequence[Stamped]) -> None:
        """Fill these GPU blocks. In the current stream; returns before a device has done it."""
        for tensors, ids, stamps in self._by_tensors(blocks):
            for t in tensors:
                self._words[t].index_copy_(0, ids, stamps[:, None] + self._ramps[t])

    def wrong(self, blocks: Sequence[Stamped]) -> list[Stamped]:
        """Those that hold something else. Waits for the device."""
        found: list[Stamped] = []
        for tensors, ids, stamps in self._by_tensors(blocks):
            good = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
            for t in tensors:
                good &= (self._words[t].index_select(0, ids) == stamps[:, None] + self._ramps[t]).all(dim=1)
            if not bool(good.all()):
                bad = set(ids[~good].tolist())
                found += [b for b in blocks if b[1] in bad and self._kv.group_tensors[b[0]] == tensors]
        return found

    def _by_tensors(self, blocks: Sequence[Stamped]) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor]]:
        """Groups that share tensors at once: as few kernels as there are tensors."""
        device = self._kv.tensors[0].device
        sharing: dict[tuple[int, ...], list[Stamped]] = {}
        for block in blocks:
            sharing.setdefault(self._kv.group_tensors[block[0]], []).append(block)
        for tensors, some in sharing.items():
            ids = torch.tensor([block_id for _, block_id, _ in some], dtype=torch.int64).to(device)
            yield tensors, ids, torch.tensor([stamp for _, _, stamp in some], dtype=torch.int64).to(device)
