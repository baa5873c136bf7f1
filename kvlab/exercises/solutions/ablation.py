from itertools import permutations
from math import prod

Setting = tuple[bool, bool, bool]


def ablation(rate: dict[Setting, float]) -> list[float]:
    """The factor that each of three changes brought: [list, guard, slots].

    `rate[list, guard, slots]` is the throughput with each change on (True) or off, for all eight settings. What a
    change brings depends on which others are on already. So take all six orders of switching them on, one after the
    other, and give for each change the geometric mean of its six factors. Their product is the whole gain.
    """
    factors: list[list[float]] = [[], [], []]
    for order in permutations(range(3)):
        on = [False, False, False]
        for change in order:
            before = rate[on[0], on[1], on[2]]
            on[change] = True
            factors[change].append(rate[on[0], on[1], on[2]] / before)
    return [prod(six) ** (1 / 6) for six in factors]
