"""Reads a topic of any Kafka cluster from given offsets, batch by batch. It can skip uncommitted transactions.

Memory holds a single fetch response: at most `MAX_FETCH_BYTES`, or one batch if that is larger, since brokers send batches whole.
Batches are decompressed one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop
from typing import NamedTuple

from diamant.broker.client.kafka_client import EARLIEST, RETRIED, KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed, Fields
from diamant.protocol.batches.batch import crc_is_valid, iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import ABORT, parse_control_type
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.protocol.errors import CorruptBatch, ErrorCode
from diamant.protocol.wire.apis import FETCH

MAX_FETCH_BYTES = 4 * 1024 * 1024
MAX_PARTITION_BYTES = 1024 * 1024
WAIT_MS = 500
LAST_VERSION_WITH_NAMES = 12
"""Later versions of Fetch name topics by id."""


class ReadRecord(NamedTuple):
    """A record and its position."""

    partition: int
    record: Record
    is_log_append_time: bool


class TopicReader:
    """A reader of partitions of a topic. `offsets`: each partition's next offset. `committed`: skip uncommitted transactions."""

    def __init__(self, client: KafkaClient, topic: str, offsets: Mapping[int, int], *, committed: bool) -> None:
        self._client = client
        self._topic = topic
        self.offsets = dict(offsets)
        self._committed = committed
        self._leaders: dict[int, list[int]] = {}
        self._deadline = 0.0

    def records(
        self, ends: Mapping[int, int] | None = None, *, idle: Callable[[], object] = lambda: None
    ) -> Iterator[ReadRecord]:
        """Yield records as they arrive, forever or up to `ends` (for each partition, the offset after the last record to read).

        `idle` is called before each request, so that the caller can flush its output before the wait for the broker.
        """
        while left := self._left(ends):
            idle()
            if not self._leaders:
                self._leaders = self._client.led(self._topic, left)
            for leader, led in list(self._leaders.items()):
                wanted = [one for one in led if one in left]
                if not wanted:
                    continue
                # The leaders are asked one after the other, so each may delay its answer only briefly.
                wait_ms = WAIT_MS // len(self._leaders)
                try:
                    answer = self._fetch(leader, wanted, wait_ms)
                except ConnectionFailed:
                    self._client.forget(leader)
                    self._failed(f"{self._topic}-{wanted[0]}", ErrorCode.LEADER_NOT_AVAILABLE)
                    break
                for one in answer["responses"][0]["partitions"] if answer["responses"] else ():
                    yield from self._partition_records(one, ends)

    def _left(self, ends: Mapping[int, int] | None) -> set[int]:
        if ends is None:
            return set(self.offsets)
        return {number for number, offset in self.offsets.items() if offset < ends[number]}

    def _fetch(self, leader: int, numbers: list[int], wait_ms: int) -> Fields:
        partitions = [
            {
                "partition": number,
                "current_leader_epoch": -1,
                "fetch_offset": self.offsets[number],
                "log_start_offset": -1,
                "partition_max_bytes": MAX_PARTITION_BYTES,
            }
            for number in numbers
        ]
        fields = {
            "replica_id": -1,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": MAX_FETCH_BYTES,
            "isolation_level": int(self._committed),
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self._topic, "partitions": partitions}],
            "forgotten_topics_data": [],
        }
        connection = self._client.broker(leader)
        return connection.ask(FETCH, fields, most=LAST_VERSION_WITH_NAMES, timeout_s=self._client.timeout_s)

    def _failed(self, what: str, code: int) -> None:
        """Wait before looking up the leaders again. Raises KafkaRefusal for a permanent error."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self._client.timeout_s
        self._client.pause(self._deadline, what, code)
        self._leaders = {}

    def _partition_records(self, found: Fields, ends: Mapping[int, int] | None) -> Iterator[ReadRecord]:
        number, code = found["partition_index"], found["error_code"]
        what = f"{self._topic}-{number}"
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = self._client.offsets(self._topic, [number], EARLIEST)[number]
            if self.offsets[number] >= start:
                raise KafkaRefusal(f"{what} at offset {self.offsets[number]}", code)
            self.offsets[number] = start  # Retention or DeleteRecords removed the offset.
            return
        if code in RETRIED:
            return self._failed(what, code)
        if code:
            raise KafkaRefusal(what, code)
        self._deadline = 0.0
        data = found["records"] or b""
        aborted = [
            (transaction["first_offset"], transaction["producer_id"])
            for transaction in found["aborted_transactions"] or ()
        ]
        heapify(aborted)
        aborting: set[int] = set()
        end = None if ends is None else ends[number]
        for position, header in iter_headers(data):
            if end is not None and header.base_offset >= end:
                self.offsets[number] = end
                return
            if not crc_is_valid(data, position, header.size):
                raise CorruptBatch(position, f"{what}, offset {header.base_offset}: the checksum of the batch is wrong")
            while aborted and aborted[0][0] <= header.last_offset:
                aborting.add(heappop(aborted)[1])
            if self._is_shown(data, position, header, aborting):
                for record in iter_records(data, position):
                    if record.offset >= self.offsets[number] and (end is None or record.offset < end):
                        self.offsets[number] = record.offset + 1
                        yield ReadRecord(number, record, header.is_log_append_time)
            self.offsets[number] = max(self.offsets[number], header.next_offset)

    def _is_shown(self, data: bytes, position: int, header: BatchHeader, aborting: set[int]) -> bool:
        """Return whether a batch has records for the caller. At an abort marker, remove its producer from `aborting`."""
        if header.is_control:
            if any(parse_control_type(record.key) == ABORT for record in iter_records(data, position)):
                aborting.discard(header.producer_id)
            return False
        return not (self._committed and header.is_transactional and header.producer_id in aborting)
