"""Cache policies: which resident block goes when room is needed. One policy a file; `registry` knows their names."""

from kvlab.policies.arc import ARCCachePolicy
from kvlab.policies.base import CachePolicy
from kvlab.policies.cost_aware import CostAwareCachePolicy
from kvlab.policies.evictable_list_arc import EvictableListARCCachePolicy
from kvlab.policies.evictable_list_lru import EvictableListLRUCachePolicy
from kvlab.policies.full_scan_lru import FullScanLRUCachePolicy
from kvlab.policies.heap_lru import HeapLRUCachePolicy
from kvlab.policies.logical_recency_lru import LogicalRecencyLRUCachePolicy
from kvlab.policies.prefix_position import PrefixPositionCachePolicy
from kvlab.policies.registry import available_policies, get_policy_class, register_policy
from kvlab.policies.retention import RetentionCachePolicy
from kvlab.policies.session_superseded import SessionSupersededCachePolicy
from kvlab.policies.tiny_lfu import TinyLFUCachePolicy

__all__ = [
    "ARCCachePolicy",
    "CachePolicy",
    "CostAwareCachePolicy",
    "EvictableListARCCachePolicy",
    "EvictableListLRUCachePolicy",
    "FullScanLRUCachePolicy",
    "HeapLRUCachePolicy",
    "LogicalRecencyLRUCachePolicy",
    "PrefixPositionCachePolicy",
    "RetentionCachePolicy",
    "SessionSupersededCachePolicy",
    "TinyLFUCachePolicy",
    "available_policies",
    "get_policy_class",
    "register_policy",
]
