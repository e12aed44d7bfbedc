"""The broker's clock, which a test or a user can move: `broker.clock`.

    await broker.clock.advance("8d")        # returns once all work due by then is done

Only a manual clock can be moved, and only forward: `--clock manual` (`diamant.clock=manual`), or in a test an `Env` with a
settable clock.

These follow the clock: segment rolls by age, retention, compaction lags and horizons, LogAppendTime, transaction timeouts,
expiry of producers, transactional ids and offsets, file.delete.delay.ms. Moving the clock also runs the jobs that Kafka runs at
intervals, without waiting for the interval. Member sessions, rebalances, pending fetches and connections use real time;
`sessions` advances the timers of groups as well.

A move does not jump over work: it stops at each known deadline (for the cleaner, only in mode prompt), waits for all work due by
then, and continues. For example, if a round on the first day gives a tombstone a horizon one day later, advancing by eight days
also removes that tombstone. After `MAX_STOPS` stops, the clock moves straight to its target.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from diamant.broker.operation_errors import BadArgument, BrokerStopping, NotAllowed, TimedOut
from diamant.broker.operations.broker_state.running_requests import DEFAULT_DUE_TIMEOUT_S
from diamant.broker.operations.calls.cross_loop import on_loop, waiting
from diamant.duration import Duration, parse_duration_ms, seconds_of, time_text
from diamant.progress import Progress
from diamant.storage.checkpoints.manual_clock_file import MAX_TIME_MS, ClockState, write_clock_file
from diamant.storage.env.clocks import ManualClock, SettableClock, SystemClock

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.groups.membership.timers import Timers
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.transactions.coordinator import TransactionCoordinator

MAX_STOPS = 1_000
"""The maximum number of deadlines at which one move stops."""

MAX_PASSES = 100
"""The maximum number of passes over the jobs at one stop. A further pass is made if a job has made another job due."""

_real_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class ClockReport:
    """A reading of the clock. Times are in milliseconds since the epoch."""

    kind: str
    """`system`, or `manual` for a clock that can be moved."""
    now_ms: int
    real_ms: int
    is_frozen: bool

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {
            "kind": self.kind,
            "now_ms": self.now_ms,
            "real_ms": self.real_ms,
            "ahead_ms": self.now_ms - self.real_ms,
            "is_frozen": self.is_frozen,
        }


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The result of moving the clock."""

    from_ms: int
    to_ms: int
    stops: int
    """The number of stops at which due work was done, including the target."""
    duration_ms: int
    """The duration of the move in real time."""
    problems: tuple[str, ...]
    """Names of jobs that failed during the move. The reasons are in the broker's log."""
    clock: ClockReport

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {**asdict(self), "problems": list(self.problems), "clock": self.clock.to_fields()}


class HasSettled(Protocol):
    """A component whose work follows the clock."""

    async def settled(self) -> None:
        """Wait until the due work is done."""
        ...


class _Journey:
    """A move in progress."""

    def __init__(self, from_ms: int, target_ms: int, with_sessions: bool, progress: Progress) -> None:
        self.target_ms = target_ms
        self.with_sessions = with_sessions
        self.stops = 0
        self.problems: dict[str, None] = {}
        self._from_ms = from_ms
        self._progress = progress

    def note(self, failed: list[str], reached_ms: int | None = None) -> None:
        """Record failed jobs and, unless `reached_ms` is None, a stop at that time."""
        self.problems.update(dict.fromkeys(failed))
        if reached_ms is not None:
            self.stops += 1
            self._progress.move_to(min(reached_ms, self.target_ms) - self._from_ms)


