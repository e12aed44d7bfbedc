"""Real client libraries under one contract: what tests send with any of them, and what they read back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pytest

TIMEOUT_S = 60
RETRY_MS = 20
MAX_MESSAGE_BYTES = 10_500_000
BATCH_BYTES = 200_000


class Message(NamedTuple):
    """A record to be sent."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Read(NamedTuple):
    """A record as it was read."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Client(Protocol):
    """A client library: what the tests need of it. It tries again soon, and never gives up."""

    def produce(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False,
        one_by_one: bool = False,
    ) -> list[int]:  # fmt: skip
        """Send, at will one record in a request; the offsets, when all are acknowledged."""
        ...

    def consume(
        self, servers: str, topic: str, *, group: str | None = None, count: int = 0, fetch_bytes: int = 1_000_000
    ) -> list[Read]:
        """Read partition 0 from its beginning to its end, or `count` records as the only member of a group."""
        ...


class ConfluentKafka:
    """librdkafka."""

    def produce(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False,
        one_by_one: bool = False,
    ) -> list[int]:  # fmt: skip
        """As `Client`."""
        from confluent_kafka import Producer

        own = {"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 0 if one_by_one else 5}
        limits = {"message.max.bytes": MAX_MESSAGE_BYTES, "queue.buffering.max.messages": 0}
        refresh = {"topic.metadata.refresh.interval.ms": 300, "retry.backoff.max.ms": 100}
        producer = Producer({**_of_librdkafka(servers), **own, **limits, **refresh})
        offsets: list[int] = []
        errors: set[Any] = set()

        def told(error: Any, message: Any) -> None:
            errors.add(error)
            offsets.append(message.offset())

        for key, value, headers in messages:
            producer.produce(topic, value, key, headers=list(headers), on_delivery=told)
            assert not one_by_one or producer.flush(TIMEOUT_S) == 0
        assert producer.flush(TIMEOUT_S) == 0
        assert errors <= {None}
        return offsets

    def consume(
        self, servers: str, topic: str, *, group: str | None = None, count: int = 0, fetch_bytes: int = 1_000_000,
        isolation: str = "read_committed", protocol: str = "classic",
    ) -> list[Read]:  # fmt: skip
        """As `Client`."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        own = {"group.id": group or "none", "enable.auto.commit": group is not None, "auto.offset.reset": "earliest"}
        reading = {"enable.partition.eof": group is None, "check.crcs": True, "fetch.message.max.bytes": fetch_bytes}
        quick = {"fetch.error.backoff.ms": RETRY_MS, "fetch.wait.max.ms": 100, "isolation.level": isolation}
        own["group.protocol"] = protocol
        consumer = Consumer({**_of_librdkafka(servers), **own, **reading, **quick})
        if group is None:
            consumer.assign([TopicPartition(topic, 0, 0)])
        else:
            consumer.subscribe([topic])
        found: list[Read] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while group is None or len(found) < count:
            messages = consumer.consume(10_000 if group is None else 1, 0.05)
            assert messages or time.monotonic() < deadline_s, f"{len(found)} came"
            errors = [message.error() for message in messages if message.error() is not None]
            found += [
                Read(one.offset(), one.key(), one.value(), one.headers() or [])
                for one in messages
                if one.error() is None
            ]
            assert not any(error.fatal() for error in errors), errors
            if any(error.code() == KafkaError._PARTITION_EOF for error in errors):
                break
        consumer.close()
        return found


def _of_librdkafka(servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers, "log_level": 0, "topic.metadata.refresh.fast.interval.ms": RETRY_MS,
        "retry.backoff.ms": RETRY_MS, "reconnect.backoff.ms": RETRY_MS, "reconnect.backoff.max.ms": 100,
    }  # fmt: skip


