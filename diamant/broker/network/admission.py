"""The admission of new connections with a rate limit: it delays accepting, or holds refused sockets until they are closed.

Bounds: `MAX_HELD` sockets of refused connections; further ones are closed at once.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diamant.broker.security.quotas.connection_quotas import ConnectionQuotas

MAX_HELD = 1000


class ConnectionAdmission:
    """The admission of connections to all listeners of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, quotas: ConnectionQuotas) -> None:
        self._loop = loop
        self.quotas = quotas
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}

    def wait_s(self, sock: socket.socket, host: str, listener: str) -> float | None:
        """The delay of an accepted connection and of later ones. None: it is refused, and this object owns the socket."""
        wait_ms, refused_ms = self.quotas.ask(host, listener)
        if not refused_ms:
            return wait_ms / 1000
        if len(self._held) >= MAX_HELD:
            sock.close()
        else:
            self._held[sock] = self._loop.call_later(refused_ms / 1000, self._close, sock)
        return None

    def close(self) -> None:
        """Close all held sockets."""
        for sock, timer in list(self._held.items()):
            timer.cancel()
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        del self._held[sock]
        sock.close()
