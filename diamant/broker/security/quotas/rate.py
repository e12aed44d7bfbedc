"""A rate over the last few seconds, measured as in Kafka because it determines the throttle time.

Time is divided into windows. A window starts with the first value recorded after the end of the previous window, and is included
until `samples` windows have passed since its last value. The rate is the sum of the values divided by the time since the start of
the oldest window, but by no less than `samples` - 1 windows, so that a client does not seem fast when it starts.

Source: SampledStat, WindowedSum and Rate.
"""

from __future__ import annotations

from typing import NamedTuple


class RateWindows(NamedTuple):
    """The windows of a rate: `quota.window.num` windows of `quota.window.size.seconds` each."""

    samples: int = 11
    window_ms: int = 1000


class _Sample:
    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, now_ms: float) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.total = 0.0


class Rate:
    """A rate per second. Times are in milliseconds of any monotonic clock.

    Bounds: `samples` + 1 windows; the additional one is the oldest, which is only partly in range.
    """

    __slots__ = ("_current", "_samples", "_windows")

    def __init__(self, windows: RateWindows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: float) -> None:
        """Add to the current window; a negative value undoes an earlier one."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._windows.window_ms:
            sample = self._next_sample(now_ms)
        sample.total += value
        sample.last_ms = now_ms

    def per_second(self, now_ms: float) -> float:
        """Return the rate at `now_ms`."""
        elapsed_ms = self.elapsed_ms(now_ms)
        return sum(sample.total for sample in self._samples) / (elapsed_ms / 1000)

    def elapsed_ms(self, now_ms: float) -> float:
        """Return the time span of the rate (`Rate.windowSize`). Clears the windows that have expired."""
        count, window_ms = self._windows
        oldest_ms = now_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= count * window_ms:
                sample.reset(now_ms)
            oldest_ms = min(oldest_ms, sample.start_ms)
        elapsed_ms = now_ms - oldest_ms
        missing = count - 1 - int(elapsed_ms / window_ms)
        return max(elapsed_ms + max(missing, 0) * window_ms, 1)

    def _next_sample(self, now_ms: float) -> _Sample:
        self._current = (self._current + 1) % (self._windows.samples + 1)
        if self._current >= len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]
