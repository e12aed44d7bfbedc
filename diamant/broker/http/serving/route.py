"""Routes of the HTTP port (path, parameters and function), and the argument of their functions, `Call`.

An endpoint module declares its routes in `ROUTES`:

    ROUTES = (
        Route(
            "POST",
            "/v1/topics/{topic}/compact",
            compact,                                       # async def compact(call: Call) -> Mapping | web.Response
            "Compact a topic now, and report what was removed.",
            changes_data=True,
            is_job=True,
            fields=(Param("until", "string", "How far.", default="clean", choices=("clean", "tombstones-gone")),),
        ),
    )

and has an entry for their paths in `route_table.py`. It is imported with the first request to one of these paths.
Parameters are validated before the function is called: unknown or missing parameters, wrong types and numbers out of range are
answered with 400. The OpenAPI document is made from the routes, so it is complete.

The function returns a mapping or an object with `to_fields`, which is sent as JSON, or a whole `web.Response`. It raises
`OperationError` or `JsonError` for the caller's errors. With `is_job`, the function runs as a job: a POST waits for it up to
`?wait_ms=` (docs/reference/http.md), and the function reports its progress to `call.progress`.
"""

from __future__ import annotations

from asyncio import Event, get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from aiohttp import web

from diamant.broker.dispatch.operation_row import MAX_BODY_BYTES, OperationRow
from diamant.broker.http.serving.authorization import ANYTHING, RoutePermission
from diamant.broker.http.serving.lines import send_lines
from diamant.broker.operation_errors import as_operation_error
from diamant.broker.operations.calls.parameters import Param, params_of
from diamant.json_types import JsonObject
from diamant.progress import Progress

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services
    from diamant.broker.http.serving.token import TokenCheck


class HasFields(Protocol):
    """A value that can be converted to JSON."""

    def to_fields(self) -> JsonObject:
        """Return the value for JSON."""
        ...


MAX_WORK_S = 300.0
"""An operation up to this long does not count towards the time limit of its connection, which is meant for slow peers."""


@dataclass(slots=True)
class Call:
    """A validated request: the named steps of its path, the parameters of its query and the fields of its body, with defaults."""

    services: Services
    request: web.BaseRequest
    path: Mapping[str, str]
    query: Mapping[str, Any]
    fields: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)
    extend: Callable[[float], None] = lambda _seconds: None
    """Extends the time limit of the connection by a number of seconds."""
    closing: Event = field(default_factory=Event)
    """Set when the port closes, so that endless responses end."""
    token: TokenCheck | None = None
    denial: Callable[[], str | None] = lambda: None
    """Returns a sentence that denies the request if it is no longer allowed, otherwise None. For endless responses."""
    may_know: Callable[[str], bool] = lambda _topic: True
    """Returns True for a topic that the client may DESCRIBE. For responses that name topics but are about something else."""


Result: TypeAlias = "Mapping[str, Any] | HasFields | web.StreamResponse"
Handle: TypeAlias = Callable[[Call], Awaitable[Result]]


class Route(NamedTuple):
    """One method at one path. `{name}` in a path matches any single step. A GET route also answers HEAD."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handle: Handle
    summary: str
    query: tuple[Param, ...] = ()
    fields: tuple[Param, ...] = ()
    changes_data: bool = False
    """True if the request changes data or the broker's behaviour, or returns records, so that it needs the broker's token."""
    is_job: bool = False
    not_kept: tuple[str, ...] = ()
    """Fields of a job's result that hold keys or values. Only the POST itself returns them; in the job they are null."""
    can_be_ended: bool = False
    """True for a job that can be cancelled without leaving work half done."""
    takes_any_query: bool = False
    answer: str = "A JSON object, as the summary says."
    """The description of a successful response, for the OpenAPI document."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_wait_ms: int = 0
    """How long the function may wait. The time limit of the connection is extended by this."""
    refuse: Callable[[int, str], web.StreamResponse] | None = None
    """Makes the response for refused clients. Only for pages, which are left out of the OpenAPI document."""
    operation: OperationRow | None = None
    permission: RoutePermission = ANYTHING


def route_of(operation: OperationRow) -> Route:
    """Return the route of an operation. Imports the class of the operation's request."""
    request = operation.request_class()
    in_path = {param.name: param for param in params_of(request) if f"{{{param.name}}}" in operation.path}
    params = tuple(param for param in params_of(request) if param.name not in in_path)
    has_body = operation.method == "POST"

    async def handle(call: Call) -> Result:
        with as_operation_error():
            work = await operation.work(call.services)
        path = {name: in_path[name].parse_texts([text]) for name, text in call.path.items()}
        found: Any = work(request(**path, **call.query, **call.fields), call.progress)
        if operation.is_stream:
            return await send_lines(call.request, call.extend, found)
        loop = get_running_loop()
        began_s = loop.time()
        call.extend(MAX_WORK_S)
        try:
            with as_operation_error():
                result = await found
        finally:
            call.extend(loop.time() - began_s - MAX_WORK_S)
        if operation.created:
            return web.json_response(result, status=201, headers={"Location": operation.created.format(**result)})
        return cast("Result", result)

    return Route(
        cast("Literal['GET', 'POST', 'DELETE']", operation.method),
        operation.path,
        handle,
        operation.summary,
        query=() if has_body else params,
        fields=params if has_body else (),
        changes_data=operation.changes_data or operation.reads_records,
        is_job=operation.is_job,
        not_kept=operation.not_kept,
        can_be_ended=operation.can_be_ended,
        answer=operation.answer,
        max_body_bytes=operation.max_body_bytes,
        operation=operation,
    )


def permission_of(row: Route, fields: Mapping[str, object]) -> RoutePermission:
    """Return the permission that a request requires. `fields`: the fields of its path, query and body."""
    operation = row.operation
    if operation is None:
        return row.permission
    further = (permission for name, permission in operation.permissions_with.items() if _is_given(fields.get(name)))
    is_reading = operation.reads_records or any(_is_given(fields.get(name)) for name in operation.reads_with)
    return RoutePermission(operation.name, (*operation.permissions, *further), is_reading)


def _is_given(value: object) -> bool:
    return value is not None and value is not False  # not `!= False`: the offset 0 equals False, but is given


def row_name(row: Route) -> str:
    """Return the method and path of a route, which identify it."""
    return f"{row.method} {row.path}"


def matched(template: str, steps: list[str]) -> dict[str, str] | None:
    """Return the named steps of a path, or None if it does not match the template. `steps` omits the first, empty step."""
    expected = template.split("/")[1:]
    if len(expected) != len(steps):
        return None
    found = {}
    for name, step in zip(expected, steps, strict=True):
        if name.startswith("{"):
            if not step:
                return None
            found[name[1:-1]] = step
        elif name != step:
            return None
    return found
