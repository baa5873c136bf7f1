from kvlab.base import OffloadKey, ReqContext
from kvlab.manager import CPUOffloadingManager


def worst_state(manager: CPUOffloadingManager, keys: list[OffloadKey], request: ReqContext) -> None:
    """Bring an empty manager into the state in which storing one more block is dearest for the full scan.

    `manager` has as many slots as there are `keys`; `request` is what its calls want as their last argument. Use
    only `lookup prepare_store complete_store prepare_load complete_load touch`. Afterwards the check stores one new
    key: it must be stored, and the one `evict` behind it must look at 10,000 blocks or more.
    """
    manager.prepare_store(keys, request)
    manager.complete_store(keys, request)
    manager.prepare_load(keys[:-1], request)
