"""Rows of the HTTP table: path, parameters and function, and the function's argument.

A module below `http/endpoints/` has its rows in `ROUTES`:

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

and an entry in `serving/table.py` with their paths. It is imported with the first request to them.
Parameters are validated before the function is called: unknown or missing ones, wrong types and numbers out of range are
answered by 400. The OpenAPI document is made from the rows, so it is complete.

The function returns the JSON (a mapping, or an object with `to_fields`), or a whole `web.Response`. It raises `VerbError` or
`JsonError` for errors of the caller. With `is_job` it runs as a job: a POST waits for it up to `?wait_ms=`
(docs/reference/http.md), and it reports its progress to `call.progress`.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from aiohttp import web

from diamant.broker.http.serving.json_body import MAX_BODY_BYTES, JsonError
from diamant.broker.operations.calls.progress import Progress

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services
    from diamant.broker.http.serving.token import TokenCheck

ParamType: TypeAlias = Literal["string", "integer", "boolean", "strings", "object", "key", "any"]
"""`strings`: a list of texts; in a query, the parameter is repeated. `key`: see `broker/record_json.py`; the function gets
bytes. `any`: not validated."""

MAX_INTEGER = (1 << 63) - 1


class HasFields(Protocol):
    """A value that can be converted for JSON."""

    def to_fields(self) -> dict[str, Any]:
        """Return the value for JSON."""
        ...


class Param(NamedTuple):
    """One parameter of a query or one field of a body."""

    name: str
    type: ParamType
    doc: str
    default: Any = None
    is_required: bool = False
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_INTEGER

    def parse(self, found: Any, where: str) -> Any:
        """Validate a JSON value and convert it for the function. Raises JsonError (400)."""
        if self.type == "any":
            return found
        if self.type == "key":
            from diamant.broker.record_json import parse_key

            return parse_key(found, self.name)
        is_right = {
            "string": isinstance(found, str),
            "integer": isinstance(found, int) and not isinstance(found, bool),
            "boolean": isinstance(found, bool),
            "strings": isinstance(found, list) and all(isinstance(one, str) for one in found),
            "object": isinstance(found, dict),
        }[self.type]
        if not is_right:
            expected = {"strings": "a list of strings"}.get(self.type, self.type)
            raise JsonError(400, f"{where} {self.name}: expected {expected}, got {type(found).__name__}")
        if self.type == "integer" and not self.least <= found <= self.most:
            raise JsonError(400, f"{where} {self.name}: expected {self.least} to {self.most}, got {found}")
        if self.choices and found not in self.choices:
            raise JsonError(400, f"{where} {self.name}: expected one of {', '.join(self.choices)}")
        return found

    def parse_texts(self, found: list[str]) -> Any:
        """Validate the texts of a query parameter and convert them for the function. Raises JsonError (400)."""
        where = "the query's"
        if self.type == "strings":
            return self.parse(found, where)
        if len(found) > 1:
            raise JsonError(400, f"{where} {self.name} is given {len(found)} times")
        text = found[0]
        if self.type == "integer":
            digits = text.removeprefix("-")
            if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
                raise JsonError(400, f"{where} {self.name}: expected integer")
            return self.parse(int(text), where)
        if self.type == "boolean":
            if text.lower() not in ("true", "false", "1", "0", ""):
                raise JsonError(400, f"{where} {self.name}: expected true or false")
            return text.lower() not in ("false", "0")
        return self.parse(text, where)


@dataclass(slots=True)
class Call:
    """A validated request: the steps of its path, its query and its body by name, including defaults."""

    services: Services
    request: web.BaseRequest
    path: Mapping[str, str]
    query: Mapping[str, Any]
    fields: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)
    extend: Callable[[float], None] = lambda _seconds: None
    """Extends the life of the connection by a number of seconds."""
    closing: Event = field(default_factory=Event)
    """Set when the port closes: endless responses must then end."""
    token: TokenCheck | None = None
    denial: Callable[[], str | None] = lambda: None
    """Returns the sentence that denies the request now; None while it is allowed. For endless responses."""
    may_know: Callable[[str], bool] = lambda _topic: True
    """True for a topic that the client may DESCRIBE. For responses about other things that name topics."""


Result: TypeAlias = "Mapping[str, Any] | HasFields | web.StreamResponse"
Handle: TypeAlias = Callable[[Call], Awaitable[Result]]


class Route(NamedTuple):
    """One method at one path. `{name}` in a path matches any single step. GET answers HEAD, too."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handle: Handle
    summary: str
    query: tuple[Param, ...] = ()
    fields: tuple[Param, ...] = ()
    changes_data: bool = False
    """True if the request requires the token, on a broker with one: it changes data or the broker's behaviour, or returns
    records.
    """
    is_job: bool = False
    not_kept: tuple[str, ...] = ()
    """Fields of a job's result with a key. Only the POST itself returns them; in the job they are null."""
    can_be_ended: bool = False
    """True for a job that can be cancelled without leaving anything half done."""
    takes_any_body: bool = False
    """True if the function reads the body itself."""
    takes_any_query: bool = False
    answer: str = "A JSON object, as the summary says."
    """The description of a successful response, for the OpenAPI document."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_wait_ms: int = 0
    """The longest wait of the function. It extends the life of the connection."""
    refuse: Callable[[int, str], web.StreamResponse] | None = None
    """For pages, which are not in the OpenAPI document: makes the response for clients without a token."""


def row_name(row: Route) -> str:
    """Return the method and path of a row: its key in other tables."""
    return f"{row.method} {row.path}"


def matched(template: str, steps: list[str]) -> dict[str, str] | None:
    """Match the steps of a path (without the first, empty one) to a template. Returns steps by name; None without a match."""
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
