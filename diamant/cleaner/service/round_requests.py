"""Callers that wait for rounds: their requests, what they are told, and the table of them."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.result import CleaningAborted, CleanResult
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.errors import StorageError


class UnknownPartition(StorageError):
    """There is no such log, or no longer."""


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


class RoundCallers:
    """Those who wait for rounds of a cleaner, by partition. Belongs to the loop thread."""

    def __init__(self, partitions: Container[TopicPartition]) -> None:
        """`partitions` are those that there are, which changes."""
        self._partitions = partitions
        self.requests: dict[TopicPartition, RoundRequests] = {}
        """Those that no round has taken, the oldest first."""
        self._watches: dict[TopicPartition, list[RoundWatch]] = {}
        self._pausing: dict[TopicPartition, list[asyncio.Future[None]]] = {}
        self.is_stopping = False
        """Set when the cleaner begins to stop: later callers are told so."""

    def request(self, partition: TopicPartition, request: RoundRequest) -> asyncio.Future[RoundReport]:
        """Add a request for the next round at a partition; cancelled when the cleaner stops. Raises UnknownPartition."""
        if partition not in self._partitions:
            raise UnknownPartition(f"there is no partition {partition[0]}-{partition[1]}")
        requests = self.requests.get(partition)
        if requests is None:
            requests = self.requests[partition] = RoundRequests(request)
        else:
            requests.request = requests.request.merged(request)
        return self._wait_in(requests.futures)

    def take(self, partition: TopicPartition) -> RoundRequests:
        """Return the requests that the round serves which begins now."""
        return self.requests.pop(partition, None) or RoundRequests()

    def watch(self, partition: TopicPartition) -> RoundWatch:
        """Watch each round that ends at a partition, by whatever request, until `unwatch`."""
        watch = RoundWatch()
        if partition not in self._partitions:
            watch.end(UnknownPartition(f"there is no partition {partition[0]}-{partition[1]}"))
        if self.is_stopping:
            watch.end(CleaningAborted("the cleaner stops"))
        self._watches.setdefault(partition, []).append(watch)
        return watch

    def unwatch(self, partition: TopicPartition, watch: RoundWatch) -> None:
        """Stop watching."""
        watches = self._watches.get(partition, [])
        watches.remove(watch)
        if not watches:
            self._watches.pop(partition, None)

    def tell(self, partition: TopicPartition, report: RoundReport, requests: RoundRequests) -> None:
        """Tell of a round that has ended, which served `requests`."""
        for watch in self._watches.get(partition, ()):
            watch.add(report)
        for future in requests.futures:
            if not future.done():
                future.set_result(report)

    def end_watches(self, partition: TopicPartition, reason: Exception) -> None:
        """Tell those who watch a partition that there will be no more rounds."""
        for watch in self._watches.get(partition, ()):
            watch.end(reason)

    def forget(self, partition: TopicPartition) -> None:
        """Tell all that the partition was deleted."""
        gone = UnknownPartition(f"{partition[0]}-{partition[1]} was deleted")
        self.end_watches(partition, gone)
        for future in self.take(partition).futures:
            if not future.done():
                future.set_exception(gone)

    async def until_paused(self, partition: TopicPartition) -> None:
        """Wait until the round that was told to pause has ended; CancelledError if the caller is, or the cleaner stops."""
        pausing = self._pausing.setdefault(partition, [])
        future = self._wait_in(pausing)
        try:
            await future
        except asyncio.CancelledError:
            if future in pausing:
                pausing.remove(future)
            if not pausing and self._pausing.get(partition) is pausing:
                del self._pausing[partition]
            raise

    def tell_paused(self, partition: TopicPartition) -> None:
        """Tell that the round at a partition has ended, and that it is paused."""
        for future in self._pausing.pop(partition, ()):
            if not future.done():
                future.set_result(None)

    def stop(self) -> None:
        """Tell all that the cleaner stops."""
        for pausing in self._pausing.values():
            cancel(pausing)
        for requests in self.requests.values():
            cancel(requests.futures)
        for watches in self._watches.values():
            for watch in watches:
                watch.end(CleaningAborted("the cleaner stops"))

    def _wait_in(self, futures: list[asyncio.Future[Any]]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_stopping:
            future.cancel()
        futures.append(future)
        return future


def cancel(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel those that are not done."""
    for future in futures:
        future.cancel()
