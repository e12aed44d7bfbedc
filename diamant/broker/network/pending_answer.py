"""A response that its handler delivers later. It is written in the turn of the loop in which it is delivered.

A future would run its callbacks only in the next turn. That made up a fifth of the cost of repeated fetches without data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from diamant.broker.network.response_writer import Buffer, Part

Body: TypeAlias = Buffer | Sequence[Part]

Taker: TypeAlias = Callable[[Body | None, BaseException | None], None]
"""Called with the body, or with None and the error. Must not raise, since the caller may have other responses to give."""


class PendingAnswer:
    """A response promised by a handler. Its connection sets `taker` in the same turn; later it is either given or cancelled."""

    __slots__ = ("_cancelled", "_is_over", "taker")

    taker: Taker

    def __init__(self, cancelled: Callable[[], None]) -> None:
        """`cancelled` is called when the connection closes and the response is no longer needed."""
        self._cancelled = cancelled
        self._is_over = False

    def give(self, body: Body | None, error: BaseException | None = None) -> None:
        """Deliver the response or the error."""
        self._is_over = True
        self.taker(body, error)

    def cancel(self) -> None:
        """Cancel the response, unless it has been given."""
        if not self._is_over:
            self._is_over = True
            self._cancelled()

    def __await__(self) -> Generator[Any, None, Body | None]:
        """Await the response, at the cost of a future. Cancelling the future cancels the response."""
        future: asyncio.Future[Body | None] = asyncio.get_running_loop().create_future()

        def taker(body: Body | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(body)
            else:
                future.set_exception(error)

        self.taker = taker
        try:
            return (yield from future)
        except asyncio.CancelledError:
            self.cancel()
            raise
