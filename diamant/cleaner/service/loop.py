"""The cleaner's loop, which looks for logs to clean, and the alarm that wakes it.

If a test or a user sets the clock of the `Env`, the loop wakes immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from diamant.storage.env.clocks import Clock, SettableClock, is_frozen

logger = logging.getLogger(__name__)

MAX_SLEEP_S = 3600.0
"""Longest sleep before the loop reads the clock again, in case the clock was set."""


class Wakeup:
    """An alarm for a single waiter. All methods run on the loop thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self._is_notified = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Subscribe to changes of the clock, if it can be set."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self._clock, SettableClock):
            self._clock.on_change.append(self._clock_moved)

    def stop(self) -> None:
        """Cancel the subscription."""
        if isinstance(self._clock, SettableClock) and self._clock_moved in self._clock.on_change:
            self._clock.on_change.remove(self._clock_moved)

    def notify(self) -> None:
        """End the current wait, or make the next one return immediately."""
        self._is_notified = True
        self._event.set()

    def reset(self) -> None:
        """Discard earlier notifications; the cycle that is about to begin handles them."""
        self._is_notified = False

    def recheck(self) -> None:
        """Make the waiter compute its deadline again."""
        self._event.set()

    async def wait(self, due_ms: int) -> bool:
        """Return True at `due_ms` or when notified. If it returns False, compute the deadline again and call `wait` again."""
        if self._is_due(due_ms):
            return True
        self._event.clear()
        # A frozen clock moves only when it is set, which wakes the loop. To poll it for work that is due in 1 ms is useless.
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


class CleaningLoop:
    """Calls `cycle` after `run_now`, at the time given to `run_by`, or after a pause, whichever comes first.

    The argument of `cycle` is True if a caller awaits `settled`; its result is True if nothing is left to do at this time.
    Belongs to the loop thread.
    """

    def __init__(self, clock: Clock, pause_ms: Callable[[], int], cycle: Callable[[bool], Awaitable[bool]]) -> None:
        self._clock = clock
        self._pause_ms = pause_ms
        self._cycle = cycle
        self._wakeup = Wakeup(clock)
        self._next_ms = 0
        self._settling: list[asyncio.Future[None]] = []
        self.is_started = False
        """True after `start` has been called."""
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_dead(self) -> bool:
        """True if the loop ended without `stop`."""
        return self._task is not None and self._task.done() and not self._is_stopping

    @property
    def is_awaited(self) -> bool:
        """True if a caller waits until nothing is left to do."""
        return bool(self._settling)

    def start(self) -> None:
        """Start the loop."""
        self.is_started = True
        self._wakeup.start()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the cycle in progress, and cancel the callers of `settled`."""
        self._is_stopping = True
        self._wakeup.stop()
        self._wakeup.notify()
        if self._task is not None:
            await asyncio.wait({self._task})
        for future in self._settling:
            future.cancel()

    def run_now(self) -> None:
        """Run another cycle immediately, or after the one in progress."""
        self._wakeup.notify()

    def run_by(self, due_ms: int) -> None:
        """Run another cycle at this time of the clock at the latest."""
        if due_ms < self._next_ms:
            self._next_ms = due_ms
            self._wakeup.recheck()

    async def settled(self) -> None:
        """Wait until a cycle that begins after this call leaves nothing to do."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_stopping:
            future.cancel()
        self._settling.append(future)
        self._wakeup.notify()
        await future

    async def _run(self) -> None:
        while not self._is_stopping:
            self._wakeup.reset()
            self._next_ms = self._clock.now_ms() + self._pause_ms()
            settling, self._settling = self._settling, []
            is_settled = False
            try:
                is_settled = await self._cycle(bool(settling))
            except Exception:
                logger.exception("the cleaner failed to look for work")
            for future in settling if is_settled else ():
                if not future.done():
                    future.set_result(None)
            self._settling += [] if is_settled else settling
            await asyncio.sleep(0)  # let other tasks run even without a pause
            while not self._is_stopping and not await self._wakeup.wait(self._next_ms):
                pass
