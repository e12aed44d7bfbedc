"""An installed fault: its counts, its held requests, and the callers that wait for it to fire."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from diamant.broker.faults.fault_requests import MAX_DELAY_MS
from diamant.broker.faults.spec import FaultSpec
from diamant.duration import Duration, seconds_of

Result = TypeVar("Result")

MAX_FIRINGS = 100
"""The maximum number of firings that a fault remembers. `count` includes the older ones."""

MAX_FIRING_PARTS = 20
"""The maximum number of topics and partitions that are remembered per firing."""

WAIT_TIMEOUT_S = 10.0


class Installer(Protocol):
    """The part of a broker's `Faults` that a fault needs."""

    @property
    def is_on_loop(self) -> bool:
        """True on the thread of the broker's event loop."""
        ...

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the loop thread, and return its result."""
        ...

    def remove(self, id: int) -> bool:
        """Remove a fault; return whether it was installed."""
        ...


class Firing(NamedTuple):
    """One request on which a fault fired. `time_ms` is on the broker's clock; `parts` are topics (`t`) and partitions (`t-0`)."""

    time_ms: int
    api: str
    api_version: int
    client_id: str | None
    peer: str
    parts: tuple[str, ...]


class Fault:
    """A handle for an installed fault. Its methods are callable from any thread unless they say otherwise.

    Used as a context manager, it removes the fault at the end of the block.
    """

    def __init__(self, installer: Installer, fault_id: int, spec: FaultSpec) -> None:
        self.id = fault_id
        self.spec = spec
        self.matched = 0
        """The number of matching requests, whether the fault fired on them or not."""
        self.count = 0
        """The number of times that the fault has fired."""
        self.is_installed = True
        self._installer = installer
        self._drawn = 0
        self._random = random.Random(spec.seed) if spec.probability < 1 else None
        self._firings: deque[Firing] = deque(maxlen=MAX_FIRINGS)
        self._paused: set[asyncio.Future[None]] = set()
        self._waiting: list[tuple[int, concurrent.futures.Future[None]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    # -- for tests -----------------------------------------------------------------------------------------------------

    @property
    def fired(self) -> list[Firing]:
        """The latest `MAX_FIRINGS` firings, oldest first."""
        return self._installer.call(lambda: list(self._firings))

    @property
    def held(self) -> int:
        """The number of requests that are now held or delayed."""
        return len(self._paused)

    def wait_fired(self, count: int = 1, *, timeout: Duration = WAIT_TIMEOUT_S) -> None:
        """Wait until the fault has fired `count` times since it was added. Raises TimeoutError after `timeout`.

        Raises RuntimeError on the broker's event loop, which it would block; use `await until_fired()` there.
        """
        if self._installer.is_on_loop:
            raise RuntimeError("wait_fired would block the broker's event loop: use `await fault.until_fired()`")
        when = self._installer.call(lambda: self._when_fired(count))
        try:
            when.result(seconds_of(timeout))
        except concurrent.futures.TimeoutError:
            when.cancel()
            raise TimeoutError(self._too_late(count, timeout)) from None

    async def until_fired(self, count: int = 1, *, timeout: Duration = WAIT_TIMEOUT_S) -> None:
        """Like `wait_fired`, but for use with `await`, on any event loop."""
        when = self._installer.call(lambda: self._when_fired(count))
        try:
            async with asyncio.timeout(seconds_of(timeout)):
                await asyncio.wrap_future(when)
        except TimeoutError:
            raise TimeoutError(self._too_late(count, timeout)) from None

    def release(self) -> int:
        """Release the requests that are now held or delayed; return their number. The fault stays installed."""
        return self._installer.call(self._release)

    def remove(self) -> None:
        """Remove the fault and release its held requests. Idempotent. The counts remain readable."""
        self._installer.remove(self.id)

    def as_json(self) -> dict[str, object]:
        """Return the fault as a JSON object: its id, specification, counts and firings."""
        firings = [firing._asdict() for firing in self.fired]
        shown = {"id": self.id, **self.spec.as_json(), "matched": self.matched, "count": self.count, "held": self.held}
        return {**shown, "fired": firings}

    # -- for the broker, on its loop -----------------------------------------------------------------------------------

    def draws(self) -> bool:
        """Count a matching request; return whether the fault fires on it."""
        spec = self.spec
        self.matched += 1
        if self.matched <= spec.after or (spec.times is not None and self._drawn >= spec.times):
            return False
        if self._random is not None and self._random.random() >= spec.probability:
            return False
        self._drawn += 1
        return True

    def fire(self, firing: Firing) -> None:
        """Record a firing. Call this when the effect begins."""
        self.count += 1
        self._firings.append(firing)
        for waiting in self._waiting[:]:
            if self.count >= waiting[0]:
                self._waiting.remove(waiting)
                _finish(waiting[1])

    async def pause(self) -> None:
        """Wait for the fault's delay, or until the request is released or the fault is removed."""
        delay_ms = MAX_DELAY_MS if self.spec.hold else self.spec.delay_ms
        if not delay_ms or not self.is_installed:
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(delay_ms / 1000, _end, over)
        self._paused.add(over)
        try:
            await over
        finally:
            timer.cancel()
            self._paused.discard(over)

    def removed(self) -> None:
        """Release the held requests. Called after the fault was removed from the list."""
        self.is_installed = False
        self._release()

    def _release(self) -> int:
        count = len(self._paused)
        for over in self._paused:
            _end(over)
        return count

    def _when_fired(self, count: int) -> concurrent.futures.Future[None]:
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        if self.count >= count:
            future.set_result(None)
        else:
            self._waiting = [waiting for waiting in self._waiting if not waiting[1].cancelled()]
            self._waiting.append((count, future))
        return future

    def _too_late(self, count: int, timeout: Duration) -> str:
        return (
            f"fault {self.id} ({self.spec.as_json()}) has fired {self.count} times within {seconds_of(timeout):g} s, "
            f"expected {count}; {self.matched} requests matched"
        )


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _finish(future: concurrent.futures.Future[None]) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(None)
