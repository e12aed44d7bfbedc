"""The clock over HTTP: `/v1/clock`. docs/how-to/clock.md explains the effects of a move.

GET  /v1/clock
POST /v1/clock/advance      {"by_ms": 691200000} or {"by": "8d"}; a job
POST /v1/clock/set          {"to_ms": 1767225600000}; a job
POST /v1/clock/freeze
POST /v1/clock/resume
"""

from __future__ import annotations

from diamant.broker.errors import BadArgument
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
from diamant.broker.operations.running.clock import DEFAULT_TIMEOUT_MS, ClockReport, MoveReport
from diamant.storage.checkpoints.manual_clock_file import MAX_TIME_MS

_SESSIONS = Param("sessions", "boolean", "Advance the timers of group members and rebalances, too.", default=False)
_TIMEOUT = Param(
    "timeout_ms", "integer", "The limit, in real time, for all work that is due.", default=DEFAULT_TIMEOUT_MS, least=1
)


async def show(call: Call) -> ClockReport:
    """Return the clock's state."""
    return call.services.clock().state()


async def advance(call: Call) -> MoveReport:
    """Move the clock by a duration."""
    by, by_ms, timeout_ms = call.fields["by"], call.fields["by_ms"], call.fields["timeout_ms"]
    if (by is None) == (by_ms is None):
        raise BadArgument('expected either "by", a text such as "8d", or "by_ms", a number of milliseconds')
    duration = by if by_ms is None else by_ms
    sessions = call.fields["sessions"]
    return await call.services.clock().advance(
        duration, sessions=sessions, timeout_ms=timeout_ms, progress=call.progress
    )


async def set_to(call: Call) -> MoveReport:
    """Move the clock to a time."""
    sessions, timeout_ms = call.fields["sessions"], call.fields["timeout_ms"]
    return await call.services.clock().set(
        call.fields["to_ms"], sessions=sessions, timeout_ms=timeout_ms, progress=call.progress
    )


async def freeze(call: Call) -> ClockReport:
    """Stop the clock."""
    return await call.services.clock().freeze()


async def resume(call: Call) -> ClockReport:
    """Resume the clock."""
    return await call.services.clock().resume()


ROUTES = (
    Route("GET", "/v1/clock", show, "The broker's clock: its time, and whether it can be moved."),
    Route(
        "POST",
        "/v1/clock/advance",
        advance,
        "Move a manual clock forward. The response follows when everything due by then is done.",
        fields=(
            Param("by", "string", "A duration: numbers with w, d, h, m, s or ms, such as 8d or 1h30m."),
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
        "Move a manual clock forward to a time. The response follows when everything due by then is done.",
        fields=(
            Param("to_ms", "integer", "The time, in ms since the epoch.", is_required=True, most=MAX_TIME_MS),
            _SESSIONS,
            _TIMEOUT,
        ),
        changes_data=True,
        is_job=True,
    ),
    Route("POST", "/v1/clock/freeze", freeze, "Stop a manual clock until it is moved.", changes_data=True),
    Route("POST", "/v1/clock/resume", resume, "Resume a frozen clock at the speed of real time.", changes_data=True),
)
