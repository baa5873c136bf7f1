"""Every policy once more, as plainly as its definition reads: lists, searches, no care for time. Each gives hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Model = Callable[[Sequence[int], int], int]


def fifo(references: Sequence[int], capacity: int) -> int:
    queue: list[int] = []
    hits = 0
    for block in references:
        if block in queue:
            hits += 1
            continue
        if len(queue) == capacity:
            queue.pop(0)
        queue.append(block)
    return hits


def lru(references: Sequence[int], capacity: int) -> int:
    queue: list[int] = []
    hits = 0
    for block in references:
        if block in queue:
            queue.remove(block)
            hits += 1
        elif len(queue) == capacity:
            queue.pop(0)
        queue.append(block)
    return hits


def clock(references: Sequence[int], capacity: int) -> int:
    """The ring with a hand: the victim's place is taken by the new block, which the hand then passes."""
    ring: list[int] = []
    used: set[int] = set()
    hand = hits = 0
    for block in references:
        if block in ring:
            used.add(block)
            hits += 1
        elif len(ring) < capacity:
            ring.append(block)
        else:
            while ring[hand] in used:
                used.remove(ring[hand])
                hand = (hand + 1) % capacity
            ring[hand] = block
            hand = (hand + 1) % capacity
    return hits


def lfu(references: Sequence[int], capacity: int) -> int:
    """(uses, when it got there) of each block; the smallest goes."""
    cache: dict[int, tuple[int, int]] = {}
    hits = 0
    for now, block in enumerate(references):
        uses = 0
        if block in cache:
            uses = cache[block][0]
            hits += 1
        elif len(cache) == capacity:
            del cache[min(cache, key=lambda b: cache[b])]
        cache[block] = uses + 1, now
    return hits


def sieve(references: Sequence[int], capacity: int) -> int:
    queue: list[int] = []  # oldest first
    visited: set[int] = set()
    hand: int | None = None
    hits = 0

    def newer(block: int) -> int | None:
        at = queue.index(block) + 1
        return queue[at] if at < len(queue) else None

    for block in references:
        if block in queue:
            visited.add(block)
            hits += 1
            continue
        if len(queue) == capacity:
            victim = hand if hand is not None else queue[0]
            while victim in visited:
                visited.remove(victim)
                following = newer(victim)
                victim = following if following is not None else queue[0]
            hand = newer(victim)
            queue.remove(victim)
        queue.append(block)
    return hits


def arc(references: Sequence[int], capacity: int) -> int:
    """Figure 4 of the paper, line by line; lists from most recent to least."""
    t1: list[int] = []
    t2: list[int] = []
    b1: list[int] = []
    b2: list[int] = []
    p = 0.0
    hits = 0

    def replace(block: int) -> None:
        if (t1 and (len(t1) > p or (block in b2 and len(t1) == p))) or not t2:
            b1.insert(0, t1.pop())
        else:
            b2.insert(0, t2.pop())

    for block in references:
        if block in t1 or block in t2:
            (t1 if block in t1 else t2).remove(block)
            t2.insert(0, block)
            hits += 1
        elif block in b1:
            p = min(capacity, p + max(len(b2) / len(b1), 1))
            replace(block)
            b1.remove(block)
            t2.insert(0, block)
        elif block in b2:
            p = max(0, p - max(len(b1) / len(b2), 1))
            replace(block)
            b2.remove(block)
            t2.insert(0, block)
        else:
            total = len(t1) + len(t2) + len(b1) + len(b2)
            if len(t1) + len(b1) == capacity:
                if len(t1) < capacity:
                    b1.pop()
                    replace(block)
                else:
                    t1.pop()
            elif total >= capacity:
                if total == 2 * capacity:
                    b2.pop()
                replace(block)
            t1.insert(0, block)
    return hits


def s3fifo(references: Sequence[int], capacity: int) -> int:
    small_size, ghost_size = int(0.1 * capacity + 1e-9), int(0.9 * capacity + 1e-9)
    small: list[int] = []
    main: list[int] = []
    ghost: list[int] = []
    uses: dict[int, int] = {}
    evicted_before = False
    hits = 0

    def evict_small() -> bool:
        while small:
            block = small.pop(0)
            if uses[block] >= 2:
                main.append(block)
                uses[block] = 0
                continue
            if ghost_size:
                ghost.append(block)
                del ghost[:-ghost_size]
            return True
        return False

    def evict_main() -> bool:
        while main:
            block = main.pop(0)
            if uses[block] == 0:
                return True
            uses[block] = min(uses[block], 3) - 1
            main.append(block)
        return False

    for block in references:
        if block in small or block in main:
            uses[block] += 1
            hits += 1
            continue
        was_ghost = block in ghost
        if was_ghost:
            ghost.remove(block)
        while len(small) + len(main) >= capacity:
            evicted_before = True
            if len(main) > capacity - small_size or not small:
                evict_main()
            else:
                evict_small()
        to_main = was_ghost or (not evicted_before and len(small) >= small_size)
        (main if to_main else small).append(block)
        uses[block] = 0
    return hits


def belady(references: Sequence[int], capacity: int) -> int:
    cache: set[int] = set()
    hits = 0
    for now, block in enumerate(references):
        if block in cache:
            hits += 1
            continue
        if len(cache) == capacity:
            rest = list(references[now + 1 :])
            cache.remove(max(cache, key=lambda b: rest.index(b) if b in rest else len(rest)))
        cache.add(block)
    return hits


MODELS: dict[str, Model] = {
    "fifo": fifo,
    "lru": lru,
    "clock": clock,
    "lfu": lfu,
    "arc": arc,
    "s3fifo": s3fifo,
    "sieve": sieve,
    "belady": belady,
}


def lru_prefix(requests: Sequence[Sequence[int]], capacity: int) -> int:
    queue: list[int] = []
    hits = 0
    for ids in requests:
        hits += leading(ids, queue)
        for block in ids:
            if block in queue:
                queue.remove(block)
            elif len(queue) == capacity:
                queue.pop(0)
            queue.append(block)
    return hits


def lru_prefix_protected(requests: Sequence[Sequence[int]], capacity: int, front_to_back: bool) -> int:
    queue: list[int] = []
    hits = 0
    for ids in requests:
        hits += leading(ids, queue)
        for block in ids if front_to_back else reversed(ids):
            if block in queue:
                queue.remove(block)
            queue.append(block)
        while len(queue) > capacity and queue[0] not in ids:
            queue.pop(0)
    return hits


def leading(ids: Sequence[int], cache: Sequence[int]) -> int:
    length = 0
    while length < len(ids) and ids[length] in cache:
        length += 1
    return length
