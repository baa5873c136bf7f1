"""The engine: continuous batching, GPU <-> CPU copies and a disk on one clock."""

from kvlab.engine.clock import Clock, CountedScheduler, MeasuredScheduler, Scheduler, SchedulerCosts, VirtualClock
from kvlab.engine.engine import Engine
from kvlab.engine.model import StepModel, StepWork, VirtualModel, WrongBytesError
from kvlab.engine.request import Arrivals, EngineRequest, RequestStatus, SentRequest, SentRequests
from kvlab.engine.settings import CompletedRequest, EngineConfig, EngineStats, NoProgressError
from kvlab.engine.workers import VirtualWorkers, Workers

__all__ = [
    "Arrivals",
    "Clock",
    "CompletedRequest",
    "CountedScheduler",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "EngineStats",
    "MeasuredScheduler",
    "NoProgressError",
    "RequestStatus",
    "Scheduler",
    "SchedulerCosts",
    "SentRequest",
    "SentRequests",
    "StepModel",
    "StepWork",
    "VirtualClock",
    "VirtualModel",
    "VirtualWorkers",
    "Workers",
    "WrongBytesError",
]
