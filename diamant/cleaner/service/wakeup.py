"""Waiting for a time on the `Env` clock, or for a signal that there is work now.

A test or a user who moves the clock wakes the waiters at once.
"""

from __future__ import annotations

import asyncio

from diamant.storage.env.clock import Clock, SettableClock, is_frozen

MAX_SLEEP_S = 3600.0
"""Longest time to the next look at the clock, which may have been set."""


class Wakeup:
    """One waiter's alarm. `start` and `stop` on the loop thread; `notify` on the loop thread, too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self._is_notified = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Follow a clock that can be moved."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self._clock, SettableClock):
            self._clock.on_change.append(self._clock_moved)

    def stop(self) -> None:
        """Stop following the clock."""
        if isinstance(self._clock, SettableClock) and self._clock_moved in self._clock.on_change:
            self._clock.on_change.remove(self._clock_moved)

    def notify(self) -> None:
        """End the wait, or the next one if there is none now."""
        self._is_notified = True
        self._event.set()

    def reset(self) -> None:
        """Forget notifications so far: what they were for is about to be done."""
        self._is_notified = False

    def ask_again(self) -> None:
        """Have the waiter ask again for the time to wait for."""
        self._event.set()

    async def wait(self, due_ms: int) -> bool:
        """Wait until `due_ms`, or until another look at the time is due; return True if there is something to do."""
        if self._is_due(due_ms):
            return True
        self._event.clear()
        # A move of a frozen clock wakes the loop; without that, work that is due in 1 ms would keep it looking all the time.
        delay_s = (
            MAX_SLEEP_S if is_frozen(self._clock) else min(max(due_ms - self._clock.now_ms(), 1) / 1000, MAX_SLEEP_S)
        )
        timer = asyncio.get_running_loop().call_later(delay_s, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        return self._is_due(due_ms)

    def _is_due(self, due_ms: int) -> bool:
        if self._is_notified:
            self._is_notified = False
            return True
        return self._clock.now_ms() >= due_ms

    def _clock_moved(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)
