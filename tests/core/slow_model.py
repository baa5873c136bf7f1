"""The manager again, as plainly as it can be said: lists, searched from the start each time. The oracle of the tests.

Its domain: every call of `CPUOffloadingManager` without a store threshold, keys as small ints, all policies of 0.24 and
ARC's fallback.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SlowOrder:
    """Which blocks may go, coldest first. `kind`: scan (as logical and heap), list, arc (as arc_list), arc_0_29."""

    kind: str
    capacity: int
    order: list[int] = field(default_factory=list)  # scan: residents; list: idle ones; arc: T1
    t2: list[int] = field(default_factory=list)
    b1: list[int] = field(default_factory=list)
    b2: list[int] = field(default_factory=list)
    target: float = 0.0

    def inserted(self, key: int) -> None:
        if self.kind != "list":
            self.order.append(key)
        for ghosts in (self.b1, self.b2):
            if key in ghosts:
                ghosts.remove(key)

    def became_idle(self, key: int) -> None:
        if self.kind == "list":
            self.order.append(key)

    def left_idle(self, key: int) -> None:
        if self.kind == "list":
            self.order.remove(key)

    def dropped(self, key: int) -> None:
        for entries in (self.order, self.t2):
            if key in entries:
                entries.remove(key)

    def touched(self, keys: list[int], ready: set[int]) -> None:
        for key in reversed(keys):
            if self.kind.startswith("arc") and key in self.order and key in ready:
                self.order.remove(key)
                self.t2.append(key)
                continue
            if key in self.b1:
                self.target = min(self.capacity, self.target + max(1, len(self.b2) / len(self.b1)))
            if key in self.b2:
                self.target = max(0, self.target - max(1, len(self.b1) / len(self.b2)))
            for entries in (self.order, self.t2, self.b1, self.b2):
                if key in entries:
                    entries.remove(key)
                    entries.append(key)

    def choose(self, n: int, candidates: set[int]) -> list[int] | None:
        if not self.kind.startswith("arc"):
            victims = [key for key in self.order if key in candidates][:n]
            return victims if len(victims) == n else None
        victims = []
        for _ in range(n):
            in_t1 = [key for key in self.order if key in candidates and key not in victims]
            in_t2 = [key for key in self.t2 if key in candidates and key not in victims]
            t1_size = len([key for key in self.order if key not in victims])
            if t1_size >= int(self.target) and in_t1:
                victims.append(in_t1[0])
            elif in_t2:
                victims.append(in_t2[0])
            elif in_t1 and self.kind != "arc_0_29":
                victims.append(in_t1[0])
            else:
                return None
        return victims

    def evicted(self, victims: list[int]) -> None:
        if self.kind.startswith("arc"):
            for key in victims:
                (self.b1 if key in self.order else self.b2).append(key)
        for key in victims:
            self.dropped(key)
        self.b1, self.b2 = self.b1[-self.capacity :], self.b2[-self.capacity :]


@dataclass
class SlowManager:
    kind: str
    capacity: int
    slot: dict[int, int] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)
    fresh: int = 0
    freed: list[int] = field(default_factory=list)
    events: list[tuple[list[int], bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = SlowOrder(self.kind, self.capacity)

    def lookup(self, key: int) -> str:
        if key not in self.count:
            return "miss"
        return "hit_pending" if self.count[key] < 0 else "hit"

    def prepare_store(self, keys: list[int]) -> tuple[list[int], list[int], list[int]] | None:
        new: list[int] = []
        for key in keys:
            if key not in self.count and key not in new:
                new.append(key)
        missing = len(new) - (self.capacity - len(self.count))
        victims: list[int] = []
        if missing > 0:
            idle = {key for key, count in self.count.items() if count == 0 and key not in keys}
            chosen = self.order.choose(missing, idle)
            if chosen is None:
                return None
            victims = chosen
            self.order.evicted(victims)
            for key in victims:
                self._free(key)
            self.events.append((victims, True))
        for key in new:
            if self.fresh < self.capacity:
                self.slot[key] = self.fresh
                self.fresh += 1
            else:
                self.slot[key] = self.freed.pop()
            self.count[key] = -1
            self.order.inserted(key)
        return new, [self.slot[key] for key in new], victims

    def complete_store(self, keys: list[int], success: bool) -> None:
        stored = []
        for key in keys:
            if self.count.get(key) != -1:
                continue
            if success:
                self.count[key] = 0
                self.order.became_idle(key)
                stored.append(key)
            else:
                self.order.dropped(key)
                self._free(key)
        if stored:
            self.events.append((stored, False))

    def can_load(self, keys: list[int]) -> bool:
        return all(self.count.get(key, -1) >= 0 for key in keys)

    def prepare_load(self, keys: list[int]) -> list[int]:
        for key in keys:
            if self.count[key] == 0:
                self.order.left_idle(key)
            self.count[key] += 1
        return [self.slot[key] for key in keys]

    def can_complete_load(self, keys: list[int]) -> bool:
        return all(self.count.get(key, 0) >= keys.count(key) for key in keys)

    def complete_load(self, keys: list[int]) -> None:
        for key in keys:
            self.count[key] -= 1
            if self.count[key] == 0:
                self.order.became_idle(key)

    def touch(self, keys: list[int]) -> None:
        self.order.touched(keys, ready={key for key, count in self.count.items() if count >= 0})

    def reset(self) -> None:
        self.slot, self.count, self.freed, self.fresh = {}, {}, [], 0
        self.order = SlowOrder(self.kind, self.capacity)

    def _free(self, key: int) -> None:
        self.freed.append(self.slot.pop(key))
        del self.count[key]
