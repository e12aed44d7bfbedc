"""The result of a round at one partition, for those that asked for it.

The waiters for rounds at a partition: callers that asked for one, and watches that see each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.result import CleanResult


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round, or why there was none: `result` is None if there was nothing to clean, or if `error` says what went wrong."""

    topic: str
    partition: int
    range: CleanableRange | None
    """The range to be cleaned; None if that could not be told."""
    result: CleanResult | None
    checkpoint: int | None
    """Start of the next round; None if that has not changed."""
    started_ms: int
    """On the clock of the Env."""
    ended_ms: int
    error: str | None = None
    """Why the round ended without its result. Groups of segments that were finished before are in place."""

    @property
    def is_cleaned(self) -> bool:
        """True if a round was carried out to its end."""
        return self.result is not None and self.error is None


MAX_REPORTS = 10_000
"""Reports that a watch keeps; a wait that sees more rounds than these counts the rest no more."""


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """A wish for a round at a partition, due or not."""

    is_forced: bool = False
    """Whatever `min.compaction.lag.ms` says."""
    is_for_horizons: bool = False
    """For what has expired even if nothing is dirty, in mode kafka, too."""
    engine: str | None = None
    """The runner (`rules.modes.ENGINES`) that is to do it, whatever the plan's size."""

    def merged(self, later: RoundRequest) -> RoundRequest:
        """Return the request for a round that serves both; the last engine asked for counts."""
        return RoundRequest(
            self.is_forced or later.is_forced,
            self.is_for_horizons or later.is_for_horizons,
            later.engine or self.engine,
        )


PLAIN = RoundRequest()


@dataclass(slots=True)
class RoundRequests:
    """The requests for the next round at a partition, as one, and the waiters for its report."""

    request: RoundRequest = PLAIN
    futures: list[asyncio.Future[RoundReport]] = field(default_factory=list)


class RoundWatch:
    """Rounds that have ended at a partition since it was made, in order. Belongs to the loop thread."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Why there will be no more rounds: the partition is gone, or not compacted, or the cleaner stops."""
        self._next: asyncio.Future[None] | None = None

    def add(self, report: RoundReport) -> None:
        """Take a round that has ended."""
        if len(self.reports) < MAX_REPORTS:
            self.reports.append(report)
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def end(self, reason: Exception) -> None:
        """Say that there will be no more rounds; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def until_next(self) -> None:
        """Wait until one more round has ended, or there will be no more."""
        following = self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait({following, self.ended}, return_when=asyncio.FIRST_COMPLETED)

    async def until_done(self, round_: asyncio.Future[RoundReport]) -> None:
        """Wait until a round that was asked for has ended, or there will be no more."""
        await asyncio.wait([round_, self.ended], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