class KafkaPython:
    """kafka-python."""

    def produce(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False,
        one_by_one: bool = False,
    ) -> list[int]:  # fmt: skip
        """As `Client`."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=servers, compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
            linger_ms=0 if one_by_one else 5, batch_size=BATCH_BYTES, max_request_size=MAX_MESSAGE_BYTES, retries=100,
            retry_backoff_ms=RETRY_MS, reconnect_backoff_ms=RETRY_MS, reconnect_backoff_max_ms=100,
            max_in_flight_requests_per_connection=1,
        )  # fmt: skip
        sent = []
        for key, value, headers in messages:
            sent.append(producer.send(topic, value, key, headers=list(headers)))
            if one_by_one:
                sent[-1].get(TIMEOUT_S)
        offsets = [future.get(TIMEOUT_S).offset for future in sent]
        producer.close()
        return offsets

    def consume(
        self, servers: str, topic: str, *, group: str | None = None, count: int = 0, fetch_bytes: int = 1_000_000
    ) -> list[Read]:
        """As `Client`."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", fetch_max_wait_ms=100,
            max_partition_fetch_bytes=fetch_bytes, retry_backoff_ms=RETRY_MS, reconnect_backoff_ms=RETRY_MS,
            reconnect_backoff_max_ms=100,
            metadata_max_age_ms=1000,  # or it may miss the topic of a subscription for five minutes
        )  # fmt: skip
        partition = TopicPartition(topic, 0)
        end = 0
        if group is None:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            (end,) = consumer.end_offsets([partition]).values()
        else:
            consumer.subscribe([topic])
        found: list[Read] = []
        while len(found) < count if group else consumer.position(partition) < end:
            for messages in consumer.poll(1000).values():
                found += [Read(one.offset, one.key, one.value, list(one.headers)) for one in messages]
        consumer.close()
        return found


class AioKafka:
    """aiokafka."""

    def produce(self, servers: str, topic: str, messages: Sequence[Message], **options: Any) -> list[int]:
        """As `Client`."""
        return asyncio.run(self._produce(servers, topic, messages, **options))

    def consume(self, servers: str, topic: str, **options: Any) -> list[Read]:
        """As `Client`."""
        return asyncio.run(self._consume(servers, topic, **options))

    async def _produce(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False,
        one_by_one: bool = False,
    ) -> list[int]:  # fmt: skip
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=servers, compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
            acks="all" if idempotent else 1, linger_ms=0 if one_by_one else 5, max_batch_size=BATCH_BYTES,
            max_request_size=MAX_MESSAGE_BYTES, retry_backoff_ms=RETRY_MS,
        )  # fmt: skip
        async with asyncio.timeout(TIMEOUT_S), producer:
            sent = []
            for key, value, headers in messages:
                sent.append(await producer.send(topic, value, key, headers=list(headers)))
                if one_by_one:
                    await sent[-1]
            return [(await future).offset for future in sent]

    async def _consume(
        self, servers: str, topic: str, *, group: str | None = None, count: int = 0, fetch_bytes: int = 1_000_000
    ) -> list[Read]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", retry_backoff_ms=RETRY_MS,
            fetch_max_wait_ms=100, max_partition_fetch_bytes=fetch_bytes,
        )  # fmt: skip
        partition = TopicPartition(topic, 0)
        async with asyncio.timeout(TIMEOUT_S), consumer:
            end = 0
            if group is None:
                consumer.assign([partition])
                consumer.seek(partition, 0)
                (end,) = (await consumer.end_offsets([partition])).values()
            else:
                consumer.subscribe([topic])
            found: list[Read] = []
            while len(found) < count if group else await consumer.position(partition) < end:
                for messages in (await consumer.getmany(timeout_ms=100, max_records=1 if group else None)).values():
                    found += [Read(one.offset, one.key, one.value, list(one.headers)) for one in messages]
            return found


OWN_WARNINGS = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""Of kafka-python's and aiokafka's own making."""
CLIENTS = [
    pytest.param(ConfluentKafka(), id="confluent-kafka"),
    pytest.param(AioKafka(), id="aiokafka", marks=OWN_WARNINGS),
    pytest.param(KafkaPython(), id="kafka-python", marks=[OWN_WARNINGS, pytest.mark.slow]),
]
