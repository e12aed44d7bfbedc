"""ListOffsets (key 2), versions 1 to 11: offsets by time.

Behaviour: timestamps below 0 have special meanings: -1 latest, -2 earliest, -3 the record with the largest
timestamp, -4 earliest local, -5 latest tiered, -6 earliest pending upload; without tiered storage, -4 is the same as
-2, and -5 and -6 find nothing. Other timestamps find exactly the first record at or after that time: its batch is decompressed.
Versions: 2 adds the isolation level, 4 leader epochs, 7 timestamp -3 (KIP-734), 8 timestamp -4 (KIP-405), 9 timestamp -5
(KIP-1005), 10 a timeout for tiered storage, 11 timestamp -6.
Deviations: if the segment that Kafka searches has no such record, other segments are searched, too (`time_search.py`).

Source: KafkaApis.handleListOffsetRequest, Partition.fetchOffsetForTimestamp, UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.network.turns import MAX_AT_ONCE, in_slices
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.broker.topics.leader_check import check_leader
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.list_offsets import (
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    encode_list_offsets_response,
)
from diamant.storage.log.log import READ_COMMITTED, Log
from diamant.storage.log.time_search import HeavySearch, Step, TimestampOffset, at_or_after, with_largest_timestamp

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsRequest

    from diamant.broker.topics.topics import Topics

KEY = 2
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def handle(topics: Topics, context: RequestContext, request: ListOffsetsRequest) -> Answer:
    """Handle each partition separately. Answer immediately unless there are many, or a large batch has to be searched."""
    listing = _Listing(topics, context, request)
    if len(listing.asked) > MAX_AT_ONCE:
        return listing.answer_in_slices()
    for part in listing.asked:
        listing.add(*part)
    return listing.answer()


class _Listing:
    """The partitions of a request, and their results."""

    def __init__(self, topics: Topics, context: RequestContext, request: ListOffsetsRequest) -> None:
        self._topics = topics
        self._context = context
        self._isolation_level = getattr(request, "isolation_level", 0)
        self._answered = [ListOffsetsTopicResult(str(topic.name), []) for topic in request.topics]
        self.asked = [
            (answered, partition)
            for answered, topic in zip(self._answered, request.topics, strict=True)
            for partition in topic.partitions
        ]
        self._times = Counter((answered.name, int(partition.partition_index)) for answered, partition in self.asked)
        self._large: list[LargeSearch] = []

    async def answer_in_slices(self) -> bytes:
        """Find all offsets, letting other tasks run in between, and return the response."""
        async for part in in_slices(self.asked):
            self.add(*part)
        answer = self.answer()
        return answer if isinstance(answer, bytes) else await answer

    def answer(self) -> bytes | Coroutine[Any, Any, bytes]:
        """Return the response; if a large batch has to be searched first, a coroutine that returns it."""
        version = self._context.api_version
        if self._large:
            return _answer_later(version, self._answered, self._large)
        return encode_list_offsets_response(version, self._answered)

    def add(self, answered: ListOffsetsTopicResult, partition: Any) -> None:
        """Find the offset of a partition and add its result."""
        index = int(partition.partition_index)
        try:
            answered.partitions.append(self._found(answered, index, partition))
        except REQUEST_ERRORS as error:
            answered.partitions.append(ListOffsetsPartitionResult(index, error_of(error)[0]))

    def _found(self, answered: ListOffsetsTopicResult, index: int, partition: Any) -> ListOffsetsPartitionResult:
        name, results = answered
        context, version = self._context, self._context.api_version
        if self._times[name, index] > 1 and context.access.allows(permissions.DESCRIBE_TOPIC, name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}-{index} is requested twice")
        check(context.access, permissions.DESCRIBE_TOPIC, name)
        log = self._topics.log(name, index)
        epoch = getattr(partition, "current_leader_epoch", -1)
        brokers = self._topics.brokers
        check_leader(brokers, log, context.connection.broker_id, epoch)
        timestamp = int(partition.timestamp)
        if timestamp < 0 and version < FIRST_VERSION.get(timestamp, 1 << 15):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}"
            )
        end = log.last_stable_offset if self._isolation_level == READ_COMMITTED else log.high_watermark
        held = None if brokers is None else brokers.end_at(context.connection.broker_id, log)
        end = end if held is None else min(end, held)
        result = _without_records(log, index, timestamp, end)
        if result is not None:
            return result
        is_largest = timestamp == MAX_TIMESTAMP
        steps = with_largest_timestamp(log) if is_largest else at_or_after(log, timestamp)
        offset = None
        for step in steps:
            try:
                if (offset := step.run(is_light=True)) is not None:
                    break
            except HeavySearch:
                rest = itertools.chain((step,), steps)
                self._large.append(LargeSearch(results, len(results), log, index, end, rest))
                break
        return _found(log, index, offset, end)


class LargeSearch(NamedTuple):
    """A search to run in a thread. Its result goes into `results[position]`."""

    results: list[ListOffsetsPartitionResult]
    position: int
    log: Log
    partition: int
    end: int
    steps: Iterator[Step]


async def _answer_later(version: int, answered: list[ListOffsetsTopicResult], large: list[LargeSearch]) -> bytes:
    loop = asyncio.get_running_loop()
    for results, position, log, index, end, steps in large:
        try:
            offset = None
            for step in steps:
                if (offset := await loop.run_in_executor(None, step.run)) is not None:
                    break
            results[position] = _found(log, index, offset, end)
        except REQUEST_ERRORS as error:
            results[position] = ListOffsetsPartitionResult(index, error_of(error)[0])
    return encode_list_offsets_response(version, answered)


def _without_records(log: Log, index: int, timestamp: int, end: int) -> ListOffsetsPartitionResult | None:
    """Return the answer to a special timestamp; None if records have to be read."""
    if timestamp == LATEST:
        return ListOffsetsPartitionResult(index, 0, -1, end, log.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return ListOffsetsPartitionResult(index, 0, -1, start, log.epoch_for_offset(start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return ListOffsetsPartitionResult(index, 0, -1, -1, -1)
    return None


def _found(log: Log, index: int, offset: TimestampOffset | None, end: int) -> ListOffsetsPartitionResult:
    if offset is None or offset.offset >= end:
        return ListOffsetsPartitionResult(index, 0, -1, -1, -1)
    return ListOffsetsPartitionResult(index, 0, offset.timestamp, offset.offset, log.epoch_for_offset(offset.offset))
