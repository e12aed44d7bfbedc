"""Executes a schedule of compactions in a broker, by intercepting the appends and fetches of compacted topics.

A compaction runs in the same step of the event loop that answers a fetch, so equal sequences of requests see equal logs. The
cleaner is the plain engine in mode kafka. Its clock runs ahead of the broker's clock by the delays in the schedule.

Kafka cleans a log only up to its active segment, so at best it cleans all records except those of the last batch. To allow this,
each batch gets a segment of its own while compactions of all records are still scheduled. In a topic with transactional writers,
such a compaction instead appends the marker of an empty, aborted transaction, so that all records before the marker can be
cleaned. Other topics get no marker, because consumers never receive it: a consumer that waits for a record at the last offset
would wait forever.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from diamant.broker.node.node import Node
from diamant.broker.schedules.schedule import ALL, Compaction, Schedule
from diamant.broker.schedules.schedule_history import (
    MARKER,
    TOMBSTONE,
    VALUE,
    Compacted,
    Fetched,
    History,
    Marked,
    StoredRecord,
)
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.cleaner.engines import plain_round
from diamant.cleaner.rules.eligibility import limits, round_down
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.plan_of_log import CleanerSettings, make_plan
from diamant.cleaner.rules.result import OutputSegment
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.control import build_marker
from diamant.protocol.batches.header import CURRENT_MAGIC, parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import StorageError
from diamant.storage.log.append_checks import CheckedBatch
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement
from diamant.storage.segments.segment import scan_headers

MAX_PRODUCER_PARTS = 5
"""The maximum number of parts of an idempotent producer's batch: the broker recognizes retries by this many last batches."""
MAX_TOLD_BYTES = 16 * 1024 * 1024
"""The maximum size of the compacted segments. If they are larger, the history does not list the removed records."""
FIRST_PRODUCER_ID = 1 << 62
"""The first producer id of the markers. The ids of real producers start at 0."""


@dataclass(slots=True)
class PartitionPlay:
    """The state of a schedule in one partition."""

    left: deque[Compaction]
    fetches: int = 0
    """The number of fetches since the last compaction."""
    marked_offset: int = -1
    """The log end offset after the last marker."""


