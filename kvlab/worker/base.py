"""What a worker does for the connector: start copies between GPU blocks and CPU rows, and say when they have ended.

Mirrors `vllm/v1/kv_offload/worker/worker.py` (0.24): one `OffloadingHandler` a direction, an `OffloadingWorker` over
both. Added: `cancel`, for a job whose end nobody reports.

Notes:
* A store is GPU to CPU, a load CPU to GPU; the two directions run beside each other, jobs of one direction in the
  order in which they were submitted.
* Results come in that order too: a job is never reported before one submitted earlier in its direction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from time import perf_counter

from kvlab.base import CPULoadStoreSpec, GPULoadStoreSpec, OffloadingStateError, TransferResult

#: (source, destination)
TransferSpec = tuple[GPULoadStoreSpec, CPULoadStoreSpec] | tuple[CPULoadStoreSpec, GPULoadStoreSpec]

GPU_TO_CPU = ("GPU", "CPU")
CPU_TO_GPU = ("CPU", "GPU")


class OffloadingHandler(ABC):
    """Copies of one direction, `transfer_type`."""

    transfer_type: tuple[str, str]

    @abstractmethod
    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Start a copy and return at once. Raises ValueError for blocks that do not fit together or do not exist."""

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Jobs that ended since the last call, in the order of their submission, each once."""

    @abstractmethod
    def wait(self, job_ids: Collection[int] | None, timeout_s: float | None = None) -> bool:
        """Return when these jobs (unknown ones are skipped, None: all) have ended, or after so many seconds; whether
        they have ended. They are still reported."""

    @abstractmethod
    def cancel(self, job_id: int) -> bool:
        """True: this job moves no byte any more, because it has ended or because it had not begun and now never will.
        False: it is in the middle of its copy. A job cancelled before it began is reported as failed."""

    @property
    @abstractmethod
    def num_in_flight(self) -> int:
        """Jobs not reported yet."""

    def shutdown(self) -> None:
        """Wait for what runs, release streams and threads."""
        return


class OffloadingWorker:
    """One rank: a handler for each direction. Raises ValueError for two handlers of one direction."""

    def __init__(self, *handlers: OffloadingHandler) -> None:
        self._handlers: dict[tuple[str, str], OffloadingHandler] = {}
        for handler in handlers:
            if handler.transfer_type in self._handlers:
                raise ValueError(f"two handlers for {' to '.join(handler.transfer_type)}: allowed is one a direction")
            self._handlers[handler.transfer_type] = handler

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        direction = GPU_TO_CPU if isinstance(spec[0], GPULoadStoreSpec) else CPU_TO_GPU
        handler = self._handlers.get(direction)
        if handler is None:
            raise OffloadingStateError(f"copy job {job_id}: no handler for {' to '.join(direction)}")
        return handler.transfer_async(job_id, spec)

    def get_finished(self) -> list[TransferResult]:
        return [result for handler in self._handlers.values() for result in handler.get_finished()]

    def wait(self, job_ids: Collection[int] | None, timeout_s: float | None = None) -> bool:
        """As the handlers'; `timeout_s` for all together."""
        deadline = None if timeout_s is None else perf_counter() + timeout_s
        return all(
            handler.wait(job_ids, None if deadline is None else max(0.0, deadline - perf_counter()))
            for handler in self._handlers.values()
        )

    def cancel(self, job_id: int) -> bool:
        return all(handler.cancel(job_id) for handler in self._handlers.values())

    @property
    def num_in_flight(self) -> int:
        return sum(handler.num_in_flight for handler in self._handlers.values())

    def shutdown(self) -> None:
        for handler in self._handlers.values():
            handler.shutdown()
