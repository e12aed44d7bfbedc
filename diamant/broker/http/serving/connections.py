"""The connections of the HTTP port, limited in number and duration (`http/serving/limits.py`)."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from diamant.broker.http.serving.limits import ConnectionLimits
from diamant.broker.http.serving.routes import Routes
from diamant.broker.security.tls.tls_connection import TlsConnection

if TYPE_CHECKING:
    from diamant.broker.security.tls.listener_tls import ListenerTls

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 8190
"""The maximum length of the request line, and of each header."""


def _is_not_the_peers_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | OSError)


# aiohttp logs a traceback for each request that is not HTTP. The peer gets a response, so the broker's log omits the traceback.
_server_logger = logging.getLogger(f"{__name__}.server")
_server_logger.addFilter(_is_not_the_peers_fault)


class TimedServer(web.Server):
    """aiohttp's server, with a time limit for every connection."""

    def __init__(self, routes: Routes, limits: ConnectionLimits) -> None:
        super().__init__(
            routes.answer,
            access_log=None,
            logger=_server_logger,
            keepalive_timeout=limits.timeout_s,
            lingering_time=0,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        self._limits = limits
        self._deadlines: dict[RequestHandler, asyncio.TimerHandle] = {}
        self._silent: dict[RequestHandler, asyncio.Transport] = {}
        """Connections that have not yet sent a whole request, oldest first."""
        self._ending: set[RequestHandler] = set()
        """Connections that the loop closes in its next iteration, to make room."""
        self._for_probes: set[RequestHandler] = set()
        self.expected = 0
        """The number of connections accepted but not yet passed to the server, not included in `count`."""

    @property
    def count(self) -> int:
        """The number of connections."""
        return len(self.connections) - len(self._ending)

    def make_room(self) -> bool:
        """Close the oldest connection that has not sent a request; return False if there is none."""
        for handler, transport in self._silent.items():
            del self._silent[handler]
            self._ending.add(handler)
            transport.abort()
            return True
        return False

    def is_for_probes(self, request: web.BaseRequest) -> bool:
        """Record that a request has arrived. Returns True if its connection was accepted for probes only."""
        self._silent.pop(request.protocol, None)
        return request.protocol in self._for_probes

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.expected -= 1
        self._silent[handler] = transport
        if self.count > self._limits.most:
            self._for_probes.add(handler)
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(self._limits.timeout_s, transport.abort)

    def extend(self, request: web.BaseRequest, seconds: float) -> None:
        """Extend the time limit of a request's connection."""
        handler = request.protocol
        deadline = self._deadlines.get(handler)
        if deadline is not None and handler.transport is not None:
            deadline.cancel()
            loop = asyncio.get_running_loop()
            when_s = deadline.when() + seconds
            self._deadlines[handler] = loop.call_at(when_s, handler.transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        self._silent.pop(handler, None)
        self._ending.discard(handler)
        self._for_probes.discard(handler)
        super().connection_lost(handler, exc)


class Serving:
    """A listening socket and its connections.

    It accepts connections itself for two reasons: `loop.create_server` has no limit on them, and connections that asyncio's
    server accepts just before it is closed stay open until garbage collection (CPython 3.11).
    """

    def __init__(
        self, routes: Routes, sock: socket.socket, limits: ConnectionLimits, tls: ListenerTls | None = None
    ) -> None:
        """`sock` must be listening and non-blocking. The caller closes it after `close`."""
        self._tls = tls
        self.server = TimedServer(routes, limits)
        self._limits = limits
        self._routes = routes
        routes.extend = self.server.extend
        routes.is_for_probes = self.server.is_for_probes
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections, starting with those already waiting."""
        self._loop.add_reader(self._sock, self._accept)

    async def close(self) -> None:
        """Stop accepting, wait briefly for requests in progress, and close all connections."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        await self._routes.close()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self.server.pre_shutdown()
        await self.server.shutdown(self._limits.close_timeout_s)

    def _accept(self) -> None:
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.warning(
                "cannot accept HTTP connections for now: %s", error.strerror or error
            )  # out of file descriptors
            self._loop.remove_reader(self._sock)
            self._retry = self._loop.call_later(self._limits.accept_retry_s, self.start)
            return
        count, limits = self.server.count + self.server.expected, self._limits
        if count >= limits.most and not self.server.make_room() and count >= limits.most + limits.most_for_probes:
            connection.close()
            return
        self.server.expected += 1
        task = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            if self._tls is None:
                await self._loop.connect_accepted_socket(self.server, connection)
            else:
                await self._loop.connect_accepted_socket(partial(TlsConnection, self._tls, self._secured), connection)
                self.server.expected -= 1  # until the handshake ends, the limit on handshakes applies instead
        except OSError:  # the peer has disconnected
            self.server.expected -= 1
            connection.close()

    def _secured(self) -> RequestHandler:
        """Return the handler for a connection after its handshake."""
        self.server.expected += 1
        return self.server()
