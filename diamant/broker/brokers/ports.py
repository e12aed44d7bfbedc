"""The listening sockets of several brokers. Each broker's sockets can be closed, and reopened on the same ports."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from diamant.broker.config.listeners import Listener
from diamant.broker.network.listener_sockets import bound_socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from diamant.broker.network.acceptor import Acceptor
    from diamant.broker.network.client_connection import Connection
    from diamant.broker.network.server import Server


class BrokerPorts:
    """The open and closed listeners of each broker. Belongs to the loop thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listen: dict[int, list[tuple[Listener, Callable[[socket.socket], Acceptor]]]] = {}
        self._open: dict[int, list[Acceptor]] = {}
        self._held: dict[int, list[socket.socket]] = {}
        """The sockets of closed brokers, bound but not listening, so that no other program takes their ports."""
        self._silent: set[int] = set()

    def add(
        self, broker_id: int, sock: socket.socket, actual: Listener, listen: Callable[[socket.socket], Acceptor]
    ) -> None:
        """Take ownership of a listener's bound socket, and listen. `actual`: the listener with the port that was really bound."""
        self._listen.setdefault(broker_id, []).append((actual, listen))
        self._open.setdefault(broker_id, []).append(listen(sock))

    def is_open(self, broker_id: int) -> bool:
        """Return whether a broker listens."""
        return broker_id in self._open

    def is_silent(self, broker_id: int) -> bool:
        """Return whether a broker listens but does not answer."""
        return broker_id in self._silent

    def silence(self, broker_id: int) -> int:
        """Stop answering at a broker's ports, but keep them open; return how many connections now hang. `open` cuts them."""
        self._silent.add(broker_id)
        for acceptor in self._open[broker_id]:
            acceptor.hold()
        hanging = self._connections(broker_id)
        for connection in hanging:
            connection.mute()
        return len(hanging)

    def close(self, broker_id: int) -> int:
        """Refuse new connections to a broker, and cut its open connections; return how many were cut. Idempotent."""
        self._silent.discard(broker_id)
        for acceptor in self._open.pop(broker_id, ()):
            self._server.stop_listening(acceptor)
        cut = self._cut(broker_id)
        if broker_id not in self._held:
            self._held[broker_id] = self._bound(broker_id)
        return cut

    def open(self, broker_id: int) -> int:
        """Listen and answer again. Returns how many hanging connections were cut. Idempotent."""
        if broker_id in self._silent:
            self._silent.discard(broker_id)
            cut = self._cut(broker_id)
            for acceptor in self._open[broker_id]:
                acceptor.resume()
            return cut
        if broker_id not in self._open:
            # Sockets may be missing because the system refused them when the broker went down.
            held = self._held.pop(broker_id, None) or self._bound(broker_id)
            listen = (listen for _, listen in self._listen[broker_id])
            self._open[broker_id] = [to(sock) for sock, to in zip(held, listen, strict=True)]
        return 0

    def _bound(self, broker_id: int) -> list[socket.socket]:
        with ExitStack() as undo:
            sockets = [undo.enter_context(bound_socket(actual)) for actual, _ in self._listen[broker_id]]
            undo.pop_all()
        return sockets

    def _connections(self, broker_id: int) -> list[Connection]:
        return [one for one in self._server.connections if one.info.broker_id == broker_id]

    def _cut(self, broker_id: int) -> int:
        cut = self._connections(broker_id)
        for connection in cut:
            connection.abort()
        return len(cut)

    def close_all(self) -> None:
        """Release the ports held for closed brokers, and cut hanging connections."""
        for broker_id in self._silent:
            self._cut(broker_id)
        for broker_id in list(self._held):
            for sock in self._held.pop(broker_id):
                sock.close()