class SchedulePlay:
    """The `Interposer` of all logs of a broker. Belongs to the loop thread; `history` remains valid after the broker's stop."""

    def __init__(self, node: Node, schedule: Schedule) -> None:
        self.history = History()
        self._schedule = schedule
        self._clock = node.env.clock
        self._partitions: dict[Log, PartitionPlay] = {}
        self._settings = CleanerSettings(mode=KAFKA, kafka_version=node.config.diamant_cleaner_kafka_version)
        self._passed_ms = 0
        self._transactional: set[str] = set()
        """The topics to which transactional producers write."""
        self._producer_ids = itertools.count(FIRST_PRODUCER_ID)
        for log in node.directory.logs.values():
            log.interposer = self
        created = node.topics.on_created

        def on_created(log: Log) -> None:
            log.interposer = self
            if created is not None:
                created(log)

        node.topics.on_created = on_created

    def divided(self, log: Log, checked: CheckedBatch) -> Iterator[CheckedBatch]:
        """Yield a batch in parts of at most as many records as the schedule allows. Rolls the segment before a part if needed."""
        is_concerned = self._is_concerned(log)
        if is_concerned and checked.header.is_transactional:
            self._transactional.add(log.topic)
        for part in _parts(checked, self._schedule.batch_records) if is_concerned else (checked,):
            if is_concerned and self._is_roll_due(log):
                log.roll()
            yield part

    def _is_roll_due(self, log: Log) -> bool:
        most = self._schedule.segment_records
        if most and log.log_end_offset - log.active.base_offset >= most:
            return True
        play = self._partitions.get(log)
        left = self._schedule.compactions if play is None else play.left
        return log.topic not in self._transactional and any(compaction.share == ALL for compaction in left)

    def before_read(self, log: Log, offset: int, max_bytes: int) -> int:
        """Run the compactions that are scheduled before this fetch; return how many bytes the fetch may read."""
        if not self._is_concerned(log) or not max_bytes:
            return max_bytes
        play = self._partitions.get(log)
        if play is None:
            play = self._partitions[log] = PartitionPlay(deque(self._schedule.compactions))
        while play.left and play.fetches >= play.left[0].fetches and not log.is_exchanging:
            self._compact(log, play, play.left.popleft())
            play.fetches = 0
        play.fetches += 1
        self.history.add(Fetched(_name(log), offset))
        return 1 if self._schedule.is_one_batch_per_fetch else max_bytes

    def _is_concerned(self, log: Log) -> bool:
        if log.topic in INTERNAL_TOPICS:
            return False
        self.history.topics[log.topic] = log.config.is_compacted
        return log.config.is_compacted

    def _compact(self, log: Log, play: PartitionPlay, compaction: Compaction) -> None:
        passed_ms = log.config.min_compaction_lag_ms
        if compaction.is_late:
            passed_ms += log.config.delete_retention_ms
        end, removed, error = log.log_start_offset, [], None
        try:
            end = self._end_offset(log, play, compaction.share)
            before = _records(log, end)
            self._passed_ms += log.config.min_compaction_lag_ms
            self._clean(log, end)
            if compaction.is_late:
                # The first run has set the delete horizons. Let them pass, and run again.
                self._passed_ms += log.config.delete_retention_ms
                self._clean(log, end)
            after = {record.offset for record in _records(log, end)}
            removed = [record for record in before if record.offset not in after]
        except (StorageError, CorruptBatch, OSError) as failure:
            error = str(failure)
        self.history.add(Compacted(_name(log), end, passed_ms, removed, error))

    def _end_offset(self, log: Log, play: PartitionPlay, share: int) -> int:
        """Return the offset below which to clean, which is the base offset of a segment. May append a marker for `ALL`."""
        if share == ALL:
            if play.marked_offset != log.log_end_offset and self._is_transactional(log):
                self._mark_end(log)
                play.marked_offset = log.log_end_offset
            end = log.active.base_offset
        else:
            closed = len(log.segments) - 1
            end = log.segments[-(-closed * share // 100)].base_offset
        allowed = limits(log, log.log_start_offset, 0, force=True).offset
        return min(end, round_down(log, allowed))

    def _is_transactional(self, log: Log) -> bool:
        if log.topic not in self._transactional and any(
            header.is_transactional
            for segment in log.segments
            for _, header in scan_headers(segment.file, 0, segment.size)
        ):
            self._transactional.add(log.topic)
        return log.topic in self._transactional

    def _mark_end(self, log: Log) -> None:
        log.roll()
        self.history.add(Marked(_name(log), log.log_end_offset))
        log.append_internal(
            build_marker(
                is_commit=False,
                producer_id=next(self._producer_ids),
                producer_epoch=0,
                coordinator_epoch=0,
                base_offset=log.log_end_offset,
                leader_epoch=log.leader_epoch,
                timestamp=self._clock.now_ms(),
            )
        )

    def _clean(self, log: Log, end: int) -> None:
        """Run the cleaner over all records below `end`, as if none had been cleaned before. Blocking."""
        start = log.log_start_offset
        if end <= start:
            return
        plan = make_plan(log, start, end, self._clock.now_ms() + self._passed_ms, self._settings)
        sizes = {segment.base_offset: segment.size for segment in plan.segments}

        def swap(output: OutputSegment) -> None:
            sources = output.source_base_offsets
            replacement = Replacement(
                log, output.base_offset, sources, source_sizes=[sizes[base] for base in sources], size=output.size
            )
            replacement.prepare()
            replacement.swap()
            replacement.finish()

        plain_round.clean(log.env, plan, on_output=swap)


async def play(node: Node, schedule: Schedule) -> History:
    """Start executing a schedule on a broker's logs, and return the history, to which events are added from then on.

    Call this on the loop thread.
    """
    return SchedulePlay(node, schedule).history


def _name(log: Log) -> str:
    return f"{log.topic}-{log.partition}"


def _parts(checked: CheckedBatch, most: int) -> Iterator[CheckedBatch]:
    """Split a batch into batches of at most `most` records (0: any number) that keep its other fields.

    Splits a batch of an idempotent producer into at most `MAX_PRODUCER_PARTS` parts.
    """
    batch, header = checked
    if header.has_producer_id:
        most = most and max(most, -(-header.record_count // MAX_PRODUCER_PARTS))
    if not most or header.record_count <= most:
        yield checked
        return
    records = list(iter_records(batch))
    for first in range(0, len(records), most):
        some = records[first : first + most]
        part = build_batch(
            some,
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=some[0].sequence,
            is_transactional=header.is_transactional,
        )
        yield CheckedBatch(part, parse_header(part))


def _records(log: Log, end: int) -> list[StoredRecord]:
    """Return the records in the segments below `end`, except those in an old format; none if the segments are too large."""
    segments = [segment for segment in log.segments if segment.base_offset < end]
    records: list[StoredRecord] = []
    if sum(segment.size for segment in segments) > MAX_TOLD_BYTES:
        return records
    for segment in segments:
        data = segment.file.pread(segment.size, 0)
        for position, header in iter_headers(data):
            if header.magic == CURRENT_MAGIC:
                for record in iter_records(data, position):
                    kind = MARKER if header.is_control else TOMBSTONE if record.value is None else VALUE
                    records.append(StoredRecord(record.offset, record.key, kind))
    return records
