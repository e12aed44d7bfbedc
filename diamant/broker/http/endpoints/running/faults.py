"""Faults over HTTP: `/v1/faults`, for tests in any language. docs/how-to/faults.md has the fields and examples.

POST   /v1/faults                {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}     201
GET    /v1/faults                all faults, with counts and firings
GET    /v1/faults/3              one fault; ?wait_fired=2&timeout_ms=5000: after it has fired twice (else 408)
POST   /v1/faults/3/release      release its held requests
DELETE /v1/faults/3              remove one
DELETE /v1/faults                remove all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from diamant.broker.faults.fault import Fault
from diamant.broker.faults.faults import MAX_FAULTS, TooManyFaults
from diamant.broker.faults.spec import FaultError, FaultSpec
from diamant.broker.http.serving.json_body import JsonError, read_int, read_object
from diamant.broker.http.serving.route import Call, Handle, Route
from diamant.broker.operations.calls.parameters import Param

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from diamant.broker.faults.faults import Faults
    from diamant.broker.node.lazy import Lazy

MAX_WAIT_MS = 8000
"""The longest `wait_fired`: less than the time limit of a connection."""


class FaultRoutes:
    """The functions of the paths below `/v1/faults`."""

    def __init__(self, faults: Lazy[Faults]) -> None:
        self._faults = faults

    async def add(self, request: web.BaseRequest) -> web.Response:
        """Install a fault."""
        description = await read_object(request)
        try:
            fault = self._faults().add_spec(FaultSpec.make(**description))
        except TooManyFaults as error:
            raise JsonError(409, str(error)) from None
        except FaultError as error:
            raise JsonError(400, str(error)) from None
        return web.json_response(fault.as_json(), status=201, headers={"Location": f"/v1/faults/{fault.id}"})

    async def list(self, _request: web.BaseRequest) -> web.Response:
        """Return all faults."""
        faults = [fault.as_json() for fault in self._faults.made.list()] if self._faults.made is not None else []
        return web.json_response({"faults": faults, "max_faults": MAX_FAULTS})

    async def clear(self, _request: web.BaseRequest) -> web.Response:
        """Remove all faults."""
        return web.json_response({"removed": self._faults.made.clear() if self._faults.made is not None else 0})

    async def get(self, request: web.BaseRequest) -> web.Response:
        """Return one fault; with `wait_fired`, after it has fired."""
        fault = self._fault(request)
        count = read_int(request, "wait_fired", 0, 0, 1_000_000)
        timeout_ms = read_int(request, "timeout_ms", MAX_WAIT_MS, 0, MAX_WAIT_MS)
        try:
            await fault.until_fired(count, timeout_s=timeout_ms / 1000)
        except TimeoutError as error:
            raise JsonError(408, str(error)) from None
        return web.json_response(fault.as_json())

    async def remove(self, request: web.BaseRequest) -> web.Response:
        """Remove a fault and return its final counts."""
        fault = self._fault(request)
        shown = fault.as_json()
        fault.remove()
        return web.json_response(shown)

    async def release(self, request: web.BaseRequest) -> web.Response:
        """Release the requests held by a fault."""
        return web.json_response({"released": self._fault(request).release()})

    def _fault(self, request: web.BaseRequest) -> Fault:
        text = request.path.split("/")[3]
        is_number = text.isascii() and text.isdigit() and len(text) < 20
        fault = self._faults.made.get(int(text)) if is_number and self._faults.made is not None else None
        if fault is None:
            raise JsonError(404, f"there is no fault {text[:40]!r}")
        return fault


def _handle(answer: Callable[[FaultRoutes, web.BaseRequest], Awaitable[web.Response]]) -> Handle:
    async def handle(call: Call) -> web.Response:
        return await answer(FaultRoutes(call.services.faults), call.request)

    return handle


_WAIT = (
    Param("wait_fired", "integer", "Respond after it has fired this many times.", default=0, most=1_000_000),
    Param("timeout_ms", "integer", "How long to wait for that. Then 408.", default=MAX_WAIT_MS, most=MAX_WAIT_MS),
)

ROUTES = (
    Route("GET", "/v1/faults", _handle(FaultRoutes.list), "All faults, with counts and firings.", takes_any_query=True),
    Route(
        "POST",
        "/v1/faults",
        _handle(FaultRoutes.add),
        "Install a fault; docs/how-to/faults.md has the fields.",
        changes_data=True,
        takes_any_body=True,
        takes_any_query=True,
    ),
    Route("DELETE", "/v1/faults", _handle(FaultRoutes.clear), "Remove all.", changes_data=True, takes_any_query=True),
    Route(
        "GET",
        "/v1/faults/{id}",
        _handle(FaultRoutes.get),
        "One fault; with `wait_fired`, after it has fired.",
        query=_WAIT,
        takes_any_query=True,
    ),
    Route(
        "DELETE",
        "/v1/faults/{id}",
        _handle(FaultRoutes.remove),
        "Remove a fault and return its final counts.",
        changes_data=True,
        takes_any_query=True,
    ),
    Route(
        "POST",
        "/v1/faults/{id}/release",
        _handle(FaultRoutes.release),
        "Release the requests held by a fault.",
        changes_data=True,
        takes_any_body=True,
        takes_any_query=True,
    ),
)
