"""The GPU's work of a step, for real: bf16 matrix products that take as long as asked, and the blocks they fill.

Notes:
* On CUDA the number of products follows from what one was measured to take when this was made. On the CPU it is one
  small product: a step then takes what it takes, and no GPU time is played.
* All ranks of a tensor-parallel model work at the same time, so the products are done once, the blocks filled on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from kvlab.device import Device
from kvlab.worker.kv_caches import KVCaches
from kvlab.worker.stamps import Stamped, Stamps

_CUDA_SIZE, _CPU_SIZE = 4096, 64
_WARM_UP, _TRIALS = 10, 20


class Compute:
    """`kv_caches[r]` is rank r's; `product_s`: seconds of one matrix product, 0.0 on the CPU."""

    def __init__(self, kv_caches: Sequence[KVCaches], device: Device) -> None:
        self._stamps = [Stamps(kv, rank) for rank, kv in enumerate(kv_caches)]
        self._device = device
        size = _CUDA_SIZE if device.is_cuda else _CPU_SIZE
        self._a = torch.randn(size, size, dtype=torch.bfloat16, device=device.name)
        self._b = torch.randn(size, size, dtype=torch.bfloat16, device=device.name)
        self._out = torch.empty_like(self._a)
        self.product_s = self._measure() if device.is_cuda else 0.0

    def run(self, seconds: float, blocks: Sequence[Stamped]) -> float:
        """Fill the blocks and compute for about `seconds`; returns when it is done, with the seconds it took."""
        started = perf_counter()
        for stamps in self._stamps:
            stamps.write(blocks)
        for _ in range(max(1, round(seconds / self.product_s)) if self.product_s else 1):
            torch.mm(self._a, self._b, out=self._out)
        self._wait()
        return perf_counter() - started

    def wrong(self, blocks: Sequence[Stamped]) -> list[tuple[int, Stamped]]:
        """(rank, block) of every block that does not hold its stamp."""
        return [(rank, block) for rank, stamps in enumerate(self._stamps) for block in stamps.wrong(blocks)]

    def _wait(self) -> None:
        if self._device.is_cuda:
            torch.cuda.current_stream(self._a.device).synchronize()

    def _measure(self) -> float:
        for _ in range(_WARM_UP):
            torch.mm(self._a, self._b, out=self._out)
        self._wait()
        started = perf_counter()
        for _ in range(_TRIALS):
            torch.mm(self._a, self._b, out=self._out)
        self._wait()
        return (perf_counter() - started) / _TRIALS
