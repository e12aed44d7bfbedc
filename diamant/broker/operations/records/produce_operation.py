"""Creates topics and writes records in the same process: `broker.create_topic`, `broker.produce`, for tests and small programs.

The checks and error codes are those of CreateTopics and Produce. `produce` writes one batch per record, while a client
sends many records in a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diamant.broker.operation_errors import BadArgument, NotPossible, no_partition, no_topic, refused_by_kafka
from diamant.broker.record_json import RecordLine, parse_key
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Header, Record
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.murmur2 import murmur2

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.operations.records.record_requests import RecordRequest
    from diamant.broker.topics.auto_creation import AutoCreation
    from diamant.broker.topics.topic import Topic
    from diamant.progress import Progress
    from diamant.storage.log.append_checks import CheckedBatch
    from diamant.storage.log.log import Log

MAX_BATCH_BYTES = 512 * 1024
_MAX_OVERHEAD = 32
"""The maximum number of bytes that a record or header adds to its data: lengths, deltas and attributes."""

Data: TypeAlias = "bytes | str | None"
"""A key or a value. Text is encoded as UTF-8."""
Headers: TypeAlias = "Mapping[str, Data] | Iterable[tuple[str, Data]]"


class Produced(NamedTuple):
    """The location of a written record."""

    topic: str
    partition: int
    offset: int


class ProduceOperation:
    """The operation `produce` of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(self, node: Node, creation: AutoCreation) -> None:
        self._node = node
        self._creation = creation
        self._turns = itertools.count()

    async def create_topic(self, name: str, partitions: int | None, configs: Mapping[str, object]) -> None:
        """Create a topic, with the broker's number of partitions if `partitions` is None. Raises KafkaError.

        `configs`: Python values by Kafka's configuration names, with underscores in place of dots.
        """
        topics = self._node.topics
        texts = {
            key.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in configs.items()
        }
        new = check_new_topic(topics, name, -1 if partitions is None else partitions, configs=texts)
        await create_topics(topics, [new])

    async def produce(
        self, topic: str, value: Data, key: Data, partition: int | None, headers: Headers, timestamp_ms: int | None
    ) -> Produced:
        """Append one record; return once it is in the log. If this raises a KafkaError, nothing was stored.

        If `partition` is None, the key determines it as in Kafka's producer (BuiltInPartitioner); records without a key are
        distributed round-robin. A missing topic is created if the broker creates topics automatically.
        """
        node = self._node
        found = await self._topic(topic)
        chosen = self._chosen(found, _data(key), partition)
        log = self._log(found, chosen)
        now_ms = node.env.clock.now_ms() if timestamp_ms is None else timestamp_ms
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        record = Record(0, now_ms, _data(key), _data(value), tuple(Header(name, _data(one)) for name, one in pairs))
        result = log.append_as_leader(memoryview(build_batch([record], base_offset=0)))
        return Produced(topic, chosen, result.base_offset)

    async def produce_all(self, records: Sequence[RecordLine]) -> int:
        """Append records, keeping their order within each partition; return their number once they are in the log.

        All records are checked before any is stored. The text of a KafkaError begins with the record's number, counted from 1.
        """
        placed: dict[Log, list[tuple[int, Record]]] = {}
        now_ms = self._node.env.clock.now_ms()
        for number, line in enumerate(records, 1):
            try:
                topic = await self._topic(line.topic)
                log = self._log(topic, self._chosen(topic, line.key, line.partition))
            except KafkaError as error:
                raise KafkaError(error.code, f"{number}: {error.detail}") from None
            headers = tuple(Header(name, value) for name, value in line.headers)
            timestamp_ms = now_ms if line.timestamp_ms is None else line.timestamp_ms
            placed.setdefault(log, []).append((number, Record(0, timestamp_ms, line.key, line.value, headers)))
        checked = [
            (log, self._check(log, batch)) for log, numbered in placed.items() for batch in _batches(log, numbered)
        ]
        for log, batch in checked:
            log.append_checked(batch)
        return len(records)

    def _check(self, log: Log, numbered: Sequence[tuple[int, Record]]) -> CheckedBatch:
        records = [record._replace(offset=offset) for offset, (_, record) in enumerate(numbered)]
        try:
            return log.check_batch(memoryview(build_batch(records, base_offset=0)))
        except KafkaError as error:
            number = numbered[error.record_errors[0][0] if error.record_errors else 0][0]
            raise KafkaError(error.code, f"{number}: {error.detail}") from None

    async def _topic(self, name: str) -> Topic:
        topics = self._node.topics
        if name not in topics.by_name and self._node.config.auto_create_topics_enable:
            errors = await self._creation.ensure([name])
            if name in errors:
                raise errors[name]
        found = topics.by_name.get(name)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_topic(name))
        return found

    def _chosen(self, topic: Topic, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            return partition
        return (next(self._turns) if key is None else murmur2(key)) % self._partition_count(topic)

    def _partition_count(self, topic: Topic) -> int:
        return len(self._node.topics.image.topics[topic.name].partitions)

    def _log(self, topic: Topic, partition: int) -> Log:
        log = topic.logs.get(partition)
        if log is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                no_partition(topic.name, partition, self._partition_count(topic)),
            )
        return log


async def produce(
    producing: ProduceOperation, explaining: ExplainOperation, request: RecordRequest, _: Progress
) -> Mapping[str, Any]:
    """Write one record to an existing topic; return its location. Raises BadArgument, NotFound, NotPossible."""
    topic, value = request.topic, request.value
    explaining.logs(topic, request.partition)
    if topic in INTERNAL_TOPICS:
        raise NotPossible(f"{topic} is written by the broker only")
    if request.tombstone and value is not None:
        raise BadArgument("expected a value or tombstone, not both")
    headers = [
        (name, None if one is None else parse_key(one, f"headers: {name[:100]}"))
        for name, one in (request.headers or {}).items()
    ]
    value = None if request.tombstone else value or b""
    try:
        found = await producing.produce(topic, value, request.key, request.partition, headers, None)
    except KafkaError as error:
        raise refused_by_kafka(error) from None
    return found._asdict()


def _batches(log: Log, numbered: Sequence[tuple[int, Record]]) -> Iterator[list[tuple[int, Record]]]:
    """Yield the records in batches, each within the log's size limit unless it holds a single record."""
    most = min(MAX_BATCH_BYTES, log.config.max_message_bytes) - HEADER_SIZE
    batch: list[tuple[int, Record]] = []
    size = 0
    for number, record in numbered:
        own = _MAX_OVERHEAD + sum(len(data or b"") for data in (record.key, record.value))
        own += sum(_MAX_OVERHEAD + len(header.key.encode()) + len(header.value or b"") for header in record.headers)
        if batch and size + own > most:
            yield batch
            batch, size = [], 0
        batch.append((number, record))
        size += own
    if batch:
        yield batch


def _data(data: object) -> bytes | None:
    """Return the bytes of a key or value (`Data`). Raises TypeError for any other type."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(
        f"a key or a value must be bytes, str or None, not {type(data).__name__}: encode it, as with json.dumps(...)"
    )
