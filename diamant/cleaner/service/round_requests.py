"""Requests for rounds, the reports that answer them, and a table of the callers that are waiting."""

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
    """The log does not exist, or was deleted."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The outcome of one round. `result` is None if there was nothing to clean, or if the round failed with `error`."""

    topic: str
    partition: int
    range: CleanableRange | None
    """The cleanable range; None if it could not be determined."""
    result: CleanResult | None
    checkpoint: int | None
    """Start of the next round; None if unchanged."""
    started_ms: int
    """Start of the round on the clock of the Env."""
    ended_ms: int
    error: str | None = None
    """The reason why the round failed or did not begin. Outputs that were swapped in before a failure remain in the log."""

    @property
    def is_cleaned(self) -> bool:
        """True if a round ran and did not fail."""
        return self.result is not None and self.error is None


MAX_REPORTS = 10_000
"""Maximum number of reports that a watch keeps; reports of further rounds are discarded."""


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """A request to clean a partition, whether or not it is due."""

    force: bool = False
    """True to ignore `min.compaction.lag.ms`."""
    is_for_horizons: bool = False
    """True to remove expired records even if nothing is dirty. This works in both modes."""
    engine: str | None = None
    """The runner (`rules.modes.ENGINES`) to use regardless of the plan's size."""

    def merged(self, later: RoundRequest) -> RoundRequest:
        """Combine this request with a later one, whose engine, if it names one, takes precedence."""
        return RoundRequest(
            self.force or later.force,
            self.is_for_horizons or later.is_for_horizons,
            later.engine or self.engine,
        )


PLAIN = RoundRequest()


@dataclass(slots=True)
class RoundRequests:
    """The combined requests for the next round of a partition, and the futures of the callers that wait for its report."""

    request: RoundRequest = PLAIN
    futures: list[asyncio.Future[RoundReport]] = field(default_factory=list)


class RoundWatch:
    """Collects reports on the rounds of a partition that end after the watch has begun. Belongs to the loop thread."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Resolves, when the watch ends, to the reason: the partition is gone or not compacted, or the cleaner stops."""
        self._next: asyncio.Future[None] | None = None

    def add(self, report: RoundReport) -> None:
        """Record a round that has ended."""
        if len(self.reports) < MAX_REPORTS:
            self.reports.append(report)
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def end(self, reason: Exception) -> None:
        """Record that no more rounds follow; only the first reason is kept."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def until_next(self) -> None:
        """Wait until another round has ended, or no more rounds follow."""
        following = self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait({following, self.ended}, return_when=asyncio.FIRST_COMPLETED)


class RoundCallers:
    """The callers that wait for rounds of a cleaner, by partition. Belongs to the loop thread."""

    def __init__(self, partitions: Container[TopicPartition]) -> None:
        """`partitions` is the owner's live table of existing partitions."""
        self._partitions = partitions
        self.requests: dict[TopicPartition, RoundRequests] = {}
        """Requests that wait for a round to begin, the oldest first."""
        self._watches: dict[TopicPartition, list[RoundWatch]] = {}
        self._pausing: dict[TopicPartition, list[asyncio.Future[None]]] = {}
        self.is_stopping = False
        """True once the cleaner begins to stop; from then on, new requests are cancelled and new watches end immediately."""

    def request(self, partition: TopicPartition, request: RoundRequest) -> asyncio.Future[RoundReport]:
        """Add a request for the next round of a partition. Raises UnknownPartition.

        The future resolves to the round's report, and is cancelled when the cleaner stops.
        """
        if partition not in self._partitions:
            raise UnknownPartition(f"there is no partition {partition[0]}-{partition[1]}")
        requests = self.requests.get(partition)
        if requests is None:
            requests = self.requests[partition] = RoundRequests(request)
        else:
            requests.request = requests.request.merged(request)
        return self._wait_in(requests.futures)

    def take(self, partition: TopicPartition) -> RoundRequests:
        """Remove and return the requests for a partition, because a round that serves them begins now."""
        return self.requests.pop(partition, None) or RoundRequests()

    def watch(self, partition: TopicPartition) -> RoundWatch:
        """Begin to collect reports on a partition's rounds, requested or not, until `unwatch`."""
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

    def report_end(self, partition: TopicPartition, report: RoundReport, requests: RoundRequests) -> None:
        """Pass the report of a round to the partition's watches, and to the callers whose `requests` the round served."""
        for watch in self._watches.get(partition, ()):
            watch.add(report)
        for future in requests.futures:
            if not future.done():
                future.set_result(report)

    def end_watches(self, partition: TopicPartition, reason: Exception) -> None:
        """End the watches of a partition, because no more rounds will follow."""
        for watch in self._watches.get(partition, ()):
            watch.end(reason)

    def forget(self, partition: TopicPartition) -> None:
        """End the watches of a deleted partition, and make its requests fail."""
        gone = UnknownPartition(f"{partition[0]}-{partition[1]} was deleted")
        self.end_watches(partition, gone)
        for future in self.take(partition).futures:
            if not future.done():
                future.set_exception(gone)

    async def until_paused(self, partition: TopicPartition) -> None:
        """Wait until the aborted round has ended. Raises CancelledError if the caller is cancelled or the cleaner stops."""
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

    def report_paused(self, partition: TopicPartition) -> None:
        """Wake the callers of `until_paused`, because the round has ended and the partition is now paused."""
        for future in self._pausing.pop(partition, ()):
            if not future.done():
                future.set_result(None)

    def stop(self) -> None:
        """Cancel all waiters and end all watches, because the cleaner stops."""
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
    """Cancel the futures that are not done."""
    for future in futures:
        future.cancel()
