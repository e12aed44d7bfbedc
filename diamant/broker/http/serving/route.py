"""A row of the HTTP table: its path, its parameters, its function, and the function's argument.

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

and is entered in `serving/table.py` with the paths of its rows; it is imported with the first request there.
Parameters are checked before the row's function is called: unknown ones, missing ones, wrong types and numbers out of range
are answered by 400. The OpenAPI document is made of the rows, so what is not in a row does not exist.

The function returns what becomes the JSON (an object, or something with `to_fields`), or a whole `web.Response`. It raises
`VerbError` or `JsonError` for what is the caller's matter. With `is_job` it runs as a job, which a POST waits for up to
`?wait_ms=` (docs/reference/http.md), and tells of its progress through `call.progress`.
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
"""`strings`: a list of texts; in a query the parameter is given several times. `key`: see `client/record_key.py`, the
function gets bytes. `any`: no check at all."""

MAX_INTEGER = (1 << 63) - 1


class HasFields(Protocol):
    """A value that knows its JSON."""

    def to_fields(self) -> dict[str, Any]:
        """Return it."""
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
        """Return the value of JSON that was `found` as the function gets it; raises JsonError (400)."""
        if self.type == "any":
            return found
        if self.type == "key":
            from diamant.broker.client.record_key import parse_key

            return parse_key(found)
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
        """Return the value of what a query has under this name."""
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
    """One request, checked: the steps of its path, its query and its body by name, with defaults for what was left out."""

    services: Services
    request: web.BaseRequest
    path: Mapping[str, str]
    query: Mapping[str, Any]
    fields: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)
    extend: Callable[[float], None] = lambda _seconds: None
    """Has the connection live so many seconds longer."""
    closing: Event = field(default_factory=Event)
    """Set once the port is being closed: answers without an end are to end."""
    token: TokenCheck | None = None
    denial: Callable[[], str | None] = lambda: None
    """The sentence that denies the request by now; None while the client may. For answers without an end."""
    may_know: Callable[[str], bool] = lambda _topic: True
    """True for a topic that the client may DESCRIBE. For answers about other things that name topics."""


Result: TypeAlias = "Mapping[str, Any] | HasFields | web.StreamResponse"
Handle: TypeAlias = Callable[[Call], Awaitable[Result]]


class Route(NamedTuple):
    """One method at one path; `{name}` in a path stands for any one step. GET answers HEAD, too."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handle: Handle
    summary: str
    query: tuple[Param, ...] = ()
    fields: tuple[Param, ...] = ()
    changes_data: bool = False
    """True for what needs the token where one is needed: it changes what is stored, or how the broker behaves, or it hands out
    records.
    """
    is_job: bool = False
    not_kept: tuple[str, ...] = ()
    """Fields of a job's result that hold a key: only the POST itself is answered with them, in the job they are null."""
    can_be_ended: bool = False
    """Of a job: it leaves nothing half-done if it ends before it is over."""
    takes_any_body: bool = False
    """The function reads the body by itself."""
    takes_any_query: bool = False
    answer: str = "What the summary says, as a JSON object."
    """For the OpenAPI document: what a success answers."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_wait_ms: int = 0
    """The time that the function may wait; the connection lives for so much longer."""
    refuse: Callable[[int, str], web.StreamResponse] | None = None
    """Of a page for people, which is not in the OpenAPI document: makes the answer for those who have no token."""


def row_name(row: Route) -> str:
    """Its method and path, by which the other tables know it."""
    return f"{row.method} {row.path}"


def matched(template: str, steps: list[str]) -> dict[str, str] | None:
    """Return what the steps of a path (without the first, empty one) are called in a template; None if they do not fit."""
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
