"""The listener: sockets in, frames to the dispatcher, answers out.

Theory of operation. Each connection handles one request after the other. Handling is synchronous in the common case:
bytes arrive, `ServerConnection` makes requests of them, the dispatcher returns the answer, the answer is written, all
in one callback without a task; small answers to several connections are written in a row (`Outbox`). When an answer
takes longer (a pending fetch, a metadata sync) or the peer does not read what we write, the connection is *busy*: its
further requests stay in a queue, and once that holds `max_queued_bytes` the socket is not read any more.

Ranges of a log go from the page cache to the socket in `response_writer.py`, on a duplicate of the socket's descriptor.
The transport's own buffer is empty whenever that happens, because its high-water mark is zero: anything that the kernel
did not take at once pauses the connection. With TLS they are read and encrypted (`copied_answer.py`).

Bounds per connection: one answer being written, one frame being received (`max_frame_bytes`), requests queued
(`max_queued_bytes` plus what one read of the socket held). A connection with TLS is made when its handshake is done; the
connections of an address are counted from when they are accepted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import PLAINTEXT, SASL_PROTOCOLS, TLS_PROTOCOLS
from diamant.broker.network.api import CloseConnection, ConnectionInfo, Dispatch, FrameHeader
from diamant.broker.network.client_wait import ClientWait
from diamant.broker.network.copied_answer import CopyingWriter, answer_writer
from diamant.broker.network.pending_answer import Body, PendingAnswer
from diamant.broker.network.refused_peers import RefusedPeers
from diamant.broker.network.request_memory import MemoryShare, RequestMemory
from diamant.broker.network.request_metrics import RequestMetrics
from diamant.broker.network.response_writer import MAX_BYTES, AnswerWriter, Buffer, Outbox, Part, read_small
from diamant.broker.security.identity.principal import ANONYMOUS
from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.connection import SCRATCH_BYTES, Request, ServerConnection, count_bytes
from diamant.storage.segments.segment import FileSlice

if TYPE_CHECKING:
    from diamant.broker.network.admission import ConnectionAdmission
    from diamant.broker.network.sasl_gate import SaslGate
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.security.sasl.listeners import SaslListeners
    from diamant.broker.security.tls.listener_tls import ListenerTls
    from diamant.protocol.wire.token_frames import TokenFrames

logger = logging.getLogger(__name__)


# Made once: isinstance() takes three times as long with a union that it has to make first.
_BUFFERS = (bytes, bytearray, memoryview)
_BODIES = (*_BUFFERS, list, tuple)

MAX_QUEUED_BYTES = 1024 * 1024
"""Requests waiting on a busy connection: above this its socket is not read."""

MAX_QUEUED_REQUESTS = 1024
"""As `MAX_QUEUED_BYTES`, for requests that are nearly empty."""

REQUEST_OVERHEAD_BYTES = 128
"""The cost of a queued request beside its body."""


ACCEPTED_PER_TURN = 100
"""Connections that one listener accepts before others get their turn."""

MIN_BACKLOG = 1024
"""Connections that may wait to be accepted, whatever the configuration says.

