from collections.abc import Callable, Sequence

from kvlab.base import LookupResult


def tiered_lookup(
    ref_cnt: int | None, tiers: Sequence[Callable[[], LookupResult]], promote: Callable[[int], bool]
) -> LookupResult:
    """What the tiering manager answers for one key: HIT, HIT_PENDING, RETRY or MISS.

    `ref_cnt` is the key's in the CPU tier, None if it is not there: a readable block is a HIT, one that is being
    written a HIT_PENDING. Only without it are the tiers asked, in order, as `tiers[i]()`: HIT, MISS or RETRY ("not
    known yet"). The first HIT ends the search: `promote(i)` starts the copy into the CPU tier. It gives True, and then
    the answer is HIT_PENDING, or False if there is no slot to be had, and then it is a MISS.
    Without any HIT the answer is RETRY if some tier does not know yet, else MISS.
    """
    if ref_cnt is not None:
        return LookupResult.HIT if ref_cnt >= 0 else LookupResult.HIT_PENDING
    answer = LookupResult.MISS
    for index, ask in enumerate(tiers):
        found = ask()
        if found is LookupResult.HIT:
            return LookupResult.HIT_PENDING if promote(index) else LookupResult.MISS
        if found is LookupResult.RETRY:
            answer = LookupResult.RETRY
    return answer
