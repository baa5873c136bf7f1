"""The engine: continuous batching, GPU <-> CPU copies and a disk on one clock."""

from kvlab.engine.clock import CountedScheduler, MeasuredScheduler, SchedulerCosts, VirtualClock
from kvlab.engine.engine import CompletedRequest, Engine, EngineConfig, EngineStats, NoProgressError
from kvlab.engine.request import EngineRequest, RequestStatus
from kvlab.engine.workers import VirtualWorkers

__all__ = [
    "CompletedRequest",
    "CountedScheduler",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "EngineStats",
    "MeasuredScheduler",
    "NoProgressError",
    "RequestStatus",
    "SchedulerCosts",
    "VirtualClock",
    "VirtualWorkers",
]
