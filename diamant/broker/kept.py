"""The parts of a broker that are kept when it stops and reused when it starts again: its ports and the CA of `tls=True`.

A port is kept by a socket that is bound but does not listen, so that clients are refused and no other program can take the port.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from diamant.broker.config.listeners import Listener
from diamant.broker.network.listener_sockets import bound_socket

if TYPE_CHECKING:
    from diamant.broker.security.tls.throw_away import ThrowAwayCa


class Kept:
    """The kept parts, none before the first start. Ports are kept by the name and the broker of a listener."""

    def __init__(self) -> None:
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._ports: dict[tuple[str, int], int] = {}
        self.authority: ThrowAwayCa | None = None

    def bound(self, listener: Listener) -> socket.socket:
        """Return a socket bound to the listener's address, on the kept port if there is one. The caller closes it.

        Raises OSError.
        """
        key = (listener.name, listener.broker)
        sock = self._sockets.pop(key, None)
        if sock is None:
            sock = bound_socket(listener._replace(port=self._ports.get(key, listener.port)))
        return sock

    def keep(self, listener: Listener, port: int) -> None:
        """Keep the port of a listener. Call this in the same turn of the event loop that closes the listener's socket."""
        key = (listener.name, listener.broker)
        self._ports[key] = port
        try:
            self._sockets[key] = bound_socket(listener._replace(port=port))
        except OSError:
            pass  # another program has taken the port; the next start reports it

    def close(self) -> None:
        """Release all kept parts."""
        while self._sockets:
            self._sockets.popitem()[1].close()
        self._ports.clear()
        self.authority = None
