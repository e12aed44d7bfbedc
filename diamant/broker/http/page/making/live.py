"""Live parts of the page: server-sent events, each with the HTML of one part, sent when it has changed.

Bounds: `MAX_STREAMS`, each with one event in progress. Who does not read is disconnected when the connection's time is over.
A stream whose parts take long to make is made less often, so that it costs a hundredth of a core at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiohttp import web

from diamant.broker.client.errors import NotAllowed, VerbError
from diamant.broker.http.page.making.rendering import HEADERS, refused
from diamant.broker.http.serving.json_body import JsonError
from diamant.broker.http.serving.route import Call, Route

MAX_STREAMS = 32
"""Of the 64 connections of the port."""
INTERVAL_S = 1.0
BUSY_INTERVAL_S = 0.25
COST = 100
"""A part is made again after so many times the time that it took, at the earliest."""
PULSE_S = 15.0
"""After so long without an event a comment is sent: it tells who has gone."""

LATER_S = 15
"""After so long a page that is not live asks again."""
NOTICE = "notice"
"""Name of the event that says why a page is not live."""

Parts = Callable[[], Awaitable[Mapping[str, str]]]
"""Makes the HTML of each part, by the name of its event."""

_open: set[object] = set()


async def stream(call: Call, parts: Parts, is_busy: Callable[[], bool] = lambda: False) -> web.StreamResponse:
    """Send parts as they change, until the browser or the broker goes, or a notice of why there are none.

    While `is_busy` they are looked at more often, and once it is so at once.
    """
    if len(_open) >= MAX_STREAMS:
        return await _not_live(call, f"Not live: {MAX_STREAMS} other pages are. This is what was when it was loaded.")
    token = object()
    _open.add(token)
    try:
        response = await _begin(call, "retry: 1000\n\n")
        with suppress(ConnectionError):  # the browser has gone
            try:
                await _send(call, parts, response, is_busy)
            except VerbError as error:  # what is shown has gone
                await response.write(_notice(f"No longer live: {error}.").encode())
    finally:
        _open.discard(token)
    return response


def live_view(path: str, handle: Callable[[Call], Awaitable[web.StreamResponse]]) -> Route:
    """Return the row of a stream; what cannot be shown is told by a notice."""

    async def answer(call: Call) -> web.StreamResponse:
        try:
            return await handle(call)
        except (VerbError, JsonError) as error:
            return await _not_live(call, f"No longer live: {error}.")

    return Route("GET", path, answer, "Changes of a view.", takes_any_query=True, refuse=refused)


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
        call.extend(time.monotonic() - began_s)  # not what a reader takes who does not read
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
