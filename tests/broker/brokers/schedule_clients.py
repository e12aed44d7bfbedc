"""The clients of a random schedule of brokers: what they wrote, what they were told of it, and what they read.

They live with three faults of librdkafka; the answers that it gets are Kafka's:

- A group member that asks a former coordinator for its offsets never asks again (librdkafka #5586). So members start over in
  the end.
- An abort whose partitions were refused by a former coordinator is sent to the present one, for which nothing is open:
  INVALID_TXN_STATE, fatal to the producer. So there is another producer, which fences it.
- A member that is assigned partitions while it closes never ends, and holds Python's lock (librdkafka #4884). So members only
  unsubscribe, and stay until the process ends.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

PARTITIONS = 3
PATIENCE_S = 180.0
"""A busy machine needs most of it: requests then take seconds."""
_LEFT: list[object] = []
"""Members that have left: they must not end."""
GROUPS = (("classic", 2), ("consumer", 1))
"""The protocol and the members of each group."""


class Clients:
    """An idempotent producer, two transactional ones, and two groups that read what is committed."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "socket.timeout.ms": 3000,  # that long a client waits for a broker that is silent
        }
        self.stored: set[str] = set()
        """Acknowledged or committed."""
        self.aborted: set[str] = set()
        self.read: list[Counter[str]] = [Counter() for _ in GROUPS]
        self.errors: list[KafkaError] = []
        self._numbers = itertools.count()
        self._idempotent = Producer({**self._settings, "enable.idempotence": True})
        self._transactional = [self._transactional_producer(number) for number in range(2)]
        self._members = self._start_members()
        self._left: list[tuple[int, Consumer]] = []

    def _transactional_producer(self, number: int) -> Producer:
        producer = Producer({**self._settings, "transactional.id": f"{self._topic}-{number}"})
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                producer.init_transactions(PATIENCE_S)
                return producer
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise

    def _start_members(self) -> list[tuple[int, Consumer]]:
        common = {**self._settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        common["enable.auto.offset.store"] = False
        members = []
        for number, (protocol, count) in enumerate(GROUPS):
            classic = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000} if protocol == "classic" else {}
            for _ in range(count):
                consumer = Consumer(
                    {**common, **classic, "group.id": f"{self._topic}-{number}", "group.protocol": protocol}
                )
                consumer.subscribe([self._topic])
                members.append((number, consumer))
        return members

    def _values(self, count: int) -> list[str]:
        return [f"v{number}" for number in itertools.islice(self._numbers, count)]

    def produce(self, count: int) -> None:
        """Write with the idempotent producer, without waiting."""

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.errors.append(error)
            else:
                self.stored.add(message.value().decode())

        for value in self._values(count):
            self._idempotent.produce(self._topic, value, on_delivery=delivered)
        self._idempotent.poll(0)

    def transact(self, number: int, count: int, *, is_commit: bool) -> None:
        """Run one transaction to its end."""
        producer, values = self._transactional[number], self._values(count)
        producer.begin_transaction()
        for value in values:
            producer.produce(self._topic, value)
        while True:
            try:
                if is_commit:
                    producer.commit_transaction(PATIENCE_S)
                else:
                    producer.abort_transaction(PATIENCE_S)
                break
            except KafkaException as raised:
                error = raised.args[0]
                if error.txn_requires_abort():
                    is_commit = False
                elif error.fatal() and error.code() == KafkaError.INVALID_TXN_STATE and not is_commit:
                    self._transactional[number] = self._transactional_producer(number)
                    break
                elif not error.retriable():
                    raise
        (self.stored if is_commit else self.aborted).update(values)

    def poll(self, timeout_s: float = 0) -> None:
        """Let the groups read what is there."""
        for group, consumer in (*self._left, *self._members):
            for message in consumer.consume(500, timeout_s):
                if message.error() is None:
                    self.read[group][message.value().decode()] += 1
                    with suppress(KafkaException):  # another member has the partition now
                        consumer.store_offsets(message)

    def finish(self) -> None:
        """Flush, and let the groups, whose members start over, read all that is stored. AssertionError: they do not."""
        assert self._idempotent.flush(PATIENCE_S) == 0
        assert not self.errors
        self.leave()
        self._members = self._start_members()
        until = time.monotonic() + PATIENCE_S
        while not (all(read.keys() >= self.stored for read in self.read) and self._is_balanced()):
            assert time.monotonic() < until, [len(self.stored - read.keys()) for read in self.read]
            self.poll(0.01)
        self.leave()

    def _is_balanced(self) -> bool:
        assigned = [(group, [one.partition for one in member.assignment()]) for group, member in self._members]
        return all(partitions for _, partitions in assigned) and all(
            sorted(itertools.chain(*_of_group(assigned, group))) == [0, 1, 2] for group in range(len(GROUPS))
        )

    def leave(self) -> None:
        """Let the members leave their groups: they do as they are polled."""
        for _, consumer in self._members:
            consumer.unsubscribe()
        self._left += self._members
        _LEFT.append(self._left)
        self._members = []

    def in_log(self) -> Counter[str]:
        """What is committed in the topic, read without a group."""
        consumer = Consumer(
            {**self._settings, "group.id": "none", "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(PARTITIONS)])
        found, at_end = Counter[str](), set[int]()
        while len(at_end) < PARTITIONS:
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    found[message.value().decode()] += 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
        consumer.close()
        return found


def _of_group(assigned: Iterable[tuple[int, list[int]]], group: int) -> Iterable[list[int]]:
    return (partitions for owner, partitions in assigned if owner == group)
