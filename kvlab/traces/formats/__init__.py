"""The trace formats, one a file. Order matters: the first that matches a first line wins."""

from __future__ import annotations

from kvlab.traces.formats.azure import Azure
from kvlab.traces.formats.base import TraceFormat
from kvlab.traces.formats.kvcache_simulator import KVCacheSimulator
from kvlab.traces.formats.lmcache_agent import LMCacheAgent
from kvlab.traces.formats.lmcache_lookup import LMCacheLookup
from kvlab.traces.formats.mooncake import Mooncake
from kvlab.traces.formats.oracle_general import OracleGeneral
from kvlab.traces.formats.qwen_bailian import QwenBailian
from kvlab.traces.formats.ragpulse import RAGPulse
from kvlab.traces.formats.weka import Weka

__all__ = ["FORMATS", "TraceFormat", "Weka"]

_ALL: tuple[type[TraceFormat], ...] = (
    QwenBailian,
    KVCacheSimulator,
    RAGPulse,
    Mooncake,
    LMCacheLookup,
    LMCacheAgent,
    Weka,
    Azure,
    OracleGeneral,
)
FORMATS: dict[str, type[TraceFormat]] = {kind.name: kind for kind in _ALL}
