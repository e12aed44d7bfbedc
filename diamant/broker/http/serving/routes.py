"""The HTTP server's connections and routing: `/metrics`, `/health` and the paths below `/v1`.

It is large, so it is imported with the first connection; an endpoint is imported with the first request for it
(`http/endpoints/table.py`).

Each connection has one request. It must end within `CONNECTION_TIMEOUT_S`, from the accept to the last byte, so that
neither silent nor slow peers keep resources. The time grows by the request's wait for a job, and by the time that its
body takes at `MIN_BYTES_PER_SECOND`. There are at most `MAX_CONNECTIONS`: beyond that the oldest connection without a
request gives way; if all have sent one, `PROBE_CONNECTIONS` more are accepted, for `PROBES` only. Bodies are bounded
(`Route.max_body_bytes`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from diamant.broker.client.errors import VerbError
from diamant.broker.config.listeners import META_ADDRESSES
from diamant.broker.http.serving.jobs import DONE, MAX_JOBS, Jobs, error_fields
from diamant.broker.http.serving.json_body import JsonError, check_host, check_type, read_object
from diamant.broker.http.serving.openapi import WAIT_PARAM, document
from diamant.broker.http.serving.route import Call, Result, Route, matched
from diamant.broker.http.serving.token import TokenCheck
from diamant.broker.metrics import prometheus as metrics
from diamant.broker.operations.progress import Progress
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
PROBE_CONNECTIONS = 16
PROBES = ("/health", "/healthz", "/readyz")
CONNECTION_TIMEOUT_S = 10.0
MIN_BYTES_PER_SECOND = 256 * 1024
CLOSE_TIMEOUT_S = 1.0
ACCEPT_RETRY_S = 1.0
MAX_LINE_BYTES = 8190
"""Of the request line, and of each header."""


def _is_not_the_peers_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | OSError)


# aiohttp logs a traceback for each request that is no HTTP. The peer gets an answer; our log is not for it.
_server_logger = logging.getLogger(f"{__name__}.server")
_server_logger.addFilter(_is_not_the_peers_fault)


API_PREFIX = "/v1/"


class Routes:
    """The rows imported so far, and their answers. GET answers HEAD, too. `http/serving/route.py`: how to add a row."""

    def __init__(self, services: Services, endpoints: Mapping[str, str], started_s: float, token: TokenCheck) -> None:
        """`endpoints`: modules with `ROUTES` by the path below which they lie, the longest prefix of whole steps counts.

        `started_s`: when the broker was ready, on the monotonic clock.
        """
        self._endpoints = endpoints
        self._services = services
        self._started_s = started_s
        self._scrape: asyncio.Task[bytes] | None = None
        self._token = token
        self.jobs = Jobs()
        self.extend: Callable[[web.BaseRequest, float], None] = lambda _request, _seconds: None
        """Has the connection of a request live so much longer."""
        self.is_for_probes: Callable[[web.BaseRequest], bool] = lambda _request: False
        """Notes that a request has come; whether its connection is for probes only."""
        self._modules: dict[str, ModuleType] = {}
        self._rows: list[Route] = [
            Route(
                "GET",
                "/metrics",
                self._metrics,
                "Metrics as Prometheus reads them.",
                answer="Text, not JSON.",
                takes_any_query=True,
            ),
            Route("GET", "/health", self._health, "Whether the broker lives and is ready.", takes_any_query=True),
            Route("GET", "/v1/openapi.json", self._openapi, "This document."),
            Route(
                "GET", "/v1/jobs", self._list_jobs, "The jobs that are remembered, the latest first, without results."
            ),
            Route(
                "GET",
                "/v1/jobs/{id}",
                self._get_job,
                "One job with its progress, and its result or error once it is over.",
                query=(WAIT_PARAM._replace(default=0, doc="How long to wait for the end."),),
            ),
            Route(
                "DELETE",
                "/v1/jobs/{id}",
                self._end_job,
                "End a job that leaves nothing half-done (its `can_be_ended` is true), and return it.",
                changes_data=True,
            ),
        ]

    # -- the table -------------------------------------------------------------------------------------------------------

    def _module_of(self, path: str) -> str | None:
        """The module that a path belongs to; None if there is none."""
        steps = path.split("/")
        prefixes = ("/".join(steps[:count]) for count in range(len(steps), 1, -1))
        return next((self._endpoints[prefix] for prefix in prefixes if prefix in self._endpoints), None)

    async def load_all(self) -> list[Route]:
        """Import every module that answers; all rows."""
        for name in self._endpoints.values():
            await self._load(name)
        return list(self._rows)

    async def _load(self, name: str) -> None:
        if name in self._modules or find_spec(name) is None:
            return
        module = await asyncio.to_thread(import_module, name)
        if name not in self._modules:
            self._modules[name] = module
            self._rows += module.ROUTES

    async def _find(self, path: str, steps: list[str]) -> dict[str, tuple[Route, dict[str, str]]]:
        """The rows at a path by method; those with names in the place of steps give way to those that say them."""
        name = self._module_of(path)
        if name is not None:
            await self._load(name)
        found: dict[str, tuple[Route, dict[str, str]]] = {}
        for row in self._rows:
            names = matched(row.path, steps)
            if names is not None and (row.method not in found or len(names) < len(found[row.method][1])):
                found[row.method] = (row, names)
        return found

    # -- an answer -------------------------------------------------------------------------------------------------------

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request; the connection is closed after it."""
        try:
            response = await self._answer(request)
        except (JsonError, VerbError) as error:
            response = _error_response(error)
        except asyncio.CancelledError as error:
            if not self._is_closed:
                raise
            response = _error_response(error)
        except Exception as error:
            logger.exception("%s %s failed", request.method, _first_steps(request.path))
            response = _error_response(error)
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response

    _is_closed = False

    async def close(self) -> None:
        """End the jobs."""
        self._is_closed = True
        await self.jobs.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.is_for_probes(request) and request.path not in PROBES:
            sentence = f"{MAX_CONNECTIONS} other connections are at work: only {', '.join(PROBES)} are answered now"
            return web.json_response({"error": sentence, "code": "too-many"}, status=503)
        steps = [unquote(step) for step in request.rel_url.raw_path.split("/")[1:]]
        methods = await self._find(request.path, steps)
        method = "GET" if request.method == "HEAD" else request.method
        if not methods:
            paths = {row.path for row in self._rows} | {
                path for path, name in self._endpoints.items() if find_spec(name) is not None
            }
            fields = {"error": f"nothing is at {request.path[:200]}", "code": "not-found", "paths": sorted(paths)}
            return web.json_response(fields, status=404)
        if method not in methods:
            possible = [*methods, *(["HEAD"] if "GET" in methods else [])]
            sentence = f"{request.method} is not possible at {request.path[:200]}, only {' and '.join(possible)}"
            headers = {"Allow": ", ".join(possible)}
            return web.json_response({"error": sentence, "code": "bad-method"}, status=405, headers=headers)
        row, names = methods[method]
        if request.path.startswith(API_PREFIX):
            check_host(request, self._own_names())
            if request.method in ("POST", "PUT"):
                check_type(request)
        if row.changes_data and (refusal := self._token.refusal(request.headers.get("Authorization"))) is not None:
            status, sentence = refusal
            code = "unauthorized" if status == 401 else "not-allowed"
            headers = {"WWW-Authenticate": 'Bearer realm="diamant"'} if status == 401 else {}
            return web.json_response({"error": sentence, "code": code}, status=status, headers=headers)
        return await self._handled(row, names, request)

    async def _handled(self, row: Route, names: dict[str, str], request: web.BaseRequest) -> web.StreamResponse:
        query = {} if row.takes_any_query else _query(row, request)
        if request.content_length is not None and not row.takes_any_body:
            self.extend(request, min(request.content_length, row.max_body_bytes) / MIN_BYTES_PER_SECOND)
        fields = await _fields(row, request)
        call = Call(self._services, request, names, query, fields, extend=lambda seconds: self.extend(request, seconds))
        if not row.is_job:
            if row.max_wait_ms:
                self.extend(request, row.max_wait_ms / 1000)
            return _response(await row.handle(call))
        wait_ms = query.pop(WAIT_PARAM.name)

        async def run(progress: Progress) -> Mapping[str, Any]:
            call.progress = progress
            return _to_fields(await row.handle(call))

        job = self.jobs.begin(f"{row.method} {row.path}", run, row.not_kept, can_be_ended=row.can_be_ended)
        self.extend(request, wait_ms / 1000)
        try:
            await self.jobs.wait(job, wait_ms)
            if job.state == DONE:
                return web.json_response(self.jobs.take_result(job))
        finally:
            job.leave()
        if job.error is not None:
            return web.json_response(_without_status(job.error), status=job.error["status"])
        return web.json_response(job.to_fields(), status=202, headers={"Location": job.href})

    def _own_names(self) -> set[str]:
        """The names by which this broker is known: those it tells clients, and the one that HTTP was told to listen on."""
        listeners = [*self._services.node.config.advertised_listeners]
        if self._services.node.config.http_listener is not None:
            listeners.append(self._services.node.config.http_listener)
        return {listener.host.lower() for listener in listeners if listener.host not in META_ADDRESSES}

    # -- rows of its own -------------------------------------------------------------------------------------------------

    async def _openapi(self, _call: Call) -> Mapping[str, Any]:
        return document(await self.load_all(), needs_token=self._token.is_needed)

    async def _list_jobs(self, _call: Call) -> Mapping[str, Any]:
        return {"jobs": [job.to_fields(with_result=False) for job in self.jobs.list()], "max_jobs": MAX_JOBS}

    async def _get_job(self, call: Call) -> Mapping[str, Any]:
        job = self.jobs.get(call.path["id"])
        wait_ms = call.query[WAIT_PARAM.name]
        self.extend(call.request, wait_ms / 1000)
        await self.jobs.wait(job, wait_ms)
        return job.to_fields()

    async def _end_job(self, call: Call) -> Mapping[str, Any]:
        job = self.jobs.get(call.path["id"])
        await self.jobs.end(job)
        return job.to_fields()

    async def _metrics(self, _call: Call) -> web.Response:
        # Requests that come while the text is being made get the same text.
        if self._scrape is None:
            self._scrape = asyncio.create_task(self._make_metrics())
        body = await asyncio.shield(self._scrape)
        return web.Response(body=body, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _make_metrics(self) -> bytes:
        try:
            return await asyncio.to_thread(metrics.render, await metrics.take(self._services))
        finally:
            self._scrape = None

    async def _health(self, _call: Call) -> web.Response:
        node = self._services.node
        is_ready = not node.is_stopping
        health = {
            "status": "ok" if is_ready else "stopping",
            "live": True,
            "ready": is_ready,
            "version": __version__,
            "cluster_id": node.cluster_id,
            "node_id": node.config.node_id,
            "listeners": [listener.address for listener in node.addresses.kafka],
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "partitions": len(node.directory.logs),
            "partitions_offline": metrics.offline_partitions(node),
        }
        return web.json_response(health, status=200 if is_ready else 503)


def _query(row: Route, request: web.BaseRequest) -> dict[str, Any]:
    """The values of a query, checked, with defaults. Raises JsonError."""
    params = {param.name: param for param in ((*row.query, WAIT_PARAM) if row.is_job else row.query)}
    unknown = [name for name in request.query if name not in params]
    if unknown:
        raise JsonError(400, f"unknown parameters in the query: {_names(unknown)}; possible: {_names(params)}")
    found = {}
    for name, param in params.items():
        if name in request.query:
            found[name] = param.parse_texts(request.query.getall(name))
        elif param.is_required:
            raise JsonError(400, f"the query has no {name}: {param.doc}")
        else:
            found[name] = param.default
    return found


async def _fields(row: Route, request: web.BaseRequest) -> dict[str, Any]:
    """The fields of a body, checked, with defaults; none if the function itself reads the body. Raises JsonError."""
    if row.takes_any_body or request.method not in ("POST", "PUT"):
        return {}
    body = await read_object(
        request, may_be_empty=not any(param.is_required for param in row.fields), most=row.max_body_bytes
    )
    params = {param.name: param for param in row.fields}
    unknown = [name for name in body if name not in params]
    if unknown:
        raise JsonError(400, f"unknown fields in the body: {_names(unknown)}; possible: {_names(params)}")
    found = {}
    for name, param in params.items():
        if body.get(name) is not None:
            found[name] = param.parse(body[name], "the body's")
        elif param.is_required:
            raise JsonError(400, f"the body has no {name}: {param.doc}")
        else:
            found[name] = param.default
    return found


def _names(names: Iterable[str]) -> str:
    return ", ".join(name[:40] for name in list(names)[:20]) or "none"


def _to_fields(result: Result) -> Mapping[str, Any]:
    assert not isinstance(result, web.StreamResponse), "a job returns JSON, not a response"
    return cast("Mapping[str, Any]", result) if isinstance(result, Mapping) else result.to_fields()


def _response(result: Result) -> web.StreamResponse:
    return result if isinstance(result, web.StreamResponse) else web.json_response(_to_fields(result))


def _error_response(error: BaseException) -> web.Response:
    fields = error_fields(error)
    return web.json_response(_without_status(fields), status=fields["status"])


def _without_status(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "status"}


def _first_steps(path: str) -> str:
    """Enough of a path to know the verb: further steps may be names that users gave."""
    return "/".join(path.split("/")[:3])[:60]


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
        self._silent: dict[RequestHandler, asyncio.Transport] = {}
        """Those that have sent no whole request yet, the oldest first."""
        self._ending: set[RequestHandler] = set()
        """Those that have given way and are closed in the next turn of the loop."""
        self._for_probes: set[RequestHandler] = set()
        self.expected = 0
        """Connections that were accepted and are not made yet: they are not in `count`."""

    @property
    def count(self) -> int:
        """The number of connections."""
        return len(self.connections) - len(self._ending)

    def make_room(self) -> bool:
        """Close the oldest connection that has not sent a request; False if there is none."""
        for handler, transport in self._silent.items():
            del self._silent[handler]
            self._ending.add(handler)
            transport.abort()
            return True
        return False

    def is_for_probes(self, request: web.BaseRequest) -> bool:
        """Record that a request has come; tell whether its connection was accepted for probes only."""
        self._silent.pop(request.protocol, None)
        return request.protocol in self._for_probes

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.expected -= 1
        self._silent[handler] = transport
        if self.count > MAX_CONNECTIONS:
            self._for_probes.add(handler)
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(CONNECTION_TIMEOUT_S, transport.abort)

    def extend(self, request: web.BaseRequest, seconds: float) -> None:
        """Extend the life of a connection whose request waits."""
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

    It accepts by itself because `loop.create_server` has no limit on connections, and because what asyncio's own server has
    accepted just before it is closed stays open until it is garbage (CPython 3.11).
    """

    def __init__(self, routes: Routes, sock: socket.socket) -> None:
        """`sock` listens and does not block; its maker closes it after `close`."""
        self.server = TimedServer(routes)
        self._routes = routes
        routes.extend = self.server.extend
        routes.is_for_probes = self.server.is_for_probes
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept connections, those that wait already first."""
        self._loop.add_reader(self._sock, self._accept)

    async def close(self) -> None:
        """Accept no more, answer requests in progress if that is quick, and close every connection."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        await self._routes.close()
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
        count = self.server.count + self.server.expected
        if count >= MAX_CONNECTIONS and not self.server.make_room() and count >= MAX_CONNECTIONS + PROBE_CONNECTIONS:
            connection.close()
            return
        self.server.expected += 1
        task = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self.server, connection)
        except OSError:  # the peer has gone
            self.server.expected -= 1
            connection.close()
