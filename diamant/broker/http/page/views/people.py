"""People: the register of requests with their due dates and papers, and a preview of forgetting a person.

Identifiers and data maps are sent in bodies only. The browser reads the data map from a file; the broker does not keep it.
"""

from __future__ import annotations

from aiohttp import web

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES
from diamant.broker.http.page.making.rendering import HEADERS, fragment, page, refused, shown_call, view
from diamant.broker.http.serving.authorization import CERTIFICATES, RECORDS
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operation_errors import BadArgument
from diamant.broker.operations.calls.parameters import Param
from diamant.words import stay_text

MAX_ROWS = 200
MAX_WAIT_MS = 600_000


async def show(call: Call) -> web.StreamResponse:
    """Return the register, and the form to look up a person."""
    from diamant.broker.person.person_requests import RequestsRequest

    found = (await call.services.people().requests(RequestsRequest(), call.progress))["requests"]
    context = {
        "requests": found[:MAX_ROWS],
        "more": max(0, len(found) - MAX_ROWS),
        "open": sum(one["state"] in ("received", "in-progress") for one in found),
        "overdue": sum(one["is_overdue"] for one in found),
        "look": shown_call(
            call, "POST", "/v1/person/preview", {"identifiers": {"NAME": "VALUE"}, "map": {}},
            "diamant person forget NAME=VALUE --map people.yaml --dry-run",
            'diamant.Admin().person.preview({"NAME": "VALUE"}, MAP)',
        ),
    }  # fmt: skip
    return page("people.html.j2", context, title="People", view="People")


async def preview(call: Call) -> web.StreamResponse:
    """Return a preview of forgetting a person. Raises BadArgument, NotPossible, TooMany, Unconfirmed."""
    from diamant.broker.person.person_requests import PreviewRequest
    from diamant.cleaner.person.map_file import parse_map_file
    from diamant.cleaner.person.people_map import MapError

    identifiers = _identifiers(call.fields["identifiers"])
    try:
        people = parse_map_file(call.fields["map"].encode(), "map").to_fields()
    except MapError as error:
        raise BadArgument(str(error)) from None
    request = PreviewRequest(identifiers, people, confirm=call.fields["confirm"])
    plan = (await call.services.people().preview(request, call.progress)).to_fields()
    fields = {"identifiers": identifiers, "map": people, "confirm": call.fields["confirm"]}
    context = {
        "plan": plan,
        "stays": [text for one in plan["topics"] if (text := stay_text(one))],
        "call": shown_call(
            call, "POST", "/v1/person/forget", fields,
            "diamant person forget NAME=VALUE --map people.yaml --reason REASON",
            "diamant.Admin().person.forget(IDENTIFIERS, MAP, reason=REASON)",
        ),
    }  # fmt: skip
    text = fragment("people_preview.html.j2", context)
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=HEADERS)


def _identifiers(text: str) -> dict[str, list[str]]:
    """Parse identifiers, given as lines of the form NAME=VALUE. Raises BadArgument."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if line.strip() and not (equals and name and value):
            raise BadArgument("identifiers: expected lines such as customer_id=42")
        if equals:
            found.setdefault(name, []).append(value)
    return found


ROUTES = (
    view("/people", show, "Requests of persons.", CERTIFICATES),
    Route(
        "POST", "/people/preview", preview, "A preview.",
        fields=(
            Param("identifiers", "string", "Lines NAME=VALUE.", is_required=True),
            Param("map", "string", "The data map, YAML or JSON.", is_required=True),
            Param("confirm", "boolean", "Follow identifiers that may belong to several people.", False),
        ),
        changes_data=True, refuse=refused, max_body_bytes=MAX_KEYED_BODY_BYTES, max_wait_ms=MAX_WAIT_MS, permission=RECORDS,
    ),
)  # fmt: skip
