"""The server of the Kafka port: its listeners, its open connections, and their shared state.

A TLS connection is created after its handshake, but counts as a connection of its address as soon as it is accepted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.config.listeners import PLAINTEXT, SASL_PROTOCOLS, TLS_PROTOCOLS
from diamant.broker.network.acceptor import Acceptor, ConnectionAdmission, ConnectionSlots
from diamant.broker.network.api import Dispatch, FrameHeader
from diamant.broker.network.client_connection import Connection
from diamant.broker.network.listener_sockets import ListenerEndpoint, plain_host
from diamant.broker.network.refused_peers import RefusedPeers
from diamant.broker.network.request_memory import RequestMemory
from diamant.broker.network.request_metrics import RequestMetrics
from diamant.broker.network.response_writer import Outbox
from diamant.broker.network.server_limits import ServerLimits
from diamant.broker.network.turns import CLOSED_PER_TURN, Turns
from diamant.protocol.wire.server_connection import SCRATCH_BYTES

if TYPE_CHECKING:
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners
    from diamant.broker.security.tls.listener_tls import ListenerTls

logger = logging.getLogger(__name__)


class _ListenerView(NamedTuple):
    """A TLS connection's view of the server, for one listener."""

    server: Server
    listener: str

    def arrived(self, address: str, peer: str) -> bool:
        return self.server.arrived(address, peer)

    def left(self, address: str) -> None:
        self.server.left(address, self.listener)


