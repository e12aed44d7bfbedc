"""Real-time timers for group members and rebalances, designed for many thousands of members.

A heartbeat only postpones a deadline. It does not change the event loop's timer, which fires early and is then rearmed for the
remaining time. So a member costs one timer of the loop per session timeout, regardless of its heartbeats.

Bound: one entry and at most one timer of the loop for each key that is set and has neither fired nor been cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol


class Loop(Protocol):
    """The methods of an event loop that the timers use. Tests can supply their own clock."""

    def time(self) -> float:
        """Return the seconds on a clock that never goes back."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call `callback` at the time `when`, by the clock of `time()`."""
        ...


class _Entry:
    """One timer. `fires_s` is the time at which `handle` fires, at or before the deadline."""

    __slots__ = ("callback", "deadline_s", "fires_s", "handle")

    def __init__(self, deadline_s: float, callback: Callable[[], None], handle: asyncio.TimerHandle) -> None:
        self.deadline_s = deadline_s
        self.fires_s = deadline_s
        self.callback = callback
        self.handle = handle


class Timers:
    """Callbacks by key, each called once at its deadline. Belongs to the loop thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def set(self, key: Hashable, timeout_ms: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `timeout_ms`, where a negative value counts as 0. Replaces the timer of `key`."""
        deadline_s = self._loop.time() + (timeout_ms / 1000 if timeout_ms > 0 else 0)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(deadline_s, callback, self._loop.call_at(deadline_s, self._fired, key))
            return
        entry.deadline_s = deadline_s
        entry.callback = callback
        if entry.fires_s > deadline_s:
            entry.handle.cancel()
            self._arm(entry, key)

    def cancel(self, key: Hashable) -> None:
        """Cancel a timer if it is set."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.handle.cancel()

    def remaining_ms(self, key: Hashable) -> float | None:
        """Return the time until the callback in ms, or None if no timer is set."""
        entry = self._entries.get(key)
        return None if entry is None else max(entry.deadline_s - self._loop.time(), 0) * 1000

    def advance_ms(self, delta_ms: float) -> None:
        """Bring all deadlines forward by `delta_ms`, so that sessions follow a broker's clock that was advanced.

        Before this returns, the callbacks of expired timers are called in the order of their deadlines.
        """
        now_s = self._loop.time()
        for entry in self._entries.values():
            entry.deadline_s -= delta_ms / 1000
        for key, entry in sorted(self._entries.items(), key=lambda item: item[1].deadline_s):
            if self._entries.get(key) is not entry:
                continue  # an earlier callback has cancelled or replaced it
            entry.handle.cancel()
            if entry.deadline_s > now_s:
                self._arm(entry, key)
            else:
                del self._entries[key]
                entry.callback()

    @property
    def last_ms(self) -> float | None:
        """The time in ms until the last callback, or None if no timer is set."""
        last_s = max((entry.deadline_s for entry in self._entries.values()), default=None)
        return None if last_s is None else max(last_s - self._loop.time(), 0) * 1000

    def close(self) -> None:
        """Cancel all timers."""
        for entry in self._entries.values():
            entry.handle.cancel()
        self._entries.clear()

    def _arm(self, entry: _Entry, key: Hashable) -> None:
        entry.fires_s = entry.deadline_s
        entry.handle = self._loop.call_at(entry.deadline_s, self._fired, key)

    def _fired(self, key: Hashable) -> None:
        entry = self._entries[key]
        # Compare with `fires_s`, not the current time: the loop may call back early, by up to its clock's resolution.
        if entry.deadline_s > entry.fires_s:
            self._arm(entry, key)
            return
        del self._entries[key]
        entry.callback()
