"""A broker for programs without an event loop: `with Broker(...)` runs it on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable


class LoopThread(threading.Thread):
    """An event loop on which a broker is started, runs, and is stopped. Used once."""

    def __init__(self, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(name="diamant", daemon=True)
        self._start_on_loop = start
        self._stop_on_loop = stop
        self._is_up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop: asyncio.Event | None = None
        self._error: BaseException | None = None

    def start_broker(self) -> None:
        """Return when the broker listens; raises what its start raised."""
        self.start()
        self._is_up.result()

    def stop_broker(self) -> None:
        """Return when the broker has stopped; raises what its stop raised."""
        assert self._event_loop is not None
        assert self._asked_to_stop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._event_loop.call_soon_threadsafe(self._asked_to_stop.set)
        self.join()
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        """Be the thread."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            if not self._is_up.done():
                self._is_up.set_exception(error)

    async def _serve(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._asked_to_stop = asyncio.Event()
        await self._start_on_loop()
        self._is_up.set_result(None)
        try:
            await self._asked_to_stop.wait()
        finally:
            await self._stop_on_loop()
