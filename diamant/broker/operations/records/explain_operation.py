"""`broker.explain`: why records are still on disk, when they will be removed, and what would remove them now.

The log's state is captured in one turn of the loop. A thread then opens its files and, unless the cleaner has replaced one in
between, reads the segments that key filters do not rule out. So the answer is consistent however long reading takes, and
neither writers nor the cleaner are blocked. Files that the log has released are read as well, since they are still on disk
(`log_files.py`).

Bounds: `MAX_AT_ONCE` explanations, `MAX_OPEN_FILES` descriptors each. In a log with more files, the other files are opened when
they are read; this fails if the cleaner has replaced one. Limits of records and tombstones: `cleaner/explain/scans.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from diamant.broker.groups.coordinator.committed_offsets import groups_not_known, groups_of
from diamant.broker.groups.coordinator.share_figures import held_of
from diamant.broker.operation_errors import (
    BadArgument,
    BrokerStopping,
    NotFound,
    NotPossible,
    TooMany,
    no_topic,
    refused_by_kafka,
)
from diamant.broker.operations.records.log_at_moment import LogAtMoment
from diamant.broker.operations.records.log_files import MAX_OPEN_FILES, Changed, LogFiles
from diamant.broker.operations.records.record_requests import ExplainRequest
from diamant.broker.record_json import key_fields
from diamant.broker.transactions.open_in_log import open_transactions
from diamant.cleaner.explain.explainer import of_tombstone
from diamant.cleaner.explain.explanation import Holder, PartitionExplanation
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import (
    KeyScan,
    scan_tombstones,
)
from diamant.cleaner.explain.stranded import with_stranded
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.cleaner.service.log_picker import look_at_first_timestamps
from diamant.cleaner.service.partition_view import CleanerView
from diamant.progress import Progress
from diamant.protocol.errors import KafkaError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.cleaner.erasure_state.pending_erasures import PendingErasures
    from diamant.cleaner.values.schemas import Values

MAX_AT_ONCE = 4
MAX_ATTEMPTS = 5
"""The maximum number of attempts to open a snapshot's files. An attempt fails if the cleaner replaces a file first."""
EXCHANGE_PAUSE_S = 0.002
EXCHANGE_TIMEOUT_S = 60.0
MAX_SHOWN_TOMBSTONES = 1_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of `broker.explain`, partition by partition."""

    topic: str
    now_ms: int
    key: bytes | None
    """The requested key, or the key of the record at the requested offset."""
    partitions: tuple[PartitionExplanation, ...]
    asked_offset: int | None = None

    @property
    def records(self) -> int:
        """The number of records that were explained."""
        return sum(len(one.records) + one.records_left_out for one in self.partitions)

    def to_fields(self) -> dict[str, object]:
        """Return the fields of its JSON object."""
        return {
            "topic": self.topic,
            "now_ms": self.now_ms,
            "key": None if self.key is None else key_fields(self.key),
            "offset": self.asked_offset,
            "partitions": [one.to_fields() for one in self.partitions],
        }


class ExplainOperation:
    """The operation `explain` of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        cleaning: NodeCleaner,
        groups: Lazy[GroupCoordinator],
        transactions: Lazy[TransactionCoordinator],
        pending_erasures: Callable[[str], PendingErasures | None],
    ) -> None:
        self._node = node
        self._cleaning = cleaning
        self._groups = groups
        self._transactions = transactions
        self._pending_erasures = pending_erasures
        self._running = 0

    def values(self, topic: str, registry: str | None = None) -> Values:
        """Return a decoder of a topic's keys and values, to be used for one operation. Raises BadArgument."""
        from diamant.broker.node.values import topic_values

        return topic_values(self._node, topic, registry)

    async def explain(self, request: ExplainRequest, progress: Progress | None = None) -> Explanation:
        """Explain records or whole partitions; see `Broker.explain`."""
        topic, partition, key, offset = request.topic, request.partition, request.key, request.offset
        if (key is not None) + (offset is not None) + request.tombstones > 1:
            raise BadArgument(
                "expected one of key, offset and tombstones, or none of them for the partitions as a whole"
            )
        if offset is not None and partition is None:
            raise BadArgument("offset needs a partition: give both")
        logs = self.logs(topic, partition)
        if self._running >= MAX_AT_ONCE:
            raise TooMany(f"{MAX_AT_ONCE} explanations are in progress, try again when one of them is done")
        self._running += 1
        progress = progress or Progress()
        progress.begin("reading", sum(log.size for log in logs), "bytes")
        found = []
        try:
            for log in logs:
                if request.tombstones:
                    found.append(await self._tombstones(log, progress))
                elif offset is not None:
                    key, one = await self._at_offset(log, offset, progress)
                    found.append(one)
                elif key is not None:
                    found.append(await self._of_key(log, key, progress))
                else:
                    taken = await self._take(log)
                    found.append(await asyncio.to_thread(taken.explain))
        finally:
            self._running -= 1
        if key is not None:
            found = with_stranded(key, found, len(self._node.topics.image.topics[topic].partitions))
        found = [self._with_holders(one) for one in found]
        return Explanation(topic, self._node.env.clock.now_ms(), key, tuple(found), offset)

    def _with_holders(self, one: PartitionExplanation) -> PartitionExplanation:
        """Add the members of share groups that hold these records."""
        held = held_of(self._groups.made, self._node.topics, one.topic, one.partition)
        records = [
            replace(
                record,
                held_by=tuple(
                    Holder(group, by.member_id, by.deliveries, by.lock_ends_ms)
                    for group, by in held
                    if by.first <= record.offset <= by.last
                ),
            )
            for record in one.records
        ]
        return replace(one, records=tuple(records)) if held else one

    def logs(self, topic: str, partition: int | None) -> list[Log]:
        """Return the requested logs by ascending partition. Raises NotFound."""
        known = self._node.topics.by_name.get(topic)
        if known is None:
            raise NotFound(no_topic(topic))
        if partition is None:
            return [known.logs[one] for one in sorted(known.logs)]
        try:
            return [self._node.topics.log(topic, partition)]
        except KafkaError as error:
            raise refused_by_kafka(error) from None

    # -- one partition -------------------------------------------------------------------------------------------

    async def _of_key(self, log: Log, key: bytes, progress: Progress) -> PartitionExplanation:
        taken, files = await self.open(log, key)
        with files:

            def read() -> PartitionExplanation:
                return files.with_unread(taken.explain(_sorted(taken.scan(key, None, files, self.check, progress))))

            return await self.read(read)

    async def _at_offset(self, log: Log, offset: int, progress: Progress) -> tuple[bytes | None, PartitionExplanation]:
        taken, files = await self.open(log)
        with files:

            def read() -> tuple[bytes | None, PartitionExplanation]:
                found = taken.scan(None, offset, files.around(offset), self.check, Progress())
                if not found.records and found.problems:
                    raise NotPossible(
                        f"the record at offset {offset} of {log.topic}-{log.partition} cannot be explained: its segment is "
                        f"damaged ({found.problems[0]})"
                    )
                if not found.records:
                    raise NotFound(
                        f"{log.topic}-{log.partition} has no record at offset {offset}: it was removed, or there never was one; "
                        f"the log has offsets {taken.state.log_start_offset} to {taken.state.log_end_offset - 1}"
                    )
                record = found.records[0]
                if record.key is None or record.is_control:
                    return None, taken.explain(found)
                scan = _sorted(taken.scan(record.key, None, files, self.check, progress))
                return record.key, files.with_unread(taken.explain(scan))

            return await self.read(read)

    async def _tombstones(self, log: Log, progress: Progress) -> PartitionExplanation:
        taken, files = await self.open(log)
        with files:
            unknown = await groups_not_known(self._groups, self._node.topics)
            groups = await groups_of(self._groups, log)

            def read() -> PartitionExplanation:
                found = scan_tombstones(
                    files.present(),
                    taken.outcomes,
                    taken.state.log_start_offset,
                    check_done=self.check,
                    advance=progress.advance,
                    keeps_key=None if taken.erasures is None else taken.erasures.has,
                )
                explainer = taken.explainer()
                records = [of_tombstone(explainer, one, groups) for one in found.tombstones[:MAX_SHOWN_TOMBSTONES]]
                return replace(
                    explainer.partition(),
                    records=tuple(records),
                    records_left_out=found.left_out + len(found.tombstones) - len(records),
                    problems=(
                        *(f"groups that may be behind are not known: {one}" for one in unknown),
                        *(str(problem) for problem in found.problems),
                    ),
                    segments_read=found.segments_read,
                    bytes_read=found.bytes_read,
                )

            return await self.read(read)

    async def read(self, read: Callable[[], T]) -> T:
        """Run `read`, which reads a log's files, in a thread. Raises NotPossible if a file was replaced before it was opened."""
        try:
            return await asyncio.to_thread(read)
        except Changed:
            raise NotPossible(
                f"the log has more than {MAX_OPEN_FILES} files, and the cleaner replaced some before they were read; try again"
            ) from None

    def check(self) -> None:
        """Raise BrokerStopping if the broker is stopping. Callable from any thread."""
        if self._node.is_stopping:
            raise BrokerStopping("the broker stops")

    # -- a moment ------------------------------------------------------------------------------------------------

    async def open(self, log: Log, key: bytes | None = None) -> tuple[LogAtMoment, LogFiles]:
        """Capture a log's state and open its files; with `key`, skip files that cannot hold it."""
        for _ in range(MAX_ATTEMPTS):
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                while log.is_exchanging:  # noqa: ASYNC110  (some turns of the loop, and no event tells its end)
                    # Until the exchange ends, the files of new segments have temporary names.
                    await asyncio.sleep(EXCHANGE_PAUSE_S)
            taken = await self._take(log)
            try:
                files = await asyncio.to_thread(taken.open, key)
            except Changed:
                continue
            if not any(segment.is_deleted for segment in taken.segments):
                return taken, files
            files.close()
        raise NotPossible(f"{log.topic}-{log.partition} was cleaned {MAX_ATTEMPTS} times while it was read; try again")

    async def outcomes(self, log: Log) -> TransactionOutcomes:
        """Return the outcomes of a log's transactions as of now."""
        opened = {one.producer_id: one.current_txn_first_offset for one in log.producers.active_producers}
        segments = list(log.segments)
        aborted = await asyncio.to_thread(lambda: [one for segment in segments for one in segment.txn_index.all()])
        return TransactionOutcomes(aborted, {one: first for one, first in opened.items() if first >= 0})

    async def _take(self, log: Log) -> LogAtMoment:
        unknown = [segment for segment in log.segments if not segment.knows_first_timestamp]
        if unknown:
            await asyncio.to_thread(look_at_first_timestamps, unknown)
        node = self._node
        now_ms = node.env.clock.now_ms()
        if log.is_deleted:
            raise NotFound(f"{log.topic}-{log.partition} was deleted")
        if self._cleaning.is_loaded or log.config.is_compacted:
            view = (await self._cleaning.service()).view(log)
        else:
            config = node.config
            view = CleanerView(mode=config.diamant_cleaner_mode, is_enabled=config.log_cleaner_enable)
        opened = open_transactions(log, self._transactions)
        return LogAtMoment(
            log.env,
            LogState.of(log, now_ms, view.checkpoint, opened),
            view,
            now_ms,
            tuple(log.segments),
            TransactionOutcomes(
                (), {one.producer_id: one.first_offset for one in opened if one.producer_id is not None}
            ),
            {path: at_ms for at_ms, path in node.directory.deletions.inside(log.path)},
            self._pending_erasures(log.topic),
        )


def _sorted(scan: KeyScan) -> KeyScan:
    """Sort the records by offset, but put records in released files after those in the log."""
    scan.records.sort(key=lambda record: (record.is_removed, record.offset))
    return scan
