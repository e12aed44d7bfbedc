"""Where the time comes from: the system's clock, or one that a test or a user moves.

Everything that is a point in time on disk or on the wire (record timestamps, retention, roll, horizons, producer
expiry) is read from `Clock.now_ms`. Deadlines of waiting requests are the event loop's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in milliseconds since the Unix epoch."""

    def now_ms(self) -> int:
        """Return the present time. Safe from any thread."""
        ...


class SystemClock:
    """The operating system's wall clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the present time. Safe from any thread."""
        return time.time_ns() // 1_000_000


class SettableClock:
    """A clock that moves when told to.

    Frozen by default, which makes tests repeatable. With `is_running` it also follows real time, so that a broker in
    use can be moved a week ahead and goes on from there. Whoever must act on a jump appends to `on_change`: the
    callbacks are called in the thread that moved the clock, after it has moved.
    """

    __slots__ = ("_now_ms", "_real_origin_ns", "on_change")

    def __init__(self, now_ms: int | None = None, *, is_running: bool = False) -> None:
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._real_origin_ns: int | None = time.monotonic_ns() if is_running else None
        self.on_change: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the present time. Safe from any thread."""
        if self._real_origin_ns is None:
            return self._now_ms
        return self._now_ms + (time.monotonic_ns() - self._real_origin_ns) // 1_000_000

    def advance_ms(self, delta_ms: int) -> int:
        """Move forward by `delta_ms` (backward is refused with ValueError) and return the new time."""
        if delta_ms < 0:
            raise ValueError(f"a clock is advanced by 0 ms or more, got {delta_ms}; use set_ms to go back")
        return self._move(self._now_ms + delta_ms)

    def set_ms(self, now_ms: int) -> int:
        """Move to `now_ms`, forward or back, and return it."""
        if self._real_origin_ns is not None:
            self._real_origin_ns = time.monotonic_ns()
        return self._move(now_ms)

    def _move(self, origin_ms: int) -> int:
        self._now_ms = origin_ms
        for callback in tuple(self.on_change):
            callback()
        return self.now_ms()
