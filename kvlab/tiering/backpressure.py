"""Back-pressure: while a tier's stores take too long, some of them are not made.

Mirrors `vllm/v1/kv_offload/tiering/backpressure.py` (0.31, with 0.33's rule about failed stores). Left out: making it
from a configuration by class name.

Notes:
* A dropped store costs nothing now: its blocks stay in the CPU tier, unpinned, and never reach that tier. Loads are
  never refused.
* What is smoothed is seconds per MiB from *submission* to the poll that hears of the end, queueing included: exactly
  the time for which the job pinned its blocks.
* Two marks, so that it does not flap. While it lasts and no store ends, nothing would ever bring the average down,
  so it is read as if it halved every two seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

MiB = 2**20
LOCAL_MARKS = (0.010, 0.002)
REMOTE_MARKS = (0.050, 0.010)

_WARM_UP = 10
_HALF_LIFE_S = 2.0
_COOL_DOWN_S = 1.0
_GOOD_IN_A_ROW = 10
_FAILED_IN_A_ROW = 3


class EMADetector:
    """Pressure from the exponential moving average of seconds per MiB.

    `high`, `low`: marks in s/MiB, `alpha`: weight of a new sample. The first ten samples are only averaged.
    Raises ValueError for low > high, marks <= 0, and alpha outside (0, 1].
    """

    def __init__(
        self,
        high: float = LOCAL_MARKS[0],
        low: float = LOCAL_MARKS[1],
        alpha: float = 0.15,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not 0 < low <= high:
            raise ValueError(f"marks must be 0 < low <= high, got low {low!r} and high {high!r}")
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha!r}")
        self.high, self.low, self.alpha = high, low, alpha
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._samples = 0
        self._average = 0.0
        self._failed = 0
        self._pressure = False
        self._last_s = self._clock()
        #: When the last spell of pressure ended.
        self.cleared_s: float | None = None

    @property
    def average(self) -> float:
        """s/MiB, 0 before the first sample; under pressure it is read as decayed since the last one."""
        if not self._pressure or self._samples < _WARM_UP:
            return self._average
        return float(self._average * 0.5 ** ((self._clock() - self._last_s) / _HALF_LIFE_S))

    @property
    def under_pressure(self) -> bool:
        if self._pressure and self.average < self.low:
            self._clear()
        return self._pressure

    def sample(self, seconds_per_mib: float) -> None:
        """A store ended well. It is averaged with the undecayed average."""
        self._failed = 0
        self._samples += 1
        weight = 1 / self._samples if self._samples <= _WARM_UP else self.alpha
        self._average += weight * (seconds_per_mib - self._average)
        self._last_s = self._clock()
        if self._samples < _WARM_UP:
            return
        if self._average > self.high:
            self._pressure = True
        elif self._pressure and self._average < self.low:
            self._clear()

    def failed(self) -> None:
        """A store failed; three in a row are pressure, as if they had reached three times the high mark."""
        self._failed += 1
        if self._failed >= _FAILED_IN_A_ROW:
            self._samples = max(self._samples, _WARM_UP)
            self._average = max(self._average, 3 * self.high)
            self._last_s = self._clock()
            self._pressure = True

    def _clear(self) -> None:
        self._pressure = False
        self._average = self.average
        self.cleared_s = self._clock()


class DropPolicy(ABC):
    """Which share of the stores is dropped under pressure."""

    @abstractmethod
    def share(self, average: float, high: float) -> float:
        """From 0 (none) to 1 (all)."""


class DropAll(DropPolicy):
    def share(self, average: float, high: float) -> float:
        return 1.0


class DropProportionally(DropPolicy):
    """None at the high mark, all at three times it, in between in proportion."""

    def share(self, average: float, high: float) -> float:
        return min(1.0, max(0.0, (average - high) / (2 * high)))


class BackPressure:
    """One tier's: asked before a store is submitted, told when it ends. `block_bytes`: bytes of a block.

    Ten good stores in a row (each at most the high mark) let all pass until one is bad. For a second after pressure has
    ended every second store is dropped. `stores_dropped`, `blocks_dropped` count.
    """

    def __init__(
        self,
        block_bytes: int,
        detector: EMADetector | None = None,
        policy: DropPolicy | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.detector = detector or EMADetector(clock=clock)
        self.policy = policy or DropProportionally()
        self.stores_dropped = self.blocks_dropped = 0
        self._block_bytes = block_bytes
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget stores in flight, the average and the pressure; the counts stay."""
        self.detector.reset()
        self._submitted: dict[int, tuple[float, int]] = {}
        self._good_in_a_row = 0
        self._owed = 0.0
        self._drop_next = False

    def admits(self, blocks: int) -> bool:
        """Whether a store of so many blocks may be made; one that may not is counted."""
        if self._passes():
            return True
        self.stores_dropped += 1
        self.blocks_dropped += blocks
        return False

    def pop_counts(self) -> tuple[int, int]:
        """Stores and blocks dropped since the last call."""
        counts = self.stores_dropped, self.blocks_dropped
        self.stores_dropped = self.blocks_dropped = 0
        return counts

    def submitted(self, job_id: int, blocks: int) -> None:
        self._submitted[job_id] = self._clock(), blocks

    def ended(self, job_id: int, success: bool) -> None:
        """The manager has heard of a store's end; one it has forgotten is ignored."""
        submitted = self._submitted.pop(job_id, None)
        if submitted is None:
            return
        if not success:
            self._good_in_a_row = 0
            self.detector.failed()
            return
        started_s, blocks = submitted
        seconds_per_mib = (self._clock() - started_s) / (blocks * self._block_bytes / MiB)
        self._good_in_a_row = self._good_in_a_row + 1 if seconds_per_mib <= self.detector.high else 0
        self.detector.sample(seconds_per_mib)

    def _passes(self) -> bool:
        if self._good_in_a_row >= _GOOD_IN_A_ROW:
            return True
        if self.detector.under_pressure:
            # The share as a debt, not a dice: the same stores are dropped in every run.
            self._owed += self.policy.share(self.detector.average, self.detector.high)
            if self._owed < 1:
                return True
            self._owed -= 1
            return False
        cleared_s = self.detector.cleared_s
        if cleared_s is not None and self._clock() - cleared_s < _COOL_DOWN_S:
            self._drop_next = not self._drop_next
            return not self._drop_next
        return True
