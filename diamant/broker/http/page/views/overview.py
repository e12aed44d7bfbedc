"""The overview: the broker's identity, its work in progress, and overdue partitions."""

from __future__ import annotations

from aiohttp import web

from diamant.broker.http.page.making.live import live_context
from diamant.broker.http.page.making.rendering import ShownCall, page, shown_call, view
from diamant.broker.http.page.views.faults import fault_text
from diamant.broker.http.serving.authorization import STATUS
from diamant.broker.http.serving.route import Call
from diamant.broker.operations.broker_state.broker_status import BrokerStatus, broker_status
from diamant.kernels import WITHOUT_KERNELS

MAX_ROWS = 20
MINUTE_MS = 60_000
RATE_SAMPLES = 30
"""The number of samples in a quarter of an hour."""


def _status(call: Call) -> BrokerStatus:
    services = call.services
    return broker_status(
        services.node, services.cleaning.status(), services.clock().state(), services.transactions, services.groups
    )


def _context(call: Call) -> dict[str, object]:
    status = _status(call)
    overdue = sorted((one for one in status.cleaner.partitions if one.overdue_ms > 0), key=lambda one: -one.overdue_ms)
    faults = call.services.faults.made
    return {
        "status": status,
        "up_for_ms": int(status.uptime_s) // 60 * MINUTE_MS,
        "without_kernels": WITHOUT_KERNELS,
        "rates": call.services.history().means(RATE_SAMPLES),
        "overdue": overdue[:MAX_ROWS],
        "held": {(one.topic, one.partition): one for one in status.transaction_holds},
        "overdue_more": max(0, len(overdue) - MAX_ROWS),
        "troubled": [one for one in status.cleaner.partitions if one.trouble is not None][:MAX_ROWS],
        "erasures": [
            one for queue in call.services.jobs for one in queue.unfinished()
        ][:MAX_ROWS],
        "faults": [] if faults is None else [
            {"text": fault_text(one), "fired": one.count} for one in faults.list()[:MAX_ROWS]
        ],
    }  # fmt: skip


def _clock_actions(call: Call) -> list[tuple[str, ShownCall]]:
    found = []
    for label, duration in (("Advance by 1 minute", "1m"), ("Advance by 1 hour", "1h"), ("Advance by 1 day", "1d")):
        shown = shown_call(
            call, "POST", "/v1/clock/advance", {"by": duration}, f"diamant clock advance {duration}",
            f'broker.clock.advance("{duration}")',
        )  # fmt: skip
        found.append((label, shown))
    for label, verb in (("Freeze", "freeze"), ("Resume", "resume")):
        shown = shown_call(call, "POST", f"/v1/clock/{verb}", {}, f"diamant clock {verb}", f"broker.clock.{verb}()")
        found.append((label, shown))
    return found


async def show(call: Call) -> web.StreamResponse:
    """Return the view."""
    context = {**_context(call), "clock_actions": _clock_actions(call)}
    return page("overview.html.j2", context, title="Overview", view="Overview")


ROUTES = (view("/", show, "The overview.", STATUS), live_context("overview", _context, STATUS))
