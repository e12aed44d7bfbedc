"""The gate of a connection to a listener with SASL: until the client is authenticated, only authentication requests pass.

The gate passes SaslHandshake and SaslAuthenticate on to the dispatcher, so faults and metrics cover them like other APIs. If
the response to either is an error, the connection is closed after `connection.failed.authentication.delay.ms`.

Source: SaslServerAuthenticator; Selector.maybeDelayCloseOnAuthenticationFailure.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from diamant.broker.network.api import Answer, CloseConnection, ConnectionInfo, Dispatch, frame_header
from diamant.broker.network.request_memory import RequestQueue
from diamant.broker.network.response_writer import Buffer
from diamant.broker.security.sasl.session import SASL_AUTHENTICATE, SASL_HANDSHAKE, SaslSession, SaslState
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.error_shape import ErrorShape
from diamant.protocol.wire.schemas import decode_request, encode_response_fields
from diamant.protocol.wire.server_connection import Request, ServerConnection
from diamant.protocol.wire.token_frames import BARE_TOKEN, TokenFrames

if TYPE_CHECKING:
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners

_SASL = (SASL_HANDSHAKE, SASL_AUTHENTICATE)


class Gated(Protocol):
    """The gate's view of a connection."""

    info: ConnectionInfo
    frames: ServerConnection | TokenFrames
    """The parser of incoming frames."""

    queue: RequestQueue
    """The requests that have been read but not handled."""

    def send(self, data: bytes) -> None:
        """Write raw bytes."""


class Dispatching(Protocol):
    """The gate's view of a server."""

    dispatch: Dispatch


class SaslGate:
    """The gate of one connection. It also limits the size of frames until the client is authenticated."""

    def __init__(self, connection: Gated, server: Dispatching, sasl: SaslListeners) -> None:
        self._connection = connection
        self._server = server
        self._frames = connection.frames
        self._max_frame_bytes = connection.frames.max_frame_bytes
        self.session: SaslSession = sasl.session(connection.info.listener_name)
        self._failure_delay_ms = sasl.failure_delay_ms
        self._refuse = sasl.refuse
        connection.frames.max_frame_bytes = sasl.receive_max_bytes
        connection.info = connection.info._replace(sasl=self.session)

    def __call__(self, connection: ConnectionInfo, request: Request) -> Answer:
        """Answer a request, like the dispatcher. Raises CloseConnection for a request that is refused without a response."""
        session, key = self.session, request.api_key
        reason = session.refusal(key)
        if reason:
            is_in_place_of_token = session.is_awaiting_token
            session.fail(reason)
            if is_in_place_of_token and (body := self._refuse(request)) is not None:
                return self._ended(request, body)
            raise CloseConnection(reason)
        if request.api_version == BARE_TOKEN:
            return self._take_bare(bytes(request.body))
        if key in _SASL:
            answer = self._server.dispatch(connection, request)
            if isinstance(answer, bytes):
                return self._settled(request, answer)
            return self._settled_later(request, cast("Awaitable[Buffer]", answer))
        if session.is_awaiting_token:
            return self._illegal_api_versions(request)
        return self._server.dispatch(connection, request)

    # -- answers of SaslHandshake and SaslAuthenticate ----------------------------------------------------------------

    async def _settled_later(self, request: Request, answer: Awaitable[Buffer]) -> Buffer:
        """Like `_settled`, but for a response that a fault delays."""
        settled = self._settled(request, bytes(await answer))
        return settled if isinstance(settled, bytes) else await settled

    def _settled(self, request: Request, body: bytes) -> bytes | asyncio.Future[bytes]:
        session = self.session
        if session.state is SaslState.COMPLETE:
            self._let_in()
            return body
        if body.startswith(b"\0\0"):  # both responses begin with their error code
            if session.sends_bare_tokens:
                self._replace_frames(TokenFrames(max_frame_bytes=self._frames.max_frame_bytes))
            return body
        if session.state is not SaslState.FAILED:
            session.fail(f"{apis.API_NAMES[request.api_key]} was answered with an error")  # by an injected fault
        return self._ended(request, body)

    def _ended(self, request: Request, body: bytes) -> asyncio.Future[bytes]:
        header = frame_header(request.api_key, request.api_version, request.correlation_id, len(body))
        return self._end_later(header + body)

    def _end_later(self, last_bytes: bytes) -> asyncio.Future[bytes]:
        """Return a future that sends these bytes and closes the connection, after the delay for failures."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        error = CloseConnection(self.session.failure, last_bytes)
        loop.call_later(self._failure_delay_ms / 1000, _end, future, error)
        return future

    def _illegal_api_versions(self, request: Request) -> Answer:
        self.session.fail("ApiVersions during authentication")
        if not apis.is_served(request.api_key, request.api_version):
            raise CloseConnection(self.session.failure)
        fields = {"error_code": int(ErrorCode.ILLEGAL_SASL_STATE)}
        return self._ended(request, encode_response_fields(request.api_key, request.api_version, fields))

    # -- tokens without a header --------------------------------------------------------------------------------------

    def _take_bare(self, token: bytes) -> Answer:
        reply = self.session.authenticate(token)
        if reply.code is not ErrorCode.NONE:
            return self._end_later(b"")
        if self.session.state is SaslState.COMPLETE:
            self._let_in()
            self._replace_frames(self._frames)
        self._connection.send(struct.pack(">i", len(reply.token)) + reply.token)
        return None

    def _replace_frames(self, frames: ServerConnection | TokenFrames) -> None:
        """Replace the parser of incoming frames."""
        connection = self._connection
        if connection.frames.pending_bytes or connection.queue.requests:
            raise CloseConnection("the client sent bytes before the frame format was agreed on")
        connection.frames = frames

    def _let_in(self) -> None:
        """Serve all requests from now on, with the session's principal."""
        connection, principal = self._connection, self.session.principal
        assert principal is not None
        self._frames.max_frame_bytes = self._max_frame_bytes
        if principal != connection.info.principal:
            connection.info = connection.info._replace(principal=principal)


def _end(future: asyncio.Future[bytes], error: CloseConnection) -> None:
    if not future.done():
        future.set_exception(error)


def illegal_sasl_state(shapes: Mapping[int, ErrorShape], request: Request) -> bytes | None:
    """Return the answer to a request sent in place of a SASL token; None for a request that Kafka does not answer either.

    `shapes`: the error shapes of the APIs that have handlers, by API key.
    """
    from diamant.protocol.wire.error_response import refusal

    key, version = request.api_key, request.api_version
    if not apis.is_served(key, version):
        return None
    if key == apis.PRODUCE and getattr(decode_request(key, version, request.body), "acks", None) == 0:
        return None
    message = "Request is not valid given the current SASL state."
    if key == apis.PRODUCE:
        message = "Unexpected Kafka request of type PRODUCE during SASL authentication."
    return refusal(shapes.get(key, ErrorShape()), key, version, request.body, ErrorCode.ILLEGAL_SASL_STATE, message)
