"""Tiers below the CPU tier, and the manager that writes through to them and promotes from them.

Three hops, three pairs of words: *store* and *load* are GPU to CPU and back, *write* and *read* are what a secondary
tier does with the CPU tier's slots; a write down is a *cascade*, a read up a *promotion*. A cold hit on disk therefore
takes three steps of the scheduler: the existence check, the promotion, the load.
"""

from kvlab.tiering.backpressure import BackPressure, DropAll, DropProportionally, EMADetector
from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.example import ExampleTier
from kvlab.tiering.failures import SeededFailures
from kvlab.tiering.jobs import InFlight
from kvlab.tiering.manager import TieringOffloadingManager
from kvlab.tiering.primary import CPUPrimaryTierOffloadingManager
from kvlab.tiering.registry import available_tiers, create_tier, get_tier_class, register_tier
from kvlab.tiering.virtual import VirtualTier

register_tier("example", ExampleTier)
register_tier("virtual", VirtualTier)
# Imported at first use: it locks files, which Windows cannot.
register_tier("fs", "kvlab.tiering.fs:FileSystemTier")
# Outside this package, which uses the standard library only.
register_tier("obj", "kvlab.object_store:ObjectStoreTier")

__all__ = [
    "BackPressure",
    "CPUPrimaryTierOffloadingManager",
    "DropAll",
    "DropProportionally",
    "EMADetector",
    "ExampleTier",
    "InFlight",
    "JobMetadata",
    "JobResult",
    "SecondaryTierManager",
    "SeededFailures",
    "TieringOffloadingManager",
    "VirtualTier",
    "available_tiers",
    "create_tier",
    "get_tier_class",
    "register_tier",
]
