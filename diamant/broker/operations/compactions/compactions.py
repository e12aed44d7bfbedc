"""Compact and wait: the operation behind `Broker.compact`.

Partitions are compacted in parallel, each up to its log end at the time when its compaction begins. Concurrent calls share
rounds. If a caller stops waiting (timeout, cancellation), the round continues, and a later call joins it.

Bound: `MAX_CALLS` concurrent calls; each holds a few hundred bytes per partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import (
    BrokerStopping,
    NotFound,
    NotPossible,
    OperationError,
    TimedOut,
    TooMany,
    no_partition,
    no_topic,
)
from diamant.broker.transactions.open_in_log import open_transactions
from diamant.cleaner.on_demand.report import (
    MAX_COUNTED_BYTES,
    OPEN_TRANSACTION,
    STOPPING,
    CompactionReport,
    PartitionCompaction,
)
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.cleaner.rules.modes import SPARK
from diamant.kernels import require_kernels
from diamant.progress import Progress
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.compactions.topic_figures import TopicFigures
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.cleaner.on_demand.header_counts import CountedLogs
    from diamant.cleaner.service.service import CleanerService

logger = logging.getLogger(__name__)

MAX_CALLS = 256
"""The maximum number of concurrent calls."""

PARTITIONS_PER_TURN = 2
"""The number of partitions begun in one turn of the loop: closing the active segment of each takes a millisecond or two."""


class CompactedBytes:
    """The progress of a call in bytes, based on the sizes of the logs at its start.

    A finished partition counts in full, any other in proportion to the progress of its round.
    """

    def __init__(self, service: CleanerService, logs: Iterable[Log], progress: Progress) -> None:
        self._service = service
        self._progress = progress
        self._waiting = {(log.topic, log.partition): log.size for log in logs}
        self._total = sum(self._waiting.values())
        self._done = 0

    def begin(self, stage: str) -> None:
        """Begin a stage of the caller's progress."""
        self._progress.begin(stage, self._total, "bytes", measure=self._measure)

    def is_over(self, topic: str, partition: int, *, rounds: int = 1) -> None:
        """Count a finished partition. A partition without a round is excluded: it took no time and would inflate the rate."""
        size = self._waiting.pop((topic, partition))
        if rounds:
            self._done += size
        else:
            self._total -= size

    def _measure(self) -> tuple[int, int]:
        done = self._done
        for one in self._service.slots.status():
            done += (
                self._waiting.get((one.topic, one.partition), 0) * one.progress.done // max(1, one.progress.total or 0)
            )
        return done, self._total


class CompactionFailed(OperationError):
    """Some partitions could not be compacted. `report` has the reason for each, and the results of the other partitions."""

    def __init__(self, report: CompactionReport) -> None:
        first, *others = report.failed
        more = f" (and {len(others)} more partitions)" if others else ""
        super().__init__(f"{first.error}{more}")
        self.report = report
        self.code = first.error_code or "failed"


def _is_ended_by_a_stop(error: BaseException | None) -> bool:
    """Return whether a compaction failed because the cleaner stopped before the call was cancelled."""
    return isinstance(error, CompactionFailed) and error.code == STOPPING


