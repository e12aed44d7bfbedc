"""Runs a broker in a thread with an event loop of its own, for programs without one. `with Broker(...)` uses it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

BEGIN_TIMEOUT_S = 1.0


class LoopThread(threading.Thread):
    """A thread whose event loop starts, runs and stops a broker. It can be used only once."""

    def __init__(self, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(name="diamant", daemon=True)
        self._start_on_loop = start
        self._stop_on_loop = stop
        self._is_up: Future[None] = Future()
        self._is_to_stop: Future[None] = Future()
        self._has_begun = threading.Event()
        self._error: BaseException | None = None

    def start_broker(self) -> None:
        """Start the broker and wait until it listens; raise its error if it fails. On KeyboardInterrupt, stop it, then raise."""
        try:
            self.start()
            self._is_up.result()
        except KeyboardInterrupt:
            # The interrupt may have hit `start` while it waited for the thread, so the thread may still begin.
            if self._has_begun.wait(BEGIN_TIMEOUT_S):
                self._end()
            raise

    def stop_broker(self) -> None:
        """Stop the broker and wait until it has stopped. Raises the error with which its thread ended, if any."""
        self._end()
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        if not self._is_to_stop.done():
            self._is_to_stop.set_result(None)
        self.join()

    def run(self) -> None:
        """Run the broker until `stop_broker` is called. Only the thread itself calls this."""
        self._has_begun.set()
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            if not self._is_up.done():
                self._is_up.set_exception(error)

    async def _serve(self) -> None:
        await self._start_on_loop()
        self._is_up.set_result(None)
        try:
            await asyncio.wrap_future(self._is_to_stop)
        finally:
            await self._stop_on_loop()
