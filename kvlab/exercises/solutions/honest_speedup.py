from collections.abc import Callable


def honest_speedup(before: Callable[[], None], after: Callable[[], None], clock: Callable[[], float]) -> float:
    """How many times faster `after()` is than `before()`, both timed here and now with `clock()`, in seconds.

    The machine is shared: a call may be disturbed, the very first one is slow, and the machine's speed may change
    half way. So run each at least 5 times, take turns, and compare the least disturbed runs.
    """
    fastest = {before: float("inf"), after: float("inf")}
    for _ in range(7):
        for call in (before, after):
            start = clock()
            call()
            fastest[call] = min(fastest[call], clock() - start)
    return fastest[before] / fastest[after]
