"""The copies between GPU blocks and CPU rows, with real bytes: handlers, streams, content stamps. Imports torch."""

from kvlab.checks import require

require("torch", extra="lab")

from kvlab.worker.base import CPU_TO_GPU, GPU_TO_CPU, OffloadingHandler, OffloadingWorker, TransferSpec
from kvlab.worker.copies import IndexCopies, SliceCopies, StagedCopies
from kvlab.worker.handler import CopyHandler, JobCancelled
from kvlab.worker.kv_caches import KVCaches, rows_of, worker_part
from kvlab.worker.make import CopyWorkers, make_workers
from kvlab.worker.streams import ThreadStreams

__all__ = [
    "CPU_TO_GPU",
    "GPU_TO_CPU",
    "CopyHandler",
    "CopyWorkers",
    "IndexCopies",
    "JobCancelled",
    "KVCaches",
    "OffloadingHandler",
    "OffloadingWorker",
    "SliceCopies",
    "StagedCopies",
    "ThreadStreams",
    "TransferSpec",
    "make_workers",
    "rows_of",
    "worker_part",
]