Kafka has a thread that does nothing but accept. Here a busy loop may take some milliseconds, and a client that finds the
backlog full tries again after a whole second.
"""

ACCEPT_RETRY_S = 1
"""Pause after accepting has failed for want of descriptors."""


class ServerLimits(NamedTuple):
    """Limits on what peers may take."""

    max_frame_bytes: int
    max_connections: int
    max_idle_ms: int
    max_queued_bytes: int = MAX_QUEUED_BYTES
    backlog: int = 128
    send_buffer_bytes: int = -1  # -1: as the system has it
    receive_buffer_bytes: int = -1
    max_request_memory_bytes: int = -1  # of all connections; -1: no limit

    @classmethod
    def of(cls, config: BrokerConfig) -> ServerLimits:
        """Those of a configuration."""
        return cls(
            max_frame_bytes=config.socket_request_max_bytes,
            max_connections=config.max_connections,
            max_idle_ms=config.connections_max_idle_ms,
            backlog=config.socket_listen_backlog_size,
            send_buffer_bytes=config.socket_send_buffer_bytes,
            receive_buffer_bytes=config.socket_receive_buffer_bytes,
            max_request_memory_bytes=config.queued_max_request_bytes,
        )


class Server:
    """All listeners and their connections.

    `dispatch` answers a request: bytes, a list of buffers and file slices, an awaitable of these, or None for "no
    answer" (acks=0). `frame_header(api_key, version, correlation_id, body_size)` gives the bytes before a body.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        frame_header: FrameHeader,
        limits: ServerLimits,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self.dispatch = dispatch  # may be replaced while connections are open: it is looked up for each request
        self.frame_header = frame_header
        self.limits = limits
        self.metrics = metrics if metrics is not None else RequestMetrics(reads_codes=False)
        self.scratch = bytearray(SCRATCH_BYTES)  # shared: nothing stays in it between two reads
        self.connections: set[Connection] = set()
        self._outbox: Outbox | None = None  # made with the first connection
        self.memory = RequestMemory(limits.max_request_memory_bytes) if limits.max_request_memory_bytes > 0 else None
        self.is_stopping = False
        self.refused = RefusedPeers()
        self.quotas: Quotas | None = None
        """The limits on what clients take; None while there are none."""
        self.admission: ConnectionAdmission | None = None
        """The limits on new connections; None while there are none."""
        self.counts: Counter[str] = Counter()
        """The connections of each address, those in a TLS handshake among them."""
        self.sasl: SaslListeners | None = None
        """None without a listener that has SASL."""
        self._listeners: list[_Listener] = []
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
    ) -> None:
        """Accept connections on a bound socket. Empty `advertised_host` = the address that a connection arrived at.

        ValueError if what the security protocol asks for is missing: nothing is served in the open by mistake.
        """
        has_tls = security_protocol in TLS_PROTOCOLS
        if has_tls != (tls is not None) or (security_protocol in SASL_PROTOCOLS and self.sasl is None):
            raise ValueError(f"listener {listener_name}: {security_protocol} without its TLS or SASL")
        place = _Place(listener_name, advertised_host, advertised_port, security_protocol)
        make: Callable[[], asyncio.BaseProtocol] = partial(Connection, self, place)
        if tls is not None:
            from diamant.broker.security.tls.connection import TlsConnection

            make = partial(TlsConnection, tls, make, self)
        sock.setblocking(False)
        _set_buffers(sock, self.limits)  # inherited by what is accepted; the receive buffer must be known before
        sock.listen(max(self.limits.backlog, MIN_BACKLOG))
        self._listeners.append(_Listener(sock, make, self))

    def stop_limiting(self) -> None:
        """Take all new connections from now on; harmless if they are already."""
        if self.admission is not None:
            self.admission.close()
            self.admission = None

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run to the end even if the connection goes; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def kept(self, answer: Awaitable[Any]) -> asyncio.Future[Any]:
        """A future for an answer that is run to its end even if the future is cancelled."""
        return asyncio.shield(self.keep(_as_coroutine(answer)))

    def abort_all(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections):
            connection.abort()

    async def settled(self, timeout_s: float) -> None:
        """Wait until no coroutine answers a request; those that last longer are cancelled."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def outbox(self) -> Outbox:
        """The answers that are written at the end of a turn of the loop, of all connections."""
        if self._outbox is None:
            self._outbox = Outbox(asyncio.get_running_loop())
        return self._outbox

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
        self.metrics.connections_closed += 1
        if connection.info.security_protocol not in TLS_PROTOCOLS:
            self.left(connection.info.host)
        if not self.connections and self._idle_waiter is not None and not self._idle_waiter.done():
            self._idle_waiter.set_result(None)

    def arrived(self, address: str, peer: str) -> bool:
        """Count a connection that was accepted, before its handshake; False, with a line of log, if its address has too many."""
        host = plain_host(address)
        self.counts[host] += 1
        if self.admission is None or self.admission.quotas.may_have(host, self.counts[host]):
            return True
        self.refused.tell(peer, "more connections from its address than max.connections.per.ip allows")
        return False

    def left(self, address: str) -> None:
        """Count a connection that `arrived` as gone, whatever that has answered."""
        host = plain_host(address)
        self.counts[host] -= 1
        if not self.counts[host]:
            del self.counts[host]

    def stop_accepting(self) -> None:
        """Take no new connections and no new requests; what has been received is answered."""
        self.is_stopping = True
        for listener in self._listeners:
            listener.close()
        self.stop_limiting()

    async def close(self, timeout_s: float) -> None:
        """Stop accepting, answer the requests in progress, close what is idle; after `timeout_s` close the rest as
        it is.
        """
        self.stop_accepting()
        for listener in self._listeners:
            await listener.settled()
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
            await self._idle_waiter  # connection_lost comes with the next turn of the loop
        self.refused.close()

    def _schedule_sweep(self, delay_s: float) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        """Close connections without traffic. One timer for all, and none without connections.

        As in Kafka (Selector.IdleExpiryManager) a request in progress does not count as traffic: it is how a peer that
        stopped reading is found. The time is real, not the `Env` clock: moving that must not cut connections.
        """
        self._sweep_timer = None
        max_idle_s = self.limits.max_idle_ms / 1000
        now_s = monotonic()
        oldest_s = now_s
        for connection in list(self.connections):
            if now_s - connection.last_active_s >= max_idle_s:
                logger.debug("%s: idle for %d ms, closed", connection.info.peer, self.limits.max_idle_ms)
                connection.close()
            else:
                oldest_s = min(oldest_s, connection.last_active_s)
        if self.connections:
            self._schedule_sweep(max(oldest_s + max_idle_s - now_s, 0.01))


class _Listener:
    """A listening socket.

    Not asyncio's server: one that is closed between accepting a connection and setting it up leaves that socket open.
    """

    def __init__(self, sock: socket.socket, make: Callable[[], asyncio.BaseProtocol], server: Server) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._make = make
        self._server = server
        self._waiting: socket.socket | None = None  # accepted, and taken when the time has come
        self._accepting: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop listening; harmless a second time."""
        if self._sock.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        if self._waiting is not None:
            self._waiting.close()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    async def settled(self) -> None:
        """Wait until every accepted connection has been set up."""
        if self._accepting:
            await asyncio.wait(set(self._accepting))

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connection, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: the connection stays in the backlog, and would wake us again at once.
                logger.error("cannot accept connections, trying again in %d s: %s", ACCEPT_RETRY_S, error)
                self._pause(ACCEPT_RETRY_S)
                return
            connection.setblocking(False)
            if self._server.admission is not None:
                wait_s = self._server.admission.wait_s(connection, plain_host(address[0]))
                if wait_s is None:
                    continue
                if wait_s:
                    self._waiting = connection
                    self._pause(wait_s)
                    return
            self._take(connection)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._sock)
        self._retry = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._take(waiting)
        self._loop.add_reader(self._sock, self._accept)

    def _take(self, connection: socket.socket) -> None:
        # asyncio does so only where a socket names its protocol, which an accepted one does not. Without it the end of
        # an answer waits for an acknowledgement that the peer delays.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
        self._accepting.add(task)
        task.add_done_callback(self._set_up)

    def _set_up(self, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection was gone before it was set up: %s", error)


class _Place(NamedTuple):
    """The listener that a connection has come to, as `Server.listen` was told of it."""

    listener_name: str
    advertised_host: str
    advertised_port: int
    security_protocol: str


class Connection(asyncio.BufferedProtocol):
    """One client connection: receives in place, answers in order."""

    info: ConnectionInfo

    def __init__(self, server: Server, place: _Place) -> None:
        self._server = server
        self._place = place
        self._gate: SaslGate | None = None
        self.frames: ServerConnection | TokenFrames = ServerConnection(
            max_frame_bytes=server.limits.max_frame_bytes, scratch=server.scratch
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Request] = deque()
        self.queued_bytes = 0  # of all requests in the queue
        self._waiting: asyncio.Future[Any] | PendingAnswer | None = None  # the answer that is awaited or being written
        self._is_write_paused = False
        self.is_reading_paused = False  # while the queue is full and the socket is left alone
        self._is_finishing = False
        self._memory: MemoryShare | None = None
        if server.memory is not None:
            self._memory = MemoryShare(server.memory, partial(self._loop.call_soon, self._drain))
        self._answers: AnswerWriter | CopyingWriter | None = None
        self._outbox = server.outbox()
        self._metrics = server.metrics
        self._client_wait = ClientWait(self._loop)
        self._handled_since_s = 0.0  # the request that is being answered; there is one at a time
        self.last_active_s = monotonic()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.info = _info(transport, self._place)
        if self._server.sasl is not None and self._place.security_protocol in SASL_PROTOCOLS:
            from diamant.broker.network.sasl_gate import SaslGate

            self._gate = SaslGate(self, self._server, self._server.sasl)
        self._server.connected(self)
        if self._server.is_stopping:
            self.abort()
        elif len(self._server.connections) > self._server.limits.max_connections:
            self._refuse(f"more than max.connections={self._server.limits.max_connections} connections")
        else:
            self._transport.set_write_buffer_limits(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gate = None
        if self._memory is not None:
            self._memory.close(self.queued_bytes)
        self._queue.clear()
        self.queued_bytes = 0
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
        self._client_wait.end()
        if self._answers is not None:
            self._answers.close()
        self._server.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        self._metrics.received_bytes += nbytes
        try:
            requests = self.frames.received(nbytes)
        except ProtocolError as error:
            self._refuse(str(error))
            return
        now_s = self.last_active_s = monotonic()
        if self._is_finishing:
            return
        held = self._queue or self._waiting or self._client_wait.timer or self._is_write_paused or self._memory
        if len(requests) == 1 and not held:
            self._handle(requests[0], now_s)  # what most reads bring: it needs no queue
            return
        for request in requests:
            self._queue.append(request)
            self.queued_bytes += len(request.body) + REQUEST_OVERHEAD_BYTES
        if self._memory is not None:
            sizes = (len(request.body) + REQUEST_OVERHEAD_BYTES for request in requests)
            self._memory.received(sizes, self.frames.announced_bytes)
        self._drain()

    def eof_received(self) -> bool:
        return False  # a peer that has closed its half waits for nothing: close ours

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._answers is not None:
            self._answers.resume()
        self._drain()

    # What the server calls

    @property
    def is_busy(self) -> bool:
        """True while a request is being answered, or the client has to wait before the next one is."""
        return self._waiting is not None or self._is_write_paused or self._client_wait.timer is not None

    def finish(self) -> None:
        """Answer what has been received, take nothing more, close."""
        self._is_finishing = True
        self._client_wait.end()
        self._outbox.flush()
        if self._transport is not None and not self.is_busy and not self._queue:
            self._transport.close()

    def close(self) -> None:
        """Close after what is in the transport's buffer has gone out."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.abort()

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.write(data)

    # Requests

    def _drain(self) -> None:
        """Handle queued requests until one takes time or the peer stops reading; read the socket only while the queue
        is short.
        """
        queue = self._queue
        while queue and not self.is_busy and self._transport is not None:
            request = queue.popleft()
            size = len(request.body) + REQUEST_OVERHEAD_BYTES
            self.queued_bytes -= size
            if self._memory is not None:
                self._memory.begin_answer(size)
            self._handle(request, monotonic())
            if self._memory is not None and self._waiting is None:
                self._memory.end_answer()
        if self._transport is None or self._transport.is_closing():
            return
        is_full = (
            (self._memory is not None and self._memory.is_starved)
            or self.queued_bytes > self._server.limits.max_queued_bytes
            or len(queue) > MAX_QUEUED_REQUESTS
        )
        if is_full != self.is_reading_paused:
            self.is_reading_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if self._is_finishing and not queue and not self.is_busy:
            self.close()

    def _handle(self, request: Request, now_s: float) -> None:
        self._handled_since_s = now_s
        try:
            gate = self._gate
            answer = (self._server.dispatch if gate is None else gate)(self.info, request)
        except Exception as error:
            self._fail(request, error)
            return
        if self._server.quotas is not None:
            self._client_wait.busy_s = monotonic() - now_s
        if type(answer) is bytes or isinstance(answer, _BODIES):
            self._reply(request, answer)
            return
        if answer is None:
            self._count(request, None, 0)
            return
        if isinstance(answer, PendingAnswer):
            self._waiting = answer
            answer.taker = partial(self._given, request)
            return
        # A future goes with its connection, as a pending answer does; a coroutine changes something and runs to its end.
        future = answer if isinstance(answer, asyncio.Future) else self._server.kept(cast(Awaitable[Any], answer))
        self._waiting = future
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: Request, future: asyncio.Future[Any]) -> None:
        if self._waiting is not future:
            if not future.cancelled() and future.exception() is not None and self._transport is not None:
                logger.error("%s: request after the answer was given up", self.info.peer, exc_info=future.exception())
            return
        if future.cancelled():
            self._waiting = None
            self.abort()
            return
        error = future.exception()
        self._given(request, None if error is not None else future.result(), error)

    def _given(self, request: Request, body: Body | None, error: BaseException | None) -> None:
        """An answer that took time, or its error; called amid the work of others, who must not notice."""
        self._waiting = None
        self.last_active_s = monotonic()
        if error is None:
            try:
                if body is None:
                    self._count(request, None, 0)
                else:
                    self._reply(request, body)
            except Exception as raised:
                error = raised
        if error is not None:
            self._fail(request, error)
            return
        if self._memory is not None and self._waiting is None:
            self._memory.end_answer()
        if self._queue or self._is_finishing:
            self._loop.call_soon(self._drain)

    def _fail(self, request: Request, error: BaseException) -> None:
        if isinstance(error, CloseConnection) and error.last_bytes and self._transport is not None:
            self._server.refused.tell(self.info.peer, str(error))
            self._outbox.flush()
            self._transport.write(error.last_bytes)
            self._transport.close()
            return
        if isinstance(error, ProtocolError | CloseConnection):
            self._refuse(str(error))
            return
        api = f"API key {request.api_key} v{request.api_version}"
        logger.error("%s: %s failed, connection closed", self.info.peer, api, exc_info=error)
        self.abort()

    def _refuse(self, reason: str) -> None:
        """Close this connection, nothing else, and say why in one line."""
        self._server.refused.tell(self.info.peer, reason)
        self.abort()

    # Answers

    def _reply(self, request: Request, body: Buffer | Sequence[Part]) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._server.quotas is not None:
            body = cast(Body, self._client_wait.answer(self._server.quotas, self.info, request, body, self._drain))
        if type(body) is list and len(body) == 1 and type(body[0]) is not FileSlice:
            body = body[0]
        if type(body) is bytes or isinstance(body, _BUFFERS):
            header = self._server.frame_header(request.api_key, request.api_version, request.correlation_id, len(body))
            frame = header + body
            size = len(frame)
            now_s = monotonic()
            if size <= MAX_BYTES and not self._queue:
                self._outbox.put(transport, frame, now_s)
            else:
                self._outbox.flush()
                transport.write(frame)
            latency_s = now_s - self._handled_since_s  # as `_count`, without a call: the most frequent way
            self._metrics.answered(request.api_key, request.api_version, latency_s, body, size)
            return
        self._outbox.flush()
        body_size = count_bytes(body)
        header = self._server.frame_header(request.api_key, request.api_version, request.correlation_id, body_size)
        small = read_small(body)
        if small is not None:
            transport.write(b"".join((header, *small)))
            self._count(request, body, len(header) + body_size)
            return
        if self._answers is None:
            self._answers = answer_writer(transport)
        self._waiting = writing = self._answers.write([header, *body])
        writing.add_done_callback(partial(self._written, request, len(header) + body_size))

    def _count(self, request: Request, body: Buffer | Sequence[Part] | None, size: int) -> None:
        if body is None and not size and self._server.quotas is not None:  # acks=0
            self._client_wait.answer(self._server.quotas, self.info, request, None, self._drain)
        latency_s = monotonic() - self._handled_since_s
        self._metrics.answered(request.api_key, request.api_version, latency_s, body, size)

    def _written(self, request: Request, size: int, writing: asyncio.Future[None]) -> None:
        if self._waiting is writing:
            self._waiting = None
        if writing.cancelled():
            return
        error = writing.exception()
        if error is None:
            self.last_active_s = monotonic()
            self._count(request, None, size)
            if self._memory is not None:
                self._memory.end_answer()
            self._drain()
            return
        if not isinstance(error, ConnectionError):
            logger.error("%s: answer could not be written, connection closed", self.info.peer, exc_info=error)
        self.abort()


def _info(transport: asyncio.BaseTransport, place: _Place) -> ConnectionInfo:
    peer = transport.get_extra_info("peername")
    local = transport.get_extra_info("sockname")
    return ConnectionInfo(
        place.listener_name,
        f"{peer[0]}:{peer[1]}" if peer else "unknown peer",
        plain_host(peer[0]) if peer else "",
        place.advertised_host or plain_host(local[0]),
        place.advertised_port or local[1],
        place.security_protocol,
        transport.get_extra_info("principal", ANONYMOUS),
    )


def plain_host(address: str) -> str:
    """The address of a peer, which a socket of both families writes as IPv6."""
    return address.removeprefix("::ffff:")


def _set_buffers(sock: socket.socket, limits: ServerLimits) -> None:
    for option, size in (
        (socket.SO_SNDBUF, limits.send_buffer_bytes),
        (socket.SO_RCVBUF, limits.receive_buffer_bytes),
    ):
        if size >= 0:
            sock.setsockopt(socket.SOL_SOCKET, option, size)


async def _as_coroutine(answer: Awaitable[Any]) -> Any:
    return await answer
