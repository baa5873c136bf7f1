"""Traces of real workloads: read what others publish, one interface for all, and write Mooncake JSONL.

`load(path)` gives a `Trace`: an iterable of `TraceRequest` with `block_tokens`. Names of the formats: `FORMATS`.
"""

from kvlab.traces.describe import TraceSummary, describe
from kvlab.traces.export import export
from kvlab.traces.formats import FORMATS
from kvlab.traces.record import RequestRecorder
from kvlab.traces.request import TraceError, TraceRequest
from kvlab.traces.trace import Trace, load, requests_of

__all__ = [
    "FORMATS",
    "RequestRecorder",
    "Trace",
    "TraceError",
    "TraceRequest",
    "TraceSummary",
    "describe",
    "export",
    "load",
    "requests_of",
]
