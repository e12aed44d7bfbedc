"""The clock over HTTP: `/v1/clock`. docs/how-to/clock.md has what a move means.

GET  /v1/clock
POST /v1/clock/advance      {"by_ms": 691200000} or {"by": "8d"}; a job
POST /v1/clock/set          {"to_ms": 1767225600000}; a job
POST /v1/clock/freeze
POST /v1/clock/resume
"""

from __future__ import annotations

from diamant.broker.client.errors import BadArgument
from diamant.broker.http.serving.route import Call, Param, Route
from diamant.broker.operations.running.clock import DEFAULT_TIMEOUT_MS, ClockReport, MoveReport
from diamant.storage.checkpoints.manual_clock_file import MAX_TIME_MS

_SESSIONS = Param("sessions", "boolean", "Let the timers of group members and rebalances advance, too.", default=False)
_TIMEOUT = Param(
    "timeout_ms", "integer", "How long, in real time, what is due may take.", default=DEFAULT_TIMEOUT_MS, least=1
)


async def show(call: Call) -> ClockReport:
    """Answer what the clock shows."""
    return call.services.clock().state()


async def advance(call: Call) -> MoveReport:
    """Move by a duration."""
    by, by_ms, timeout_ms = call.fields["by"], call.fields["by_ms"], call.fields["timeout_ms"]
    if (by is None) == (by_ms is None):
        raise BadArgument('expected either "by", a text like "8d", or "by_ms", a number of milliseconds')
    duration = by if by_ms is None else by_ms
    sessions = call.fields["sessions"]
    return await call.services.clock().advance(
        duration, sessions=sessions, timeout_ms=timeout_ms, progress=call.progress
    )


async def set_to(call: Call) -> MoveReport:
    """Move to a time."""
    sessions, timeout_ms = call.fields["sessions"], call.fields["timeout_ms"]
    return await call.services.clock().set(
        call.fields["to_ms"], sessions=sessions, timeout_ms=timeout_ms, progress=call.progress
    )


async def freeze(call: Call) -> ClockReport:
    """Stop it."""
    return await call.services.clock().freeze()


async def resume(call: Call) -> ClockReport:
    """Let it run."""
    return await call.services.clock().resume()


ROUTES = (
    Route("GET", "/v1/clock", show, "The time of the broker's clock, and whether it can be moved."),
    Route(
        "POST",
        "/v1/clock/advance",
        advance,
        "Move a manual clock forward; answered when everything that is due by then has happened.",
        fields=(
            Param("by", "string", "A duration: numbers with w, d, h, m, s or ms, as in 8d or 1h30m."),
            Param("by_ms", "integer", "The same in milliseconds.", most=MAX_TIME_MS),
            _SESSIONS,
            _TIMEOUT,
        ),
        changes_data=True,
        is_job=True,
    ),
    Route(
        "POST",
        "/v1/clock/set",
        set_to,
        "Move a manual clock forward to a time; answered when everything that is due by then has happened.",
        fields=(
            Param("to_ms", "integer", "The time, since the epoch.", is_required=True, most=MAX_TIME_MS),
            _SESSIONS,
            _TIMEOUT,
        ),
        changes_data=True,
        is_job=True,
    ),
    Route("POST", "/v1/clock/freeze", freeze, "Stop a manual clock until it is moved.", changes_data=True),
    Route("POST", "/v1/clock/resume", resume, "Let a frozen clock run with real time again.", changes_data=True),
)
