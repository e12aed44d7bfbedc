"""The responses of the HTTP port: `/metrics`, `/health` and the paths below `/v1`.

This large module is imported with the first connection; endpoints are imported with the first request to them (`route_table.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote

from aiohttp import web

from diamant.broker.config.listeners import META_ADDRESSES
from diamant.broker.http.serving.authorization import (
    JOB,
    METRICS,
    OPEN,
    STATUS,
    denial,
    denial_in_any_case,
    may_know,
    topics_of,
)
from diamant.broker.http.serving.jobs import DONE, Jobs, error_fields
from diamant.broker.http.serving.json_body import JsonError, check_host, check_type, read_fields, read_query
from diamant.broker.http.serving.limits import DEFAULT_LIMITS, HttpLimits
from diamant.broker.http.serving.openapi import WAIT_PARAM, document
from diamant.broker.http.serving.route import Call, Result, Route, permission_of, row_name
from diamant.broker.http.serving.route_table import RouteTable
from diamant.broker.http.serving.token import COOKIE, NO_ONE, Caller, TokenCheck
from diamant.broker.metrics.figures import offline_partitions
from diamant.broker.operation_errors import BadArgument, OperationError
from diamant.broker.security.authorization.audit_log import DENIED, AuditedAction, AuditLog
from diamant.json_types import JsonObject
from diamant.progress import Progress
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.config.broker_config import BrokerConfig
    from diamant.broker.dispatch.services import Services

logger = logging.getLogger(__name__)

PROBES = ("/health", "/healthz", "/readyz")
API_PREFIX = "/v1/"
NOTHING_NAMED: Mapping[str, Any] = {}

T = TypeVar("T")


class Routes:
    """The HTTP port's routes, and the responses to requests. `http/serving/route.py` explains how to add a route."""

    def __init__(
        self,
        services: Services,
        started_s: float,
        token: TokenCheck,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        """`started_s`: the time at which the broker became ready, on the monotonic clock."""
        self.services = services
        self._started_s = started_s
        self._scrape: asyncio.Task[tuple[bytes, str]] | None = None
        self._token = token
        self._owners: dict[str, Caller] = {}
        """The callers that started jobs, by job ID."""
        self.limits = limits
        self.jobs = Jobs(limits.jobs)
        self.extend: Callable[[web.BaseRequest, float], None] = lambda _request, _seconds: None
        """Extends the time limit of a request's connection by a number of seconds."""
        self.is_for_probes: Callable[[web.BaseRequest], bool] = lambda _request: False
        """Records that a request has arrived. Returns True if its connection is for probes only."""
        self._closing = asyncio.Event()
        rows = [
            Route(
                "GET",
                "/metrics",
                self._metrics,
                "Metrics in Prometheus's text format.",
                answer="Text, not JSON.",
                takes_any_query=True,
                permission=METRICS,
            ),
            Route(
                "GET",
                "/health",
                self._health,
                "Whether the broker is alive and ready.",
                takes_any_query=True,
                permission=OPEN,
            ),
            Route("GET", "/v1/openapi.json", self._openapi, "This document.", permission=OPEN),
            Route(
                "GET",
                "/v1/jobs",
                self._list_jobs,
                "The recent jobs, the latest first, without results.",
                permission=STATUS,
            ),
            Route(
                "GET",
                "/v1/jobs/{id}",
                self._get_job,
                "One job with its progress and, at its end, its result or error.",
                query=(WAIT_PARAM._replace(default=0, doc="How long to wait for the end."),),
                permission=JOB,
            ),
            Route(
                "DELETE",
                "/v1/jobs/{id}",
                self._end_job,
                "Cancel a job (its `can_be_ended` must be true), and return it.",
                changes_data=True,
                permission=JOB,
            ),
        ]
        self.table = RouteTable(rows)

    # -- responses -------------------------------------------------------------------------------------------------------

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request. The connection is then closed."""
        try:
            response = await self._answer(request)
        except (JsonError, OperationError) as error:
            response = _error_response(error)
        except asyncio.CancelledError as error:
            if not self._closing.is_set():
                raise
            response = _error_response(error)
        except ConnectionResetError as error:
            response = _error_response(error)  # the client has disconnected
        except Exception as error:
            logger.exception("%s %s failed", request.method, _first_steps(request.path))
            response = _error_response(error)
        response.headers.setdefault("Cache-Control", "no-store")
        response.force_close()
        return response

    async def close(self) -> None:
        """Cancel all jobs, and end responses that would otherwise never end."""
        self._closing.set()
        await self.jobs.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.is_for_probes(request) and request.path not in PROBES:
            sentence = (
                f"{self.limits.connections.most} other connections are busy: only {', '.join(PROBES)} are answered now"
            )
            return web.json_response({"error": sentence, "code": "too-many"}, status=503)
        steps = [unquote(step) for step in request.rel_url.raw_path.split("/")[1:]]
        methods = await self.table.find(request.path, steps)
        method = "GET" if request.method == "HEAD" else request.method
        if not methods:
            paths = sorted(self.table.paths())
            fields = {"error": f"nothing is at {request.path[:200]}", "code": "not-found", "paths": paths}
            return web.json_response(fields, status=404)
        if method not in methods:
            possible = [*methods, *(["HEAD"] if "GET" in methods else [])]
            sentence = f"{request.method} is not possible at {request.path[:200]}, only {' and '.join(possible)}"
            headers = {"Allow": ", ".join(possible)}
            return web.json_response({"error": sentence, "code": "bad-method"}, status=405, headers=headers)
        row, names = methods[method]
        if row.refuse is not None or request.path.startswith(API_PREFIX):
            check_host(request, _own_names(self.services.node.config))
            if request.method in ("POST", "PUT"):
                check_type(request)
        given = request.headers.get("Authorization"), request.cookies.get(COOKIE)
        caller = self._token.caller(*given)
        if row.changes_data and (refusal := self._token.refusal(*given)) is not None:
            return await self._refused(row, request, caller or NO_ONE, *refusal)
        if caller is None:
            caller = NO_ONE  # if no token is needed, a wrong one is ignored
        return await self._handled(row, names, request, caller)

    async def _refused(
        self,
        row: Route,
        request: web.BaseRequest,
        caller: Caller,
        status: int,
        sentence: str,
        named: Mapping[str, Any] = NOTHING_NAMED,
    ) -> web.StreamResponse:
        if _leaves_line(row, named):
            await self.services.audit().write(_action(row, request, caller, named), DENIED)
        if row.refuse is not None:
            return row.refuse(status, sentence)
        code = "unauthorized" if status == 401 else "not-allowed"
        headers = {"WWW-Authenticate": 'Bearer realm="diamant"'} if status == 401 else {}
        return web.json_response({"error": sentence, "code": code}, status=status, headers=headers)

    def _denial(
        self,
        row: Route,
        caller: Caller,
        request: web.BaseRequest,
        named: Mapping[str, Any],
        deny: Callable[..., str | None] = denial,
    ) -> str | None:
        """Return the authorizer's denial, if there is one."""
        permission = permission_of(row, named)
        if permission is OPEN or (permission is JOB and self._owners.get(named["id"]) == caller):
            return None
        return deny(self.services.node.authorizer, caller, _host(request), permission, named)

    async def _handled(
        self, row: Route, names: dict[str, str], request: web.BaseRequest, caller: Caller
    ) -> web.StreamResponse:
        try:
            params = (*row.query, WAIT_PARAM) if row.is_job else row.query
            query = {} if row.takes_any_query else read_query(request, params)
            if request.content_length is not None:
                least_rate = self.limits.connections.min_bytes_per_second
                self.extend(request, min(request.content_length, row.max_body_bytes) / least_rate)
            fields = await read_fields(request, row.fields, row.max_body_bytes)
            named: Mapping[str, Any] = {**query, **fields, **names}
            sentence = self._denial(row, caller, request, named)
        except (JsonError, BadArgument):
            # A caller whose request would be denied whatever its parameters gets the denial, not the error in the parameters.
            named, sentence = names, self._denial(row, caller, request, names, denial_in_any_case)
            if sentence is None:
                raise
        if sentence is not None:
            can_log_in = self._token.has_tokens and not caller.has_token
            return await self._refused(row, request, caller, 401 if can_log_in else 403, sentence, named)
        leaves_line = _leaves_line(row, named)
        action = _action(row, request, caller, named)
        call = Call(
            self.services,
            request,
            names,
            query,
            fields,
            extend=lambda seconds: self.extend(request, seconds),
            closing=self._closing,
            token=self._token,
            denial=lambda: self._denial(row, caller, request, named),
            may_know=lambda topic: may_know(self.services.node.authorizer, caller, _host(request), topic),
        )
        if not row.is_job:
            if row.max_wait_ms:
                self.extend(request, row.max_wait_ms / 1000)
            work = row.handle(call)
            return _response(await (_audited(self.services.audit(), action, work) if leaves_line else work))
        wait_ms = query.pop(WAIT_PARAM.name)

        async def run(progress: Progress) -> Mapping[str, Any]:
            call.progress = progress
            work = _as_fields(row.handle(call))
            return await (_audited(self.services.audit(), action._replace(job=job.id), work) if leaves_line else work)

        job = self.jobs.begin(row_name(row), run, row.not_kept, can_be_ended=row.can_be_ended)
        self._owners = {id_: owner for id_, owner in self._owners.items() if id_ in self.jobs}
        self._owners[job.id] = caller
        if leaves_line:
            self.services.audit().append(lambda: ((action._replace(job=job.id), "begun"),))
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

    # -- this module's rows ----------------------------------------------------------------------------------------------

    async def _openapi(self, _call: Call) -> Mapping[str, Any]:
        rows = [row for row in await self.table.load_all() if row.refuse is None]
        return document(rows, needs_token=self._token.is_needed)

    async def _list_jobs(self, _call: Call) -> Mapping[str, Any]:
        return {
            "jobs": [job.to_fields(with_result=False) for job in self.jobs.list()],
            "max_jobs": self.limits.jobs.most,
        }

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
        # Requests that arrive while the metrics are being rendered share the result.
        if self._scrape is None:
            self._scrape = asyncio.create_task(self._make_metrics())
        body, content_type = await asyncio.shield(self._scrape)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _make_metrics(self) -> tuple[bytes, str]:
        try:
            metrics = await asyncio.to_thread(_metrics_module)
            text = await asyncio.to_thread(metrics.render, await metrics.take(self.services))
            return text, metrics.CONTENT_TYPE
        finally:
            self._scrape = None

    async def _health(self, _call: Call) -> web.Response:
        node = self.services.node
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
            "partitions_offline": offline_partitions(node),
        }
        return web.json_response(health, status=200 if is_ready else 503)


