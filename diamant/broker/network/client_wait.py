"""The throttling of a client that exceeded its quota: its connection is not read during the throttle time (KIP-219).

Source: ThrottledChannel, ClientQuotaManager.throttle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.network.pending_answer import Body
from diamant.protocol.wire.server_connection import Request

if TYPE_CHECKING:
    from diamant.broker.security.quotas.quotas import Quotas


class ClientWait:
    """The throttling of one connection."""

    __slots__ = ("_loop", "_resume", "busy_s", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._resume: Callable[[], None] | None = None  # set only during a wait, to avoid a reference cycle
        self.busy_s = 0.0
        """The time that the loop thread spent on the request; measured only if there are quotas."""
        self.timer: asyncio.TimerHandle | None = None
        """The timer that ends the wait; None if the connection is not throttled."""

    def answer(
        self, quotas: Quotas, client: ConnectionInfo, request: Request, body: Body | None, resume: Callable[[], None]
    ) -> Body | None:
        """Throttle the client if necessary. Return the response, which reports the throttle time, or None for no response.

        `resume` is called when the wait is over.
        """
        answer, throttle_time_ms = quotas.answer(client.principal.name, request, body, self.busy_s)
        if throttle_time_ms > 0 and self.timer is None:
            self._resume = resume
            self.timer = self._loop.call_later(throttle_time_ms / 1000, self.end)
        return cast("Body | None", answer)

    def end(self) -> None:
        """End the wait, if any."""
        if self.timer is not None and self._resume is not None:
            self.timer.cancel()
            self._loop.call_soon(self._resume)
            self.timer = self._resume = None
