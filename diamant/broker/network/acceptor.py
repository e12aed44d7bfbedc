"""The acceptor of connections: it accepts a batch per turn of the loop, and pauses when descriptors or free slots run out.

A listener stops accepting while the broker or the listener has reached its `max.connections`; further clients wait in the
socket's backlog, as in Kafka (KIP-402). A connection takes its slot when it is accepted, before a TLS handshake.

If the rate of new connections is limited, `ConnectionAdmission` delays or refuses connections; a refused socket is held open for
its throttle time. Bound: `MAX_HELD` held sockets; further refused sockets are closed immediately.

Source: SocketServer.Acceptor, ConnectionQuotas.waitForConnectionSlot.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from diamant.broker.network.listener_sockets import plain_host
from diamant.broker.network.server_limits import ServerLimits

if TYPE_CHECKING:
    from diamant.broker.security.quotas.connection_quotas import ConnectionQuotas

logger = logging.getLogger(__name__)

ACCEPTED_PER_TURN = 100
"""The maximum number of connections that one listener accepts per turn of the loop."""

MIN_BACKLOG = 1024
"""The minimum size of the backlog, regardless of the configuration.

Kafka accepts in a dedicated thread. Here a busy loop may take some milliseconds, and a client that finds the backlog full
retries only after a second.
"""

ACCEPT_RETRY_S = 1
"""How long a listener stops accepting after the process ran out of file descriptors."""


FULL_TOLD_S = 60.0
"""The minimum interval between log lines about a listener that waits for a free slot."""


class ConnectionSlots:
    """The number of open connections, in total and per listener, and the acceptors that wait for a free slot."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.taken: Counter[str] = Counter()
        """The open connections by listener."""
        self.waiting: set[Acceptor] = set()

    def set_limits(self, limits: ServerLimits) -> None:
        """Replace the limits; existing connections beyond them are kept."""
        self._limits = limits
        self._wake()

    def why_full(self, listener: str) -> str:
        """Return the limit that blocks a listener; empty if it may have another connection."""
        own, of_all = self._limits.max_connections_of.get(listener), self._limits.max_connections
        if own is not None and self.taken[listener] >= own:
            return f"listener.name.{listener.lower()}.max.connections={own}"
        return "" if self.taken.total() < of_all else f"max.connections={of_all}"

    def take(self, listener: str) -> None:
        """Count an accepted connection."""
        self.taken[listener] += 1

    def free(self, listener: str) -> None:
        """Stop counting a closed connection."""
        self.taken[listener] -= 1
        self._wake()

    def _wake(self) -> None:
        for acceptor in list(self.waiting):
            acceptor.resume()


MAX_HELD = 1000
"""The maximum number of refused connections whose sockets are held open."""


class ConnectionAdmission:
    """Decides whether the listeners of a broker admit, delay or refuse new connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, quotas: ConnectionQuotas) -> None:
        self._loop = loop
        self.quotas = quotas
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}

    def wait_s(self, sock: socket.socket, host: str, listener: str) -> float | None:
        """Return how long to delay this connection and later ones, or None if it is refused; then this object owns `sock`."""
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


class Admitting(Protocol):
    """The acceptor's view of a server."""

    admission: ConnectionAdmission | None
    slots: ConnectionSlots


class Acceptor:
    """Accepts the connections of one listening socket. Belongs to the loop thread.

    It replaces asyncio's server, which leaks a connection's socket if the server is closed between accepting the connection and
    setting it up.
    """

    def __init__(
        self,
        sock: socket.socket,
        listener: str,
        limits: ServerLimits,
        make: Callable[[], asyncio.BaseProtocol],
        server: Admitting,
    ) -> None:
        """Listen on a bound socket and take ownership of it. `make` creates the protocol of each connection.

        The protocol must free the connection's slot when the connection is closed.
        """
        sock.setblocking(False)
        _set_buffers(sock, limits)  # inherited by accepted sockets; the receive buffer must be set before listening
        sock.listen(max(limits.backlog, MIN_BACKLOG))
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._listener = listener
        self._make = make
        self._server = server
        self._full_told_s = -FULL_TOLD_S
        self._waiting: socket.socket | None = None  # accepted, but held back by a rate limit
        self._accepting: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._server.slots.waiting.discard(self)
        if self._waiting is not None:
            self._waiting.close()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def hold(self) -> None:
        """Stop accepting until `resume`; clients that connect wait in the socket's backlog."""
        if self._retry is not None:
            self._retry.cancel()
        self._server.slots.waiting.discard(self)
        self._loop.remove_reader(self._sock)

    async def settled(self) -> None:
        """Wait until every accepted connection has been set up."""
        if self._accepting:
            await asyncio.wait(set(self._accepting))

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            if self._is_full():
                self._loop.remove_reader(self._sock)
                return
            try:
                connection, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: the connection stays in the backlog and would wake the loop again immediately.
                logger.error("cannot accept connections, trying again in %d s: %s", ACCEPT_RETRY_S, error)
                self._pause(ACCEPT_RETRY_S)
                return
            connection.setblocking(False)
            if self._server.admission is not None:
                wait_s = self._server.admission.wait_s(connection, plain_host(address[0]), self._listener)
                if wait_s is None:
                    continue
                if wait_s:
                    self._waiting = connection
                    self._pause(wait_s)
                    return
            self._take(connection)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._sock)
        self._retry = self._loop.call_later(pause_s, self.resume)

    def _is_full(self) -> bool:
        """Return True if no slot is free; the acceptor then resumes when one becomes free."""
        why = self._server.slots.why_full(self._listener)
        if not why:
            self._server.slots.waiting.discard(self)
            return False
        self._server.slots.waiting.add(self)
        if monotonic() - self._full_told_s >= FULL_TOLD_S:
            self._full_told_s = monotonic()
            logger.warning(
                "listener %s accepts no more connections until one is closed: %s is reached", self._listener, why
            )
        return True

    def resume(self) -> None:
        """Set up the held-back connection and accept again, unless no slot is free."""
        if self._is_full():
            return
        self._loop.add_reader(self._sock, self._accept)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._take(waiting)

    def _take(self, connection: socket.socket) -> None:
        # asyncio sets this option only if a socket's `proto` is TCP; that of an accepted socket is 0. Without the option, the
        # end of a response waits for an acknowledgement, which the peer delays.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.slots.take(self._listener)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
        self._accepting.add(task)
        task.add_done_callback(self._set_up)

    def _set_up(self, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._server.slots.free(self._listener)  # its protocol was never notified, so it does not free the slot
            logger.debug("a connection was closed before it was set up: %s", error)


def _set_buffers(sock: socket.socket, limits: ServerLimits) -> None:
    for option, size in (
        (socket.SO_SNDBUF, limits.send_buffer_bytes),
        (socket.SO_RCVBUF, limits.receive_buffer_bytes),
    ):
        if size >= 0:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