class BrokerClock:
    """The clock of a broker. Its coroutines may be awaited from any event loop; moves run one at a time."""

    def __init__(
        self,
        node: Node,
        cleaning: NodeCleaner,
        groups: Lazy[GroupCoordinator],
        transactions: Lazy[TransactionCoordinator],
        jobs: Callable[[], Iterable[HasSettled]],
    ) -> None:
        """`jobs()` returns the existing queues whose work follows the clock: of erasures, redactions and persons' requests."""
        self._node = node
        self._cleaning = cleaning
        self._groups = groups
        self._transactions = transactions
        self._jobs = jobs
        self._loop = node.loop
        self._turn = asyncio.Lock()

    # -- any thread ------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the time on the clock."""
        return self._node.env.clock.now_ms()

    def state(self) -> ClockReport:
        """Return the time on the clock, and the kind of clock."""
        clock = self._node.env.clock
        is_frozen = clock.is_frozen if isinstance(clock, ManualClock) else isinstance(clock, SettableClock)
        kind = "manual" if isinstance(clock, SettableClock) else "system"
        return ClockReport(kind, clock.now_ms(), _real_clock.now_ms(), is_frozen)

    # -- any event loop --------------------------------------------------------------------------------------------------

    async def advance(
        self,
        by: int | str,
        *,
        sessions: bool = False,
        timeout: Duration = DEFAULT_DUE_TIMEOUT_S,
        progress: Progress | None = None,
    ) -> MoveReport:
        """Move forward by milliseconds, or by a string like `8d`; return once all due work is done.

        Raises NotAllowed if the clock is not manual; BadArgument for a move backward; TimedOut if due work takes longer than
        `timeout` in real time. The clock then stays at the time that it has reached, and `advance(0)` waits for the work again.
        """
        try:
            delta_ms = parse_duration_ms(by)
        except ValueError as error:
            raise BadArgument(str(error)) from None
        if delta_ms < 0:
            raise BadArgument(f"the clock goes forward only: expected 0 ms or more, got {delta_ms}")
        return await on_loop(self._loop, self._move(delta_ms, None, sessions, seconds_of(timeout), progress))

    async def set(
        self,
        to_ms: int,
        *,
        sessions: bool = False,
        timeout: Duration = DEFAULT_DUE_TIMEOUT_S,
        progress: Progress | None = None,
    ) -> MoveReport:
        """Like `advance`, but move to a time in milliseconds since the epoch."""
        return await on_loop(self._loop, self._move(None, to_ms, sessions, seconds_of(timeout), progress))

    async def settled(self, *, timeout: Duration = DEFAULT_DUE_TIMEOUT_S) -> list[str]:
        """Wait until all work due now is done; return the names of failed jobs. Works with any clock. Raises TimedOut."""

        async def settle() -> list[str]:
            async with _deadline(seconds_of(timeout)):
                return await self._settle()

        return await on_loop(self._loop, settle())

    async def freeze(self) -> ClockReport:
        """Stop the clock until it is moved or resumed. Raises NotAllowed."""
        return await on_loop(self._loop, self._run_or_stand(is_frozen=True))

    async def resume(self) -> ClockReport:
        """Let the clock run again, from its current time. Raises NotAllowed."""
        return await on_loop(self._loop, self._run_or_stand(is_frozen=False))

    # -- the broker's loop -----------------------------------------------------------------------------------------------

    async def _run_or_stand(self, *, is_frozen: bool) -> ClockReport:
        clock = self._movable()
        if not isinstance(clock, ManualClock):
            raise NotAllowed("this clock moves only on request, and cannot be made to run")
        async with self._turn:
            # The clock may still be running while it is saved, so the new state is first saved with a slightly early time.
            await self._keep(clock, clock.now_ms(), is_frozen=is_frozen)
            if is_frozen:
                now_ms = clock.freeze()
                await self._keep(clock, now_ms, is_frozen=True)
            else:
                clock.resume()
            return self.state()

    async def _move(
        self,
        delta_ms: int | None,
        to_ms: int | None,
        sessions: bool,
        timeout_s: float,
        progress: Progress | None,
    ) -> MoveReport:
        clock = self._movable()
        progress = progress or Progress()
        async with self._turn:
            started_s = time.monotonic()
            from_ms = clock.now_ms()
            target_ms = from_ms + (delta_ms or 0) if to_ms is None else to_ms
            if target_ms < from_ms:
                raise BadArgument(
                    f"the clock shows {time_text(from_ms)} ({from_ms}) and goes forward only, not to {target_ms}"
                )
            if target_ms > MAX_TIME_MS:
                raise BadArgument(f"the clock ends with the year 9999 ({MAX_TIME_MS}), so it cannot go to {target_ms}")
            await self._keep(clock, target_ms, is_frozen=isinstance(clock, ManualClock) and clock.is_frozen)
            progress.begin("moving the clock", target_ms - from_ms, "ms")
            journey = _Journey(from_ms, target_ms, sessions, progress)
            try:
                async with _deadline(timeout_s):
                    await self._travel(clock, journey)
            except (TimedOut, asyncio.CancelledError):
                await self._keep(clock, clock.now_ms(), is_frozen=isinstance(clock, ManualClock) and clock.is_frozen)
                raise
            duration_ms = int((time.monotonic() - started_s) * 1000)
            return MoveReport(from_ms, target_ms, journey.stops, duration_ms, tuple(journey.problems), self.state())

    async def _travel(self, clock: SettableClock, journey: _Journey) -> None:
        target_ms, sessions = journey.target_ms, journey.with_sessions
        # Do overdue work first: it determines the later deadlines.
        journey.note(await self._settle())
        while journey.stops < MAX_STOPS and (stop_ms := self._next_stop_ms(clock, target_ms, sessions)) is not None:
            journey.note(await self._go(clock, stop_ms, sessions), clock.now_ms())
        journey.note(await self._go(clock, target_ms, sessions), target_ms)

    def _next_stop_ms(self, clock: SettableClock, target_ms: int, sessions: bool) -> int | None:
        """Return the next deadline before the target, or None; of a group coordinator's timers, only the last one counts."""
        times = [self._cleaning.next_deadline_ms]
        if self._transactions.made is not None:
            times.append(self._transactions.made.store.next_timeout_ms)
        now_ms = clock.now_ms()
        if sessions:
            last = [timers.last_ms for timers in self._timers()]
            times += [now_ms + int(left_ms) + 1 for left_ms in last if left_ms is not None]
        return min((due_ms for due_ms in times if due_ms is not None and now_ms < due_ms < target_ms), default=None)

    async def _go(self, clock: SettableClock, to_ms: int, sessions: bool) -> list[str]:
        """Move to a time and do the work due by then. A clock that is not frozen may reach that time by itself."""
        before_ms = clock.now_ms()
        delta_ms = max(to_ms - before_ms, 0)
        if sessions:
            for timers in self._timers():
                timers.advance_ms(delta_ms)
        if delta_ms:
            with suppress(ValueError):  # a running clock has just passed that time by itself
                clock.set_ms(to_ms)
        return await self._settle()

    async def _settle(self) -> list[str]:
        """Do all work due now; return the names of failed jobs."""
        node = self._node
        if self._groups.made is not None:
            await self._groups.made.loaded()
        if self._transactions.made is not None:
            await self._transactions.made.loaded()
        failed: dict[str, None] = {}
        for _ in range(MAX_PASSES):
            failed.update(dict.fromkeys(await node.scheduler.settled()))
            await node.flusher.settled()
            for job in self._jobs():
                await job.settled()
            await self._cleaning.settled()
            if failed or not node.scheduler.is_due:
                break
        return list(failed)

    def _timers(self) -> list[Timers]:
        """Return the timers of the group coordinator, if there are any."""
        groups = self._groups.made
        if groups is None:
            return []
        found = []
        if "classic" in groups.__dict__:
            found.append(groups.classic.timers)
        if "consumer" in groups.__dict__:
            found.append(groups.consumer.runner.timers)
        if "share" in groups.__dict__:
            found.append(groups.share.timers)
        return found

    def _movable(self) -> SettableClock:
        clock = self._node.env.clock
        if self._node.is_stopping:
            raise BrokerStopping("the broker was stopped or reset: use the clock of the broker that is running now")
        if not isinstance(clock, SettableClock):
            raise NotAllowed(
                "this broker uses the system clock, which cannot be moved: start it with --clock manual "
                "(diamant.clock=manual)"
            )
        return clock

    async def _keep(self, clock: SettableClock, now_ms: int, *, is_frozen: bool) -> None:
        """Store the time to which the clock is about to move, before any record can be written with it."""
        if self._node.config.clock != "manual":
            return
        state = ClockState(now_ms, now_ms - _real_clock.now_ms(), is_frozen)
        await asyncio.to_thread(write_clock_file, self._node.env, self._node.config.data_dir, state)


class BlockingClock:
    """`BrokerClock` for threads without an event loop: each method blocks."""

    def __init__(self, awaited: BrokerClock, loop: asyncio.AbstractEventLoop) -> None:
        self.awaited = awaited
        self.loop = loop

    def now_ms(self) -> int:
        """Return the time on the clock."""
        return self.awaited.now_ms()

    def state(self) -> ClockReport:
        """Return the time on the clock, and the kind of clock."""
        return self.awaited.state()

    advance = waiting(BrokerClock.advance)
    set = waiting(BrokerClock.set)
    settled = waiting(BrokerClock.settled)
    freeze = waiting(BrokerClock.freeze)
    resume = waiting(BrokerClock.resume)


@asynccontextmanager
async def _deadline(timeout_s: float) -> AsyncIterator[None]:
    """Limit the time of the block, like `asyncio.timeout`, but raise TimedOut."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise TimedOut(
            f"the due work was not done within {timeout_s:g} s. The clock stays at the time that it has reached, and the work "
            "continues: read the clock, then advance by the remaining time, or by 0 to wait"
        ) from None
