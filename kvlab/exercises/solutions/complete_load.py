from kvlab.base import OffloadingStateError, OffloadKey
from kvlab.manager import CPUOffloadingManager


def complete_load(manager: CPUOffloadingManager, keys: list[OffloadKey]) -> None:
    """End one read of each key (a key may be there more than once): what `prepare_load` did, undone.

    Use `manager.cache_policy` (`get`, `mark_evictable`), `block.ref_cnt` and the count `manager.num_evictable`.
    Raises OffloadingStateError if a key is not resident or has fewer readers than the call ends. Then nothing at all
    has changed.
    """
    for key in set(keys):
        block = manager.cache_policy.get(key)
        if block is None or block.ref_cnt < keys.count(key):
            raise OffloadingStateError(f"nobody reads {key!r} that often")
    for key in keys:
        block = manager.cache_policy.get(key)
        assert block is not None
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            manager.num_evictable += 1
            manager.cache_policy.mark_evictable(key)