def _metrics_module() -> ModuleType:
    """Import the metrics module late, so that pages do not wait for it."""
    from diamant.broker.metrics import prometheus

    return prometheus


def _leaves_line(row: Route, named: Mapping[str, Any]) -> bool:
    """Return whether the audit log records the request. `named`: the fields of its path, query and body."""
    return row.changes_data or permission_of(row, named).is_reading


def _action(row: Route, request: web.BaseRequest, caller: Caller, named: Mapping[str, Any]) -> AuditedAction:
    topics, reads = tuple(topics_of(named)), permission_of(row, named).is_reading
    return AuditedAction(str(caller.principal), _host(request), row_name(row), topics, is_reading=reads)


async def _audited(audit: AuditLog, action: AuditedAction, work: Awaitable[T]) -> T:
    """Await `work`, write its outcome to the audit log, and return its result."""
    try:
        result = await work
    except BaseException as error:
        word = str(error_fields(error)["code"])
        audit.append(lambda: ((action, word),))
        raise
    status = result.status if isinstance(result, web.StreamResponse) else 200
    await audit.write(action, "done" if status < 400 else f"status-{status}")
    return result


def _own_names(config: BrokerConfig) -> set[str]:
    """Return the broker's host names: those advertised to clients, and the host in diamant.http.listen."""
    listeners = [*config.advertised_listeners, *filter(None, [config.http_listener])]
    return {listener.host.lower() for listener in listeners if listener.host not in META_ADDRESSES}


async def _as_fields(result: Awaitable[Result]) -> Mapping[str, Any]:
    return _to_fields(await result)


def _host(request: web.BaseRequest) -> str:
    return (request.remote or "").removeprefix("::ffff:")


def _to_fields(result: Result) -> Mapping[str, Any]:
    assert not isinstance(result, web.StreamResponse), "a job returns JSON, not a response"
    return cast("Mapping[str, Any]", result) if isinstance(result, Mapping) else result.to_fields()


def _response(result: Result) -> web.StreamResponse:
    return result if isinstance(result, web.StreamResponse) else web.json_response(_to_fields(result))


def _error_response(error: BaseException) -> web.Response:
    fields = error_fields(error)
    return web.json_response(_without_status(fields), status=fields["status"])


def _without_status(fields: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in fields.items() if name != "status"}


def _first_steps(path: str) -> str:
    """Return the first steps of a path, enough to identify the verb: later steps may be names given by users."""
    return "/".join(path.split("/")[:3])[:60]
