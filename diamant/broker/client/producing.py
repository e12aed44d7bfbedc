"""Writes records to a topic of any Kafka cluster, in batches, with acks=all.

The buffer holds at most `MAX_PENDING_BYTES` of records, plus one record. A batch is retried only if an error shows that it was
not written. So no record is written twice, although the producer is not idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.protocol.murmur2 import murmur2
from diamant.protocol.wire.apis import PRODUCE

MAX_PENDING_BYTES = 512 * 1024
ALL_REPLICAS = -1
LAST_VERSION_WITH_NAMES = 12
"""Later versions of Produce name topics by id."""
_MAYBE_WRITTEN = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}


class PendingRecord(NamedTuple):
    """A record to write. `line` is its line number in the input, for error messages."""

    line: int
    record: Record


class Written(NamedTuple):
    """A summary of the records written to a partition. Records of other producers may lie between them."""

    records: int
    first_offset: int
    last_offset: int


class TopicWriter:
    """A writer that buffers records for a topic. The key determines the partition, as in Kafka's producer. All records without a
    key go to the same partition until the next flush, and to the next partition after it.
    """

    def __init__(self, client: KafkaClient, topic: str, *, codec: int) -> None:
        self._client = client
        self._topic = topic
        self._codec = codec
        self.partition_count = len(client.topic(topic).partitions)
        self._leaders: dict[int, int] = {}
        self._next = time.time_ns() % self.partition_count
        self._pending: dict[int, list[PendingRecord]] = {}
        self._pending_bytes = 0
        self.written: dict[int, Written] = {}
        """A summary of the written records, by partition."""

    def add(self, line: int, record: Record, partition: int | None) -> None:
        """Add a record. Once enough bytes are pending, write all pending records."""
        if partition is None:
            partition = self._next if record.key is None else murmur2(record.key) % self.partition_count
        self._pending.setdefault(partition, []).append(PendingRecord(line, record))
        self._pending_bytes += len(record.key or b"") + len(record.value or b"") + 70
        if self._pending_bytes >= MAX_PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all pending records. Raises KafkaRefusal or ConnectionFailed; the message names the lines of the input."""
        for partition, pending in self._pending.items():
            self._write(partition, pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._next = (self._next + 1) % self.partition_count

    def _write(self, partition: int, pending: Sequence[PendingRecord]) -> None:
        records = [record.record._replace(offset=offset) for offset, record in enumerate(pending)]
        batch = bytes(build_batch(records, base_offset=0, codec=self._codec))
        fields = {
            "transactional_id": None,
            "acks": ALL_REPLICAS,
            "timeout_ms": min(round(self._client.timeout_s * 1000), 2**31 - 1),
            "topic_data": [{"name": self._topic, "partition_data": [{"index": partition, "records": batch}]}],
        }
        first, last = pending[0].line, pending[-1].line
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        what = f"{lines}, for {self._topic}-{partition}"
        deadline = time.monotonic() + self._client.timeout_s
        while True:
            leader = self._leaders.get(partition)
            if leader is None:
                (leader,) = self._client.led(self._topic, [partition])
                self._leaders[partition] = leader
            connection = self._client.broker(leader)
            try:
                answer = connection.ask(PRODUCE, fields, most=LAST_VERSION_WITH_NAMES)
            except ConnectionFailed as error:
                raise ConnectionFailed(f"{what}: may or may not have been written: {error}", error.code) from None
            found = answer["responses"][0]["partition_responses"][0]
            code = found["error_code"]
            if not code:
                before = self.written.get(partition, Written(0, found["base_offset"], -1))
                end = found["base_offset"] + len(pending)
                self.written[partition] = Written(before.records + len(pending), before.first_offset, end - 1)
                return
            if code in _MAYBE_WRITTEN:
                raise KafkaRefusal(what, code, "may or may not have been written")
            self._leaders.pop(partition)
            self._client.pause(deadline, what, code)
