"""CPU tier, secondary tiers, and the manager that moves blocks between them."""

from kvlab.tiering.base import JobMetadata, JobResult, SecondaryTierManager
from kvlab.tiering.example import ExampleTier
from kvlab.tiering.failures import SeededFailures
from kvlab.tiering.manager import TieringOffloadingManager
from kvlab.tiering.primary import CPUPrimaryTierOffloadingManager
from kvlab.tiering.registry import available_tiers, get_tier_class, register_tier
from kvlab.tiering.virtual import VirtualTier

__all__ = [
    "CPUPrimaryTierOffloadingManager",
    "ExampleTier",
    "JobMetadata",
    "JobResult",
    "SecondaryTierManager",
    "SeededFailures",
    "TieringOffloadingManager",
    "VirtualTier",
    "available_tiers",
    "get_tier_class",
    "register_tier",
]
