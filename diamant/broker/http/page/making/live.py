"""Live parts of the page: server-sent events, each with the HTML of one changed part.

Bounds: `MAX_STREAMS`, each with one event in progress. A client that does not read is disconnected after the connection's time
limit. Expensive parts are rendered less often, so that a stream uses at most a hundredth of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiohttp import web

from diamant.broker.http.page.making.rendering import HEADERS, fragment, refused
from diamant.broker.http.serving.authorization import RoutePermission
from diamant.broker.http.serving.json_body import JsonError
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operation_errors import NotAllowed, OperationError

MAX_STREAMS = 32
"""The maximum number of streams, out of the port's 64 connections."""
INTERVAL_S = 1.0
BUSY_INTERVAL_S = 0.25
COST = 100
"""The minimum pause before parts are rendered again, as a multiple of the thread time that rendering took."""
PULSE_S = 15.0
"""After this time without an event, a comment is sent to detect disconnected clients."""

LATER_S = 15
"""How many seconds a page that is not live waits before it reconnects."""
NOTICE = "notice"
"""The event that says why a page is not live."""

Parts = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the HTML of each part, by the name of its event."""

_open: set[object] = set()


async def stream(call: Call, parts: Parts, is_busy: Callable[[], bool] = lambda: False) -> web.StreamResponse:
    """Send parts as they change, until the browser disconnects or the broker stops. If that is not possible, send a notice.

    The parts are checked for changes more often while `is_busy` returns True, and as soon as it becomes True.
    """
    if len(_open) >= MAX_STREAMS:
        return await _not_live(
            call,
            f"Not live, because {MAX_STREAMS} other pages are. This page shows the state at the time it was loaded.",
        )
    token = object()
    _open.add(token)
    try:
        response = await _begin(call, "retry: 1000\n\n")
        with suppress(ConnectionError):  # the browser has disconnected
            try:
                await _send(call, parts, response, is_busy)
            except OperationError as error:  # the shown object no longer exists
                await response.write(_notice(f"No longer live: {error}.").encode())
    finally:
        _open.discard(token)
    return response


def live_view(path: str, handle: Callable[[Call], Awaitable[web.StreamResponse]], permission: RoutePermission) -> Route:
    """Return the route of a stream. Errors are sent as notices."""

    async def answer(call: Call) -> web.StreamResponse:
        try:
            return await handle(call)
        except (OperationError, JsonError) as error:
            return await _not_live(call, f"No longer live: {error}.")

    return Route("GET", path, answer, "Changes of a view.", takes_any_query=True, refuse=refused, permission=permission)


def live_context(name: str, context: Callable[[Call], Mapping[str, object]], permission: RoutePermission) -> Route:
    """Return the route of a stream with a single part, which the template `<name>_live.html.j2` renders from `context`."""

    async def live(call: Call) -> web.StreamResponse:
        async def parts() -> dict[str, str]:
            return {name: fragment(f"{name}_live.html.j2", context(call))}

        return await stream(call, parts)

    return live_view(f"/live/{name}", live, permission)


async def _begin(call: Call, text: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(call.request)
    await response.write(text.encode())
    return response


async def _not_live(call: Call, text: str) -> web.StreamResponse:
    return await _begin(call, _notice(text))


def _notice(text: str) -> str:
    line = " ".join(text.split())
    return f"retry: {LATER_S * 1000}\nevent: {NOTICE}\ndata: {line}\n\n"


async def _send(call: Call, parts: Parts, response: web.StreamResponse, is_busy: Callable[[], bool]) -> None:
    sent: dict[str, int] = {}
    quiet_s = 0.0
    while not call.closing.is_set():
        denial = call.denial()
        if denial is not None:
            raise NotAllowed(denial)
        was_busy = is_busy()
        started_s, began_s = time.thread_time(), time.monotonic()
        events = [(name, html) for name, html in (await parts()).items() if sent.get(name) != hash(html)]
        took_s = time.thread_time() - started_s
        call.extend(time.monotonic() - began_s)  # the client's time to read still counts towards the limit
        for name, html in events:
            sent[name] = hash(html)
            lines = "".join(f"data: {line}\n" for line in html.splitlines() if line.strip())
            await response.write(f"event: {name}\n{lines}\n".encode())
        pause_s = max(BUSY_INTERVAL_S if was_busy else INTERVAL_S, COST * took_s)
        quiet_s = 0.0 if events else quiet_s + pause_s
        if quiet_s >= PULSE_S:
            quiet_s = 0.0
            await response.write(b":\n\n")
        call.extend(pause_s)
        while pause_s > 0 and not call.closing.is_set() and (was_busy or not is_busy()):
            with suppress(TimeoutError):
                await asyncio.wait_for(call.closing.wait(), min(pause_s, BUSY_INTERVAL_S))
            pause_s -= BUSY_INTERVAL_S
