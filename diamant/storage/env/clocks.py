"""The source of time: the system clock, or a clock that tests or users can move.

All times on disk and on the wire (record timestamps, retention, roll, horizons, producer expiry) come from `Clock.now_ms`.
Deadlines of waiting requests use the event loop's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in milliseconds since the Unix epoch."""

    def now_ms(self) -> int:
        """Return the current time. May be called from any thread."""
        ...


class SystemClock:
    """The operating system's wall clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the current time. May be called from any thread."""
        return time.time_ns() // 1_000_000


class SettableClock:
    """A clock that callers can set and advance.

    It is frozen by default, which makes tests repeatable. With `is_running` it also follows real time, so a running broker can
    be moved a week ahead and continue from that time. Callbacks in `on_change` run after each move, in the thread that moved
    the clock.
    """

    __slots__ = ("_now_ms", "_real_origin_ns", "on_change")

    def __init__(self, now_ms: int | None = None, *, is_running: bool = False) -> None:
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._real_origin_ns: int | None = time.monotonic_ns() if is_running else None
        self.on_change: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the current time. May be called from any thread."""
        if self._real_origin_ns is None:
            return self._now_ms
        return self._now_ms + (time.monotonic_ns() - self._real_origin_ns) // 1_000_000

    def advance_ms(self, delta_ms: int) -> int:
        """Move forward by `delta_ms` and return the new time. Raises ValueError if `delta_ms` is negative."""
        if delta_ms < 0:
            raise ValueError(f"a clock can only be advanced by 0 ms or more, got {delta_ms}; use set_ms to go back")
        return self._move(self._now_ms + delta_ms)

    def set_ms(self, now_ms: int) -> int:
        """Move to `now_ms`, forward or backward, and return it."""
        if self._real_origin_ns is not None:
            self._real_origin_ns = time.monotonic_ns()
        return self._move(now_ms)

    def _move(self, origin_ms: int) -> int:
        self._now_ms = origin_ms
        for callback in tuple(self.on_change):
            callback()
        return self.now_ms()


class ManualClock(SettableClock):
    """A broker's clock, running or frozen, that users can move forward.

    It may be ahead of real time (after an advance) or behind it (after a freeze). Any thread may read it; only one thread at a
    time may move it.
    """

    __slots__ = ("_state",)

    def __init__(self, now_ms: int | None = None, *, is_frozen: bool = False) -> None:
        super().__init__(now_ms)
        # A single attribute, so that a reader in another thread never sees half of a change.
        self._state: tuple[int, int | None] = (self._now_ms, None if is_frozen else time.monotonic_ns())

    def now_ms(self) -> int:
        """Return the current time. May be called from any thread."""
        origin_ms, real_origin_ns = self._state
        if real_origin_ns is None:
            return origin_ms
        return origin_ms + (time.monotonic_ns() - real_origin_ns) // 1_000_000

    @property
    def is_frozen(self) -> bool:
        """True while only explicit calls move the clock."""
        return self._state[1] is None

    def advance_ms(self, delta_ms: int) -> int:
        """Move forward by `delta_ms` and return the new time. Raises ValueError if `delta_ms` is negative."""
        if delta_ms < 0:
            raise ValueError(f"a clock can only be advanced by 0 ms or more, got {delta_ms}")
        return self._change(self.now_ms() + delta_ms, is_frozen=self.is_frozen)

    def set_ms(self, now_ms: int) -> int:
        """Move forward to `now_ms` and return the new time. Raises ValueError if the clock is already past it."""
        present_ms = self.now_ms()
        if now_ms < present_ms:
            raise ValueError(f"the clock shows {present_ms} and cannot go back to {now_ms}")
        return self._change(now_ms, is_frozen=self.is_frozen)

    def freeze(self) -> int:
        """Stop the clock and return its time."""
        return self._change(self.now_ms(), is_frozen=True)

    def resume(self) -> int:
        """Restart the clock from its current time, and return that time."""
        return self._change(self.now_ms(), is_frozen=False)

    def _change(self, now_ms: int, *, is_frozen: bool) -> int:
        self._state = (now_ms, None if is_frozen else time.monotonic_ns())
        for callback in tuple(self.on_change):
            callback()
        return now_ms


def is_frozen(clock: Clock) -> bool:
    """Return True if the clock stands still unless a user moves it."""
    return isinstance(clock, ManualClock) and clock.is_frozen


def bounds_now_ms(clock: Clock) -> int:
    """Return the time from which the bounds on producers' timestamps are computed.

    For a manual clock it is the later of the clock's time and real time: producers use their own clocks, which were not moved, so
    a broker with a frozen clock must not refuse their records.
    """
    now_ms = clock.now_ms()
    return max(now_ms, time.time_ns() // 1_000_000) if isinstance(clock, ManualClock) else now_ms
