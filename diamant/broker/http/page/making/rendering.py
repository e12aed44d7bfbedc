"""Responses made from templates. A page loads nothing from other sites, and records and names never become markup.

The templates escape all values. In addition, `Content-Security-Policy` forbids foreign and inline scripts.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from diamant.broker.http.page.making.assets import asset_href
from diamant.broker.http.serving.authorization import RoutePermission
from diamant.broker.http.serving.jobs import error_fields
from diamant.broker.http.serving.json_body import JsonError
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operation_errors import OperationError
from diamant.cleaner.evidence.certificates.page_words import state_text
from diamant.duration import duration_text
from diamant.words import counted, moment, number, size

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}

COMMAND = re.compile(r"(?<![^\s(])`([^`]+)`")
"""A command in a sentence. page.js (`COMMAND`) has the same pattern."""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call of the HTTP API, and its equivalents for the shell, Python and curl."""

    method: str
    path: str
    fields: Mapping[str, Any]
    shell: str
    python: str
    curl: str


def shown_call(call: Call, method: str, path: str, fields: Mapping[str, Any], shell: str, python: str) -> ShownCall:
    """Return a call to show, with this broker's address in its curl command."""
    url = call.services.node.addresses.http_url
    data = shlex.quote(json.dumps(fields))
    body = f" -H 'Content-Type: application/json' -d {data}" if method != "DELETE" else ""
    method_option = "" if method == "POST" and body else f" -X {method}"
    return ShownCall(method, path, fields, shell, python, f"curl{method_option} {url}{path}{body}")


def find_call(call: Call, topic: str, wanted: Mapping[str, str]) -> ShownCall:
    """Return the call that searches for records. `wanted` has one criterion, named as in POST /v1/find."""
    [(kind, text)] = wanted.items()
    shell = f"diamant find {topic} --{kind} {shlex.quote(text)}"
    python = f"list(diamant.Admin().find({topic!r}, {kind}={text!r}))"
    return shown_call(call, "POST", "/v1/find", {"topic": topic, **wanted}, shell, python)


def produce_call(call: Call, topic: str) -> ShownCall:
    """Return the call that produces a record. page.js (`LOOKS`) fills in the typed values."""
    return shown_call(
        call, "POST", "/v1/produce", {"topic": topic, "value": {"text": "VALUE"}}, f"echo VALUE | diamant produce {topic}",
        f"broker.produce({topic!r}, 'VALUE')",
    )  # fmt: skip


def fragment(template: str, context: Mapping[str, object]) -> str:
    """Render a template."""
    return _environment().get_template(template).render(context)


def marked(sentence: str) -> Markup:
    """Return a sentence as HTML with its commands marked as code."""
    code = Markup("<code>{}</code>").format
    return Markup("").join(
        code(part) if index % 2 else escape(part) for index, part in enumerate(COMMAND.split(sentence))
    )


def page(
    template: str, context: Mapping[str, object], *, title: str, view: str = "", status: int = 200
) -> web.Response:
    """Return a page. `view` is the name of its view in the navigation."""
    text = fragment(template, {**context, "title": title, "view": view})
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=HEADERS)


def refused(status: int, sentence: str) -> web.Response:
    """Return the page for a refused client, with a login form if a token would help."""
    wants_token = status == 401
    title = "Log in" if wants_token else "Not allowed"
    context = {"message": sentence, "wants_token": wants_token}
    return page("error.html.j2", context, title=title, status=status)


def view(
    path: str,
    handle: Callable[[Call], Awaitable[web.StreamResponse]],
    summary: str,
    permission: RoutePermission,
) -> Route:
    """Return the route of a view. Invalid query parameters count as missing; errors are shown as pages."""
    return Route(
        "GET", path, _errors_as_pages(handle), summary, changes_data=permission.is_reading, takes_any_query=True,
        refuse=refused, permission=permission,
    )  # fmt: skip


def _errors_as_pages(
    handle: Callable[[Call], Awaitable[web.StreamResponse]],
) -> Callable[[Call], Awaitable[web.StreamResponse]]:
    @functools.wraps(handle)
    async def answer(call: Call) -> web.StreamResponse:
        try:
            return await handle(call)
        except (OperationError, JsonError) as error:
            status = error_fields(error)["status"]
            title = "Not found" if status == 404 else "Not possible"
            context = {"message": str(error), "wants_token": False}
            return page("error.html.j2", context, title=title, status=status)

    return answer


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("diamant.broker.http.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        counted=counted,
        marked=marked,
        number=number,
        size=size,
        moment=moment,
        duration=duration_text,
        state=state_text,
        step=partial(quote, safe=""),
    )
    environment.globals.update(asset=asset_href)
    return environment
