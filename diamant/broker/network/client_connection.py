"""A client's connection, which answers requests in order.

Theory of operation. Each connection handles one request at a time. Handling is synchronous in the common case: bytes
arrive, `ServerConnection` parses requests, the dispatcher returns the response and the connection writes it, all in one
callback without a task. `Outbox` writes small responses to several connections together. When a response takes longer (a
pending fetch, a metadata sync) or the peer does not read, the connection is *busy*: further requests are queued, and once
the queue holds `max_queued_bytes`, the socket is no longer read. A queue is handled in slices, between which other connections
have their turns (`turns.py`).

`response_writer.py` sends ranges of a log from the page cache to the socket, on a duplicate of the socket's descriptor.
The transport's own buffer is empty at that time, because its high-water mark is zero: the connection pauses as soon as the
kernel accepts only some of the bytes. With TLS, the ranges are read and encrypted (`copied_answer.py`).

Bounds per connection: one response being written, one frame being received (`max_frame_bytes`), and a queue of requests
(`max_queued_bytes` plus one read of the socket).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

from diamant.broker.config.listeners import SASL_PROTOCOLS
from diamant.broker.network.api import CloseConnection, ConnectionInfo, Dispatch, FrameHeader
from diamant.broker.network.client_wait import ClientWait
from diamant.broker.network.copied_answer import CopyingWriter, answer_writer
from diamant.broker.network.listener_sockets import ListenerEndpoint
from diamant.broker.network.pending_answer import Body, PendingAnswer
from diamant.broker.network.refused_peers import RefusedPeers
from diamant.broker.network.request_memory import RequestMemory, RequestQueue
from diamant.broker.network.request_metrics import RequestMetrics
from diamant.broker.network.response_writer import (
    LARGE_BYTES,
    MAX_BYTES,
    AnswerWriter,
    Buffer,
    Outbox,
    Part,
    read_small,
)
from diamant.broker.network.server_limits import ServerLimits
from diamant.broker.network.turns import COUNTED_S, SLICE_S, Turns
from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.server_connection import Request, ServerConnection, count_bytes
from diamant.storage.segments.segment import FileSlice

if TYPE_CHECKING:
    from diamant.broker.network.sasl_gate import SaslGate
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners
    from diamant.protocol.wire.token_frames import TokenFrames

logger = logging.getLogger(__name__)

# Built once: isinstance() takes three times as long if it has to build the union.
_BUFFERS = (bytes, bytearray, memoryview)
_BODIES = (*_BUFFERS, list, tuple)


class KafkaPort(Protocol):
    """A connection's view of the server."""

    dispatch: Dispatch
    frame_header: FrameHeader
    limits: ServerLimits
    metrics: RequestMetrics
    refused: RefusedPeers
    memory: RequestMemory | None
    quotas: Quotas | None
    sasl: SaslListeners | None
    scratch: bytearray
    is_stopping: bool

    @property
    def connections(self) -> Collection[object]:
        """The open connections."""

    def outbox(self) -> Outbox:
        """Return the outbox, which holds responses until the end of a turn of the loop."""

    def turns(self) -> Turns:
        """Return the object by which connections take turns."""

    def connected(self, connection: Connection) -> None:
        """Register an open connection, once its `info` is known."""

    def disconnected(self, connection: Connection) -> None:
        """Unregister a connection."""

    def kept(self, answer: Awaitable[Any]) -> asyncio.Future[Any]:
        """Return a future for a response, whose coroutine runs to completion even if the future is cancelled."""


