"""The `obj` tier: every block an object of a store that is reached over the network, or of any fsspec file system.

Stands beside `kvlab.tiering`, which uses the standard library only; `create_tier({"type": "obj", ...})` finds it.
"""

from kvlab.object_store.store import Store
from kvlab.object_store.tier import ObjectStoreTier

__all__ = ["ObjectStoreTier", "Store"]
