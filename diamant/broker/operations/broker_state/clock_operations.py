"""The operations on the clock. In Python they are methods of `broker.clock`, which any thread can also read without waiting."""

from __future__ import annotations

from diamant.broker.operation_errors import BadArgument
from diamant.broker.operations.broker_state.broker_clock import BrokerClock, ClockReport, MoveReport
from diamant.broker.operations.broker_state.running_requests import AdvanceRequest, NoArguments, SetClockRequest
from diamant.progress import Progress


async def show(clock: BrokerClock, _request: NoArguments, _: Progress) -> ClockReport:
    """Return the clock's state."""
    return clock.state()


async def advance(clock: BrokerClock, request: AdvanceRequest, progress: Progress) -> MoveReport:
    """Move the clock by a duration. Raises BadArgument, NotAllowed, TimedOut."""
    if (request.by is None) == (request.by_ms is None):
        raise BadArgument('expected either "by", a string such as "8d", or "by_ms", a number of milliseconds')
    duration = request.by if request.by is not None else request.by_ms or 0
    return await clock.advance(duration, sessions=request.sessions, timeout=request.timeout, progress=progress)


async def set_to(clock: BrokerClock, request: SetClockRequest, progress: Progress) -> MoveReport:
    """Move the clock to a time. Raises BadArgument, NotAllowed, TimedOut."""
    return await clock.set(request.to_ms, sessions=request.sessions, timeout=request.timeout, progress=progress)


async def freeze(clock: BrokerClock, _request: NoArguments, _: Progress) -> ClockReport:
    """Stop the clock. Raises NotAllowed."""
    return await clock.freeze()


async def resume(clock: BrokerClock, _request: NoArguments, _: Progress) -> ClockReport:
    """Resume the clock. Raises NotAllowed."""
    return await clock.resume()