class Connection(asyncio.BufferedProtocol):
    """One client connection. It receives without copying and answers in order."""

    info: ConnectionInfo

    def __init__(self, server: KafkaPort, endpoint: ListenerEndpoint) -> None:
        self._server = server
        self._endpoint = endpoint
        self._gate: SaslGate | None = None
        self.frames: ServerConnection | TokenFrames = ServerConnection(
            max_frame_bytes=server.limits.max_frame_bytes, scratch=server.scratch
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.queue = RequestQueue(server.memory, partial(self._loop.call_soon, self._drain))
        self._waiting: asyncio.Future[Any] | PendingAnswer | None = None  # the response being awaited or written
        self.is_write_paused = False  # while the peer does not read
        self.is_reading_paused = False  # while the queue is full
        self._is_finishing = False
        self._answers: AnswerWriter | CopyingWriter | None = None
        self._outbox = server.outbox()
        self._metrics = server.metrics
        self._client_wait = ClientWait(self._loop)
        self._turns = server.turns()
        self.used_s = 0.0
        self._waits_for_turn = False
        self._handled_since_s = 0.0  # start of the request in progress
        self.last_active_s = monotonic()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.info = self._endpoint.connection_info(transport)
        if self._server.sasl is not None and self._endpoint.security_protocol in SASL_PROTOCOLS:
            from diamant.broker.network.sasl_gate import SaslGate

            self._gate = SaslGate(self, self._server, self._server.sasl)
        self._server.connected(self)
        self._transport.set_write_buffer_limits(0)
        if self._server.is_stopping:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        getattr(transport, "__dict__", {}).pop("_read_ready_cb", None)  # this callback keeps asyncio's transport alive
        self._gate = None
        self.queue.close()
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
            self._fail(None, error)
            return
        now_s = self.last_active_s = monotonic()
        queue = self.queue
        if self._is_finishing or not (requests or queue.share):
            return  # only part of a large request has arrived
        held = queue.requests or self._waiting or self._client_wait.timer or self.is_write_paused or queue.share
        if len(requests) == 1 and not held and self._turns.left_s > 0:
            self._handle(requests[0], now_s)  # the common case: a single request needs no queue
            used_s = monotonic() - now_s
            if used_s > COUNTED_S:
                self._turns.used(self, used_s)
            return
        queue.put(requests, self.frames.announced_bytes)
        self._drain()

    def eof_received(self) -> bool:
        # A peer that has closed its side expects no response, so close ours once its requests are handled.
        self._is_finishing = self._is_finishing or self._waits_for_turn
        return self._waits_for_turn or self._turns.closes_later(self)

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False
        # Write later: if a write fails in this callback, asyncio's transport calls `connection_lost` twice (CPython 3.11).
        self._loop.call_soon(self._write_on)

    def _write_on(self) -> None:
        if self._answers is not None and not self.is_write_paused:
            self._answers.resume()
        self._drain()

    @property
    def is_busy(self) -> bool:
        """True while a request is in progress or the client is throttled."""
        return self._waiting is not None or self.is_write_paused or self._client_wait.timer is not None

    @property
    def _may_handle(self) -> bool:
        is_closing = self._transport is None or self._transport.is_closing()
        return not (is_closing or self._waits_for_turn or self.is_busy)

    def finish(self) -> None:
        """Read no more, answer the received requests, then close."""
        self._is_finishing = True
        self._client_wait.end()
        self._drain()

    def close(self) -> None:
        """Close once the transport's buffer has been sent."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.abort()

    def mute(self) -> None:
        """Ignore the request in progress and all later ones, but stay open until `abort`, like a host that hangs."""
        waiting, self._waiting = self._waiting, self._loop.create_future()
        if waiting is not None:
            waiting.cancel()
        self.queue.requests.clear()
        self._is_finishing = True

    def send(self, data: bytes) -> None:
        """Write raw bytes."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.write(data)

    def take_turn(self) -> None:
        """Handle queued requests for at most a slice of time."""
        self._waits_for_turn = False
        self._drain()

    def _drain(self) -> None:
        """Handle queued requests for at most a slice of time. Stop reading while the queue is full."""
        queue = self.queue
        began_s = now_s = monotonic()
        while queue.requests and now_s - began_s < SLICE_S and self._turns.left_s > 0 and self._may_handle:
            self._handle(queue.take(), now_s)
            if queue.share is not None and self._waiting is None:
                queue.end_answer()
            now_s = monotonic()
        if now_s - began_s > COUNTED_S:
            self._turns.used(self, now_s - began_s)
        if queue.requests and self._may_handle:
            self._waits_for_turn = True
            self._turns.wait(self)
        if self._transport is None or self._transport.is_closing():
            return
        is_full = queue.is_full(self._server.limits.max_queued_bytes)
        if is_full != self.is_reading_paused:
            self.is_reading_paused = is_full
            (self._transport.pause_reading if is_full else self._transport.resume_reading)()
        if self._is_finishing and not queue.requests and not self.is_busy:
            self.close()

    def _handle(self, request: Request, now_s: float) -> None:
        self._handled_since_s = now_s
        try:
            gate = self._gate
            answer = (self._server.dispatch if gate is None else gate)(self.info, request)
            if self._server.quotas is not None:
                self._client_wait.busy_s = monotonic() - now_s
            if type(answer) is bytes or isinstance(answer, _BODIES):
                return self._reply(request, answer)
            if answer is None:
                return self._count(request, None, 0)
        except Exception as error:  # including one of the reply, since other connections wait for the end of this turn
            self._fail(request, error)
            return
        if isinstance(answer, PendingAnswer):
            self._waiting = answer
            answer.taker = partial(self._given, request)
            return
        # A future or a pending answer is dropped with its connection. A coroutine changes state, so it runs to completion.
        future = answer if isinstance(answer, asyncio.Future) else self._server.kept(cast(Awaitable[Any], answer))
        self._waiting = future
        future.add_done_callback(partial(self._answered, request))

    def _answered(self, request: Request, future: asyncio.Future[Any]) -> None:
        if self._waiting is not future:
            late = None if future.cancelled() or self._transport is None else future.exception()
            if late is not None:
                logger.error("%s: request failed after its response had been abandoned", self.info.peer, exc_info=late)
            return
        if future.cancelled():
            self._waiting = None
            self.abort()
            return
        error = future.exception()
        self._given(request, None if error is not None else future.result(), error)

    def _given(self, request: Request, body: Body | None, error: BaseException | None) -> None:
        """Write a response that came later, or handle its error. Must not raise: it may run in another connection's callback."""
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
        if self._waiting is None:
            self.queue.end_answer()
        if self.queue.requests or self._is_finishing:
            self._loop.call_soon(self._drain)

    def _fail(self, request: Request | None, error: BaseException) -> None:
        if isinstance(error, CloseConnection) and error.last_bytes and self._transport is not None:
            self._server.refused.log(self.info.peer, str(error))
            self._outbox.flush()
            self._transport.write(error.last_bytes)
            self._transport.close()
            return
        if isinstance(error, ProtocolError | CloseConnection):
            self._server.refused.log(self.info.peer, str(error))
            self.abort()
            return
        assert request is not None
        api = f"API key {request.api_key} v{request.api_version}"
        logger.error("%s: %s failed, connection closed", self.info.peer, api, exc_info=error)
        self.abort()

    def _reply(self, request: Request, body: Buffer | Sequence[Part]) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._server.quotas is not None:
            body = cast(Body, self._client_wait.answer(self._server.quotas, self.info, request, body, self._drain))
        if type(body) is list and len(body) == 1 and type(body[0]) is not FileSlice:
            body = body[0]
        if len(body) < LARGE_BYTES and (type(body) is bytes or isinstance(body, _BUFFERS)):
            header = self._server.frame_header(request.api_key, request.api_version, request.correlation_id, len(body))
            frame = header + body
            size = len(frame)
            now_s = monotonic()
            if size <= MAX_BYTES and not self.queue.requests:
                self._outbox.put(transport, frame, now_s)
            else:
                self._outbox.flush()
                transport.write(frame)
            latency_s = now_s - self._handled_since_s  # `_count` inlined: the most frequent path
            self._metrics.answered(request.api_key, request.api_version, latency_s, body, size)
            return
        self._outbox.flush()
        counted = None
        if type(body) is not list and isinstance(body, _BUFFERS):
            counted, body = body, [body]
        body_size = count_bytes(body)
        header = self._server.frame_header(request.api_key, request.api_version, request.correlation_id, body_size)
        small = read_small(body) if body_size < LARGE_BYTES else None
        if small is not None:
            transport.write(b"".join((header, *small)))
            self._count(request, body, len(header) + body_size)
            return
        self._answers = self._answers or answer_writer(transport)
        self._waiting = writing = self._answers.write([header, *body])
        writing.add_done_callback(partial(self._written, request, counted, len(header) + body_size))

    def _count(self, request: Request, body: Buffer | Sequence[Part] | None, size: int) -> None:
        if body is None and not size and self._server.quotas is not None:  # acks=0
            self._client_wait.answer(self._server.quotas, self.info, request, None, self._drain)
        latency_s = monotonic() - self._handled_since_s
        self._metrics.answered(request.api_key, request.api_version, latency_s, body, size)

    def _written(self, request: Request, counted: Buffer | None, size: int, writing: asyncio.Future[None]) -> None:
        if self._waiting is writing:
            self._waiting = None
        if writing.cancelled():
            return
        error = writing.exception()
        if error is None:
            self.last_active_s = monotonic()
            self._count(request, counted, size)
            self.queue.end_answer()
            self._drain()
            return
        if not isinstance(error, ConnectionError):
            logger.error("%s: response could not be written, connection closed", self.info.peer, exc_info=error)
        self.abort()
