"""Topics and records by hand: `broker.create_topic` and `broker.produce`, for tests and small programs in the same process.

What clients get by CreateTopics and Produce holds here, too: the checks, and KafkaError with Kafka's code. Each record is a batch
of its own; a client sends many in one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from diamant.broker.topics.creation import create_topics, ensure_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.murmur2 import murmur2

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.broker.topics.topic import Topic

Data: TypeAlias = "bytes | str | None"
"""A key or a value. Text is encoded as UTF-8."""
Headers: TypeAlias = "Mapping[str, Data] | Iterable[tuple[str, Data]]"


class Produced(NamedTuple):
    """The place of a record that was written."""

    topic: str
    partition: int
    offset: int


class ProduceOperation:
    """The verb of one broker; made on first use, called on the loop thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turns = itertools.count()

    async def create_topic(self, name: str, partitions: int | None, configs: Mapping[str, object]) -> None:
        """Create a topic, with the broker's number of partitions if `partitions` is None. KafkaError.

        `configs` are Kafka's names with underscores, and Python values.
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
        """Append one record; returns once it is in the log. KafkaError, and nothing is stored then.

        Without `partition` the key decides as in Kafka's producer (BuiltInPartitioner); records without one take turns. A
        topic that is not there is created if the broker does that for clients.
        """
        node = self._node
        found = await self._topic(topic)
        count = len(node.topics.image.topics[topic].partitions)
        chosen = self._partition(count, _data(key)) if partition is None else partition
        log = found.logs.get(chosen)
        if log is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic} has {count} partitions from 0 on, and partition {chosen} is not one that can be used",
            )
        now_ms = node.env.clock.now_ms() if timestamp_ms is None else timestamp_ms
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        record = Record(0, now_ms, _data(key), _data(value), tuple(Header(name, _data(one)) for name, one in pairs))
        result = log.append_as_leader(memoryview(build_batch([record], base_offset=0)))
        node.log_events.changed(log)
        return Produced(topic, chosen, result.base_offset)

    async def _topic(self, name: str) -> Topic:
        topics = self._node.topics
        if name not in topics.by_name and self._node.config.auto_create_topics_enable:
            errors = await ensure_topics(topics, [name])
            if name in errors:
                raise errors[name]
        found = topics.by_name.get(name)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}: create_topic({name!r}) makes it"
            )
        return found

    def _partition(self, count: int, key: bytes | None) -> int:
        return (next(self._turns) if key is None else murmur2(key)) % count


def _data(data: Data) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