class Compactions:
    """All compaction calls of one broker. Created with the first call. Belongs to the loop thread."""

    def __init__(self, node: Node, cleaning: NodeCleaner, transactions: Lazy[TransactionCoordinator]) -> None:
        self._node = node
        self._cleaning = cleaning
        self._transactions = transactions
        self._loop = node.loop
        self._counts: CountedLogs | None = None
        self._is_stopping = False
        self._running: set[asyncio.Task[CompactionReport]] = set()

    async def compact(
        self,
        request: CompactRequest,
        progress: Progress | None = None,
        *,
        max_counted_bytes: int = MAX_COUNTED_BYTES,
    ) -> CompactionReport:
        """Compact the partitions of a request and return a report; see `Broker.compact`.

        The records of partitions above `max_counted_bytes` are not counted.
        """
        check_engine(request.engine)
        if self._is_stopping:
            raise BrokerStopping("the broker is stopping")
        if len(self._running) >= MAX_CALLS:
            raise TooMany(f"{MAX_CALLS} calls are waiting for compactions, try again when some of them have ended")
        work = self._partitions(request, progress or Progress(), max_counted_bytes)
        running = self._loop.create_task(work)
        self._running.add(running)
        try:
            await asyncio.wait({running}, timeout=request.timeout)
            if running.cancelled() or (running.done() and _is_ended_by_a_stop(running.exception())):
                raise BrokerStopping("the broker is stopping; the compaction continues at its next start")
            if running.done():
                return running.result()
            raise TimedOut(
                f"{request.topic} was not compacted within {request.timeout:g} s; its round continues, and a new call joins it"
            )
        finally:
            running.cancel()
            self._running.discard(running)
            await asyncio.gather(running, return_exceptions=True)

    def stop(self) -> None:
        """End all calls with BrokerStopping."""
        self._is_stopping = True
        for running in self._running:
            running.cancel()

    async def counts(self) -> CountedLogs:
        """Return the record counts that all calls share. Loads the cleaner if necessary."""
        if self._counts is None:
            service = await self._cleaning.service()
            from diamant.cleaner.on_demand.header_counts import CountedLogs

            self._counts = self._counts or CountedLogs(service.blocking)
        return self._counts

    async def figures(self) -> TopicFigures:
        """Return the figures of topics for DescribeConfigs."""
        from diamant.broker.operations.compactions.topic_figures import TopicFigures

        return TopicFigures(self._node, await self._cleaning.service(), await self.counts())

    async def _partitions(
        self, request: CompactRequest, progress: Progress, max_counted_bytes: int
    ) -> CompactionReport:
        """Compact the partitions in parallel."""
        start_s, started_ms = self._loop.time(), self._node.env.clock.now_ms()
        topic = request.topic
        await self._node.topics.settled([topic])
        logs = self._logs(topic, request.partition)
        service, counts = await self._cleaning.service(), await self.counts()
        compacted = CompactedBytes(service, logs, progress)
        compacted.begin(f"compacting {topic}")

        def stage(text: str) -> None:
            if len(logs) == 1:
                compacted.begin(f"{topic}: {text}")

        from diamant.cleaner.on_demand.compaction import PartitionJob

        def is_over(task: asyncio.Task[PartitionCompaction]) -> None:
            if not task.cancelled() and task.exception() is None:
                found = task.result()
                compacted.is_over(found.topic, found.partition, rounds=found.rounds)

        tasks: list[asyncio.Task[PartitionCompaction]] = []
        try:
            for count, log in enumerate(logs, start=1):
                job = PartitionJob(service, counts, log, request, stage, max_counted_bytes)
                tasks.append(self._loop.create_task(job.run()))
                tasks[-1].add_done_callback(is_over)
                if count % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
            reports = map(self._with_transaction, logs, await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            progress.end_measure()
        report = CompactionReport(
            topic=topic,
            until=request.until,
            force=request.force,
            started_ms=started_ms,
            ended_ms=self._node.env.clock.now_ms(),
            duration_ms=(self._loop.time() - start_s) * 1000,
            partitions=tuple(reports),
        )
        if report.failed:
            raise CompactionFailed(report)
        logger.info(
            "%s: compacted on demand in %.0f ms, %d records removed%s",
            topic,
            report.duration_ms,
            sum(report.removed.values()),
            f"; {report.held_text}" if report.held_text else "",
        )
        return report

    def _with_transaction(self, log: Log, found: PartitionCompaction) -> PartitionCompaction:
        """If an open transaction holds records back, add its id and times to the result."""
        held = found.held_back
        if held is None or held.reason != OPEN_TRANSACTION:
            return found
        for one in open_transactions(log, self._transactions):
            if one.producer_id == held.producer_id:
                held = replace(
                    held, transactional_id=one.transactional_id, since_ms=one.since_ms, aborts_ms=one.abort_ms
                )
        return replace(found, held_back=held)

    def _logs(self, name: str, partition: int | None) -> Sequence[Log]:
        """Return the requested logs by ascending partition. Raises OperationError if one is missing or not compacted."""
        topic = self._node.topics.by_name.get(name)
        if topic is None:
            raise NotFound(no_topic(name))
        present = self._node.topics.image.topics[name].partitions
        wanted = sorted(present) if partition is None else [partition]
        for index in wanted:
            if index not in present:
                raise NotFound(no_partition(name, index, len(present)))
            if index not in topic.logs:
                raise OperationError(f"{name}-{index} could not be opened at the start, see the broker's log")
        logs = [topic.logs[index] for index in wanted]
        for log in logs:
            if not log.config.is_compacted:
                raise NotPossible(not_compacted_text(name, log))
        return logs


def check_engine(engine: str | None) -> None:
    """Raise KernelsMissing if the engine needs the compiled kernels and they are not available."""
    if engine == SPARK:
        require_kernels("Spark")


def not_compacted_text(name: str, log: Log) -> str:
    """Return why a topic is not compacted, and the setting to change."""
    policy = ",".join(sorted(log.config.cleanup_policy)) or "empty"
    return f"{name} is not compacted: its cleanup.policy is {policy}. Set cleanup.policy=compact or compact,delete to compact it"
