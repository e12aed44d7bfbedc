"""The wait of a client that took more than its quota: its connection is left alone for as long as its answer said (KIP-219).

Source: ThrottledChannel, ClientQuotaManager.throttle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.network.pending_answer import Body
from diamant.protocol.wire.connection import Request

if TYPE_CHECKING:
    from diamant.broker.security.quotas.quotas import Quotas


class ClientWait:
    """The wait of one connection."""

    __slots__ = ("_loop", "_resume", "busy_s", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._resume: Callable[[], None] | None = None  # only during a wait: it refers to the connection
        self.busy_s = 0.0
        """The time that the loop's thread was at work on the request; measured where there are quotas."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the wait; None while there is none."""

    def answer(
        self, quotas: Quotas, client: ConnectionInfo, request: Request, body: Body | None, resume: Callable[[], None]
    ) -> Body | None:
        """The answer with the time that the client has to wait, which begins now. None: none goes out.

        `resume` is called when the wait is over.
        """
        answer, throttle_time_ms = quotas.answer(client.principal.name, request, body, self.busy_s)
        if throttle_time_ms > 0 and self.timer is None:
            self._resume = resume
            self.timer = self._loop.call_later(throttle_time_ms / 1000, self.end)
        return cast("Body | None", answer)

    def end(self) -> None:
        """Wait no longer; harmless without a wait."""
        if self.timer is not None and self._resume is not None:
            self.timer.cancel()
            self._loop.call_soon(self._resume)
            self.timer = self._resume = None
