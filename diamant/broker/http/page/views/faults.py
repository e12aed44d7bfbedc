"""The broker's injected faults: how often each has fired, and forms to add, release and remove faults."""

from __future__ import annotations

from aiohttp import web

from diamant.broker.faults.fault import Fault
from diamant.broker.http.page.making.live import live_context
from diamant.broker.http.page.making.rendering import ShownCall, page, shown_call, view
from diamant.broker.http.serving.authorization import FAULTS
from diamant.broker.http.serving.route import Call
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import API_NAMES, SERVED

MAX_FIRINGS = 20


def fault_text(fault: Fault) -> str:
    """Return the specification of a fault as text."""
    found = {name: value for name, value in fault.spec.as_json().items() if value not in (None, False, 0, [], {})}
    return ", ".join(f"{name} {value}" for name, value in found.items() if (name, value) != ("probability", 1.0))


def _context(call: Call) -> dict[str, object]:
    made = call.services.faults.made
    return {
        "faults": []
        if made is None
        else [
            {
                "id": one.id,
                "text": fault_text(one),
                "matched": one.matched,
                "count": one.count,
                "held": one.held,
                "fired": [*one.fired][-MAX_FIRINGS:][::-1],
                "remove": _remove(call, one.id),
                "release": _release(call, one.id) if one.spec.hold else None,
            }
            for one in made.list()
        ]
    }


def _remove(call: Call, fault_id: int) -> ShownCall:
    path = f"/v1/faults/{fault_id}"
    return shown_call(call, "DELETE", path, {}, f"diamant fault remove {fault_id}", f"broker.faults.remove({fault_id})")


def _release(call: Call, fault_id: int) -> ShownCall:
    path = f"/v1/faults/{fault_id}/release"
    return shown_call(
        call, "POST", path, {}, f"diamant fault release {fault_id}", f"broker.faults.get({fault_id}).release()"
    )


async def show(call: Call) -> web.StreamResponse:
    """Return the view."""
    example = shown_call(
        call, "POST", "/v1/faults", {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2},
        "diamant fault add api=Produce error=NOT_LEADER_OR_FOLLOWER times=2",
        'broker.faults.add(api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)',
    )  # fmt: skip
    errors = [one.name for one in ErrorCode if one > 0]
    context = {**_context(call), "apis": sorted(API_NAMES[key] for key in SERVED), "errors": errors, "example": example}
    return page("faults.html.j2", context, title="Faults", view="Faults")


ROUTES = (view("/faults", show, "Faults.", FAULTS), live_context("faults", _context, FAULTS))
