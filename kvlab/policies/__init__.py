"""Cache policies: which resident block goes when room is needed. One policy a file; `registry` knows their names."""

from kvlab.policies.arc import ARCCachePolicy
from kvlab.policies.base import CachePolicy
from kvlab.policies.evictable_list_lru import EvictableListLRUCachePolicy
from kvlab.policies.full_scan_lru import FullScanLRUCachePolicy
from kvlab.policies.registry import available_policies, get_policy_class, register_policy

__all__ = [
    "ARCCachePolicy",
    "CachePolicy",
    "EvictableListLRUCachePolicy",
    "FullScanLRUCachePolicy",
    "available_policies",
    "get_policy_class",
    "register_policy",
]
