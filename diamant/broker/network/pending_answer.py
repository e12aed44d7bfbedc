"""An answer that comes later and goes out at once, in the turn of the loop that has it.

Each callback of a future has a turn of its own. Of a fetch that waits for nothing, again and again, that was a fifth of the cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from diamant.broker.network.response_writer import Buffer, Part

Body: TypeAlias = Buffer | Sequence[Part]

Taker: TypeAlias = Callable[[Body | None, BaseException | None], None]
"""Gets the body, or None and the error. Raises nothing: there may be others to be answered."""


class PendingAnswer:
    """Made by a handler; its connection sets `taker` in the same turn, and then it is either given, once, or cancelled."""

    __slots__ = ("_cancelled", "_is_over", "taker")

    taker: Taker

    def __init__(self, cancelled: Callable[[], None]) -> None:
        """`cancelled` is called when the connection goes: nothing is to be given any more."""
        self._cancelled = cancelled
        self._is_over = False

    def give(self, body: Body | None, error: BaseException | None = None) -> None:
        """Answer."""
        self._is_over = True
        self.taker(body, error)

    def cancel(self) -> None:
        """Want no answer any more; nothing happens if it has been given."""
        if not self._is_over:
            self._is_over = True
            self._cancelled()

    def __await__(self) -> Generator[Any, None, Body | None]:
        """Take it as a coroutine, at the price of a future. Who cancels that cancels the answer."""
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