class Server:
    """All listeners and their connections.

    `dispatch` answers a request with bytes, a list of buffers and file slices, an awaitable of these, or None for no
    response (acks=0). `frame_header(api_key, version, correlation_id, body_size)` returns the bytes before a body.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        frame_header: FrameHeader,
        limits: ServerLimits,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self.on_disconnect: Callable[[str], None] = lambda peer: None
        """Called with the peer of each closed connection."""
        self.dispatch = dispatch  # read for each request, as it may be replaced while connections are open
        self.frame_header = frame_header
        self.limits = limits
        self.metrics = metrics if metrics is not None else RequestMetrics(reads_codes=False)
        self.scratch = bytearray(SCRATCH_BYTES)  # shared, as it holds nothing between two reads
        self.connections: set[Connection] = set()
        self._outbox: Outbox | None = None  # created with the first connection
        self._turns: Turns | None = None
        self.memory = RequestMemory(limits.max_request_memory_bytes) if limits.max_request_memory_bytes > 0 else None
        self.is_stopping = False
        self.refused = RefusedPeers()
        self.quotas: Quotas | None = None
        """The client quotas; None if there are none."""
        self.admission: ConnectionAdmission | None = None
        """The limits on new connections; None if there are none."""
        self.slots = ConnectionSlots(limits)
        self.counts: Counter[str] = Counter()
        """The connections of each address, including those in a TLS handshake."""
        self.sasl: SaslListeners | None = None
        """The listeners with SASL; None if there are none."""
        self._acceptors: list[Acceptor] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._idle_waiter: asyncio.Future[None] | None = None

    def listen(
        self,
        sock: socket.socket,
        listener_name: str,
        advertised_host: str,
        advertised_port: int,
        security_protocol: str = PLAINTEXT,
        tls: ListenerTls | None = None,
        broker_id: int = 1,
    ) -> Acceptor:
        """Accept connections on a bound socket. If `advertised_host` is empty, the address that a client connected to is used.

        Raises ValueError if the TLS or SASL that the security protocol needs is not set up, so no listener is left unprotected.
        """
        has_tls = security_protocol in TLS_PROTOCOLS
        if has_tls != (tls is not None) or (security_protocol in SASL_PROTOCOLS and self.sasl is None):
            raise ValueError(f"listener {listener_name}: {security_protocol} does not match the TLS and SASL setup")
        endpoint = ListenerEndpoint(listener_name, advertised_host, advertised_port, security_protocol, broker_id)
        make: Callable[[], asyncio.BaseProtocol] = partial(Connection, self, endpoint)
        if tls is not None:
            from diamant.broker.security.tls.tls_connection import TlsConnection

            make = partial(TlsConnection, tls, make, _ListenerView(self, listener_name))
        acceptor = Acceptor(sock, listener_name, self.limits, make, self)
        self._acceptors.append(acceptor)
        return acceptor

    def stop_listening(self, acceptor: Acceptor) -> None:
        """Stop an acceptor that `listen` returned. Its connections stay open."""
        acceptor.close()
        self._acceptors.remove(acceptor)

    def set_limits(self, limits: ServerLimits) -> None:
        """Replace the limits. The buffer sizes and backlogs of open sockets do not change."""
        self.limits = limits
        self.slots.set_limits(limits)

    def stop_limiting(self) -> None:
        """Stop limiting the rate of new connections. Idempotent."""
        if self.admission is not None:
            self.admission.close()
            self.admission = None

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine to completion even if its connection closes; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def kept(self, answer: Awaitable[Any]) -> asyncio.Future[Any]:
        """Return a future for a response, whose coroutine runs to completion even if the future is cancelled."""
        return asyncio.shield(self.keep(_as_coroutine(answer)))

    def abort_all(self) -> None:
        """Close all connections immediately."""
        for connection in list(self.connections):
            connection.abort()

    async def settled(self, timeout_s: float) -> None:
        """Wait until no coroutine is answering a request; cancel any that take longer than `timeout_s`."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def outbox(self) -> Outbox:
        """Return the outbox of all connections, which holds responses until the end of a turn of the loop."""
        if self._outbox is None:
            self._outbox = Outbox(asyncio.get_running_loop())
        return self._outbox

    def turns(self) -> Turns:
        """Return the object by which connections take turns in using the loop thread."""
        if self._turns is None:
            self._turns = Turns(asyncio.get_running_loop())
        return self._turns

    def connected(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.metrics.connections_created += 1
        if connection.info.security_protocol not in TLS_PROTOCOLS and not self.arrived(
            connection.info.host, connection.info.peer
        ):
            connection.abort()
        if self._sweep_timer is None and self.limits.max_idle_ms > 0:
            self._schedule_sweep(self.limits.max_idle_ms / 1000)

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.on_disconnect(connection.info.peer)
        self.metrics.connections_closed += 1
        if connection.info.security_protocol not in TLS_PROTOCOLS:
            self.left(connection.info.host, connection.info.listener_name)
        if not self.connections and self._idle_waiter is not None and not self._idle_waiter.done():
            self._idle_waiter.set_result(None)

    def arrived(self, address: str, peer: str) -> bool:
        """Count an accepted connection, before its handshake. If its address has too many, log this and return False."""
        host = plain_host(address)
        self.counts[host] += 1
        if self.admission is None or self.admission.quotas.may_have(host, self.counts[host]):
            return True
        self.refused.log(peer, "more connections from its address than max.connections.per.ip allows")
        return False

    def left(self, address: str, listener: str) -> None:
        """Stop counting a closed connection, even one that `arrived` refused, and free its slot."""
        self.slots.free(listener)
        host = plain_host(address)
        self.counts[host] -= 1
        if not self.counts[host]:
            del self.counts[host]

    def stop_accepting(self) -> None:
        """Accept no new connections or requests. Requests already received are answered."""
        self.is_stopping = True
        for acceptor in self._acceptors:
            acceptor.close()
        self.stop_limiting()

    async def close(self, timeout_s: float) -> None:
        """Stop accepting, answer received requests and close connections when they are done; after `timeout_s`, abort them."""
        self.stop_accepting()
        for acceptor in self._acceptors:
            await acceptor.settled()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            self._idle_waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._idle_waiter}, timeout=timeout_s)
        for connection in list(self.connections):
            connection.abort()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        if self._idle_waiter is not None:
            await self._idle_waiter  # connection_lost is called in the next turn of the loop
        self.refused.close()

    def _schedule_sweep(self, delay_s: float) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        """Close idle connections. One timer serves all connections; it runs only while there are connections.

        As in Kafka (Selector.IdleExpiryManager), a request in progress does not count as traffic. So a peer that has stopped
        reading is detected; its unread bytes are dropped. Idle time is real time, since moving the `Env` clock must not close
        connections.
        """
        self._sweep_timer = None
        max_idle_s = self.limits.max_idle_ms / 1000
        now_s = monotonic()
        oldest_s = now_s
        closed = 0
        for connection in list(self.connections):
            if closed == CLOSED_PER_TURN:
                oldest_s = now_s - max_idle_s  # close the rest soon
                break
            if now_s - connection.last_active_s >= max_idle_s:
                closed += 1
                logger.debug("%s: idle for %d ms, closed", connection.info.peer, self.limits.max_idle_ms)
                (connection.abort if connection.is_write_paused else connection.close)()
            else:
                oldest_s = min(oldest_s, connection.last_active_s)
        if self.connections:
            self._schedule_sweep(max(oldest_s + max_idle_s - now_s, 0.01))


async def _as_coroutine(answer: Awaitable[Any]) -> Any:
    return await answer
