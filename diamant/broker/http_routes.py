"""What the broker answers over HTTP: `/metrics`, `/health` and what is below `/v1`. Imported with the first connection, for
it is large.

One request for each connection, within `CONNECTION_TIMEOUT_S` from the accept to the last byte, so that neither silent nor slow
peers keep anything; at most `MAX_CONNECTIONS`. Bodies are read by what expects one, within `http_json.MAX_BODY_BYTES`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from diamant import __version__
from diamant.broker import metrics
from diamant.broker.http_faults import FaultRoutes
from diamant.broker.http_json import JsonError, check_host, check_type
from diamant.broker.listeners import META_ADDRESSES

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
CONNECTION_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
ACCEPT_RETRY_S = 1.0
MAX_LINE_BYTES = 8190
"""Of the request line, and of each header."""


def _is_not_the_peers_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | OSError)


# aiohttp logs a traceback for each request that is no HTTP. The peer is told; our log is not for it.
_server_logger = logging.getLogger(f"{__name__}.server")
_server_logger.addFilter(_is_not_the_peers_fault)


Handle: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.Response]]
API_PREFIX = "/v1/"


class Routes:
    """The table of paths and methods, and the answers. `{id}` in a path stands for any one step; GET answers HEAD, too."""

    def __init__(self, broker: Broker, started_s: float) -> None:
        """`started_s`: when the broker was ready, on the monotonic clock."""
        self._broker = broker
        self._started_s = started_s
        self._scrape: asyncio.Task[bytes] | None = None
        faults = FaultRoutes(broker)
        self.by_path: dict[str, Mapping[str, Handle]] = {
            "/metrics": {"GET": self._metrics},
            "/health": {"GET": self._health},
            "/v1/faults": {"GET": faults.list, "POST": faults.add, "DELETE": faults.clear},
            "/v1/faults/{id}": {"GET": faults.get, "DELETE": faults.remove},
            "/v1/faults/{id}/release": {"POST": faults.release},
        }

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer any request; the connection is closed after it."""
        methods = self._methods(request.path)
        method = "GET" if request.method == "HEAD" else request.method
        if methods is None:
            error = {"error": f"nothing is at {request.path}", "paths": sorted(self.by_path)}
            response = web.json_response(error, status=404)
        elif method not in methods:
            possible = [*methods, *(["HEAD"] if "GET" in methods else [])]
            error = {"error": f"{request.method} is not possible at {request.path}, only {' and '.join(possible)}"}
            response = web.json_response(error, status=405, headers={"Allow": ", ".join(possible)})
        else:
            response = await self._handled(methods[method], request)
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response

    def _methods(self, path: str) -> Mapping[str, Handle] | None:
        found = self.by_path.get(path)
        steps = path.split("/")
        if found is None and len(steps) > 3 and steps[3]:
            found = self.by_path.get("/".join([*steps[:3], "{id}", *steps[4:]]))
        return found

    async def _handled(self, handle: Handle, request: web.BaseRequest) -> web.Response:
        try:
            if request.path.startswith(API_PREFIX):
                check_host(request, self._own_names())
                if request.method == "POST":
                    check_type(request)
            return await handle(request)
        except JsonError as error:
            return web.json_response({"error": str(error)}, status=error.status)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return web.json_response({"error": "internal error, see the broker's log"}, status=500)

    def _own_names(self) -> set[str]:
        """The names by which this broker is known: those it tells clients, and the one that HTTP was told to listen on."""
        listeners = [*self._broker.config.advertised_listeners]
        if self._broker.config.http_listener is not None:
            listeners.append(self._broker.config.http_listener)
        return {listener.host.lower() for listener in listeners if listener.host not in META_ADDRESSES}

    async def _metrics(self, _request: web.BaseRequest) -> web.Response:
        # Whoever asks while the text is being made gets the same.
        if self._scrape is None:
            self._scrape = asyncio.create_task(self._make_metrics())
        body = await asyncio.shield(self._scrape)
        return web.Response(body=body, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _make_metrics(self) -> bytes:
        try:
            return await asyncio.to_thread(metrics.render, await metrics.take(self._broker))
        finally:
            self._scrape = None

    async def _health(self, _request: web.BaseRequest) -> web.Response:
        broker = self._broker
        is_ready = not broker.server.is_stopping
        health = {
            "status": "ok" if is_ready else "stopping",
            "live": True,
            "ready": is_ready,
            "version": __version__,
            "cluster_id": broker.cluster_id,
            "node_id": broker.config.node_id,
            "listeners": broker.bootstrap_servers.split(","),
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "partitions": len(broker.directory.logs),
            "partitions_offline": metrics.offline_partitions(broker),
        }
        return web.json_response(health, status=200 if is_ready else 503)


class TimedServer(web.Server):
    """aiohttp's server, whose connections end after `CONNECTION_TIMEOUT_S` whatever they do."""

    def __init__(self, routes: Routes) -> None:
        super().__init__(
            routes.answer,
            access_log=None,
            logger=_server_logger,
            keepalive_timeout=CONNECTION_TIMEOUT_S,
            lingering_time=0,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        self._deadlines: dict[RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(CONNECTION_TIMEOUT_S, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        super().connection_lost(handler, exc)


class Serving:
    """A listening socket and its connections.

    It accepts by itself because `loop.create_server` has no limit on connections, and because what asyncio's own server has
    accepted just before it is closed stays open until it is garbage (CPython 3.11).
    """

    def __init__(self, routes: Routes, sock: socket.socket) -> None:
        """`sock` listens and does not block; whoever made it closes it after `close`."""
        self.server = TimedServer(routes)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections, those that wait already first."""
        self._loop.add_reader(self._sock, self._accept)

    async def close(self) -> None:
        """Accept no more, answer what is under way if that is quick, and close every connection."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self.server.pre_shutdown()
        await self.server.shutdown(CLOSE_TIMEOUT_S)

    def _accept(self) -> None:
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.warning("HTTP connections have to wait: %s", error.strerror or error)  # no descriptors are left
            self._loop.remove_reader(self._sock)
            self._retry = self._loop.call_later(ACCEPT_RETRY_S, self.start)
            return
        if len(self.server.connections) + len(self._connecting) >= MAX_CONNECTIONS:
            connection.close()
            return
        task = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self.server, connection)
        except OSError:  # the peer has gone
            connection.close()
