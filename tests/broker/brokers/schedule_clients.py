"""The clients of random schedules of brokers: what they wrote, what they were told of it, and what they read.

All are librdkafka's. They serve one schedule after the other, each with a topic of its own, and live with seven of its faults;
the answers that it gets are Kafka's:

- A group member that asks a former coordinator for its offsets never asks again (librdkafka #5586). So members that do not
  read all within `PATIENCES_S` start over.
- An abort whose partitions were refused by a former coordinator is sent to the present one, for which nothing is open:
  INVALID_TXN_STATE, fatal to the producer. So there is another producer, which fences it.
- Records of requests that timed out are sent again in other batches: OUT_OF_ORDER_SEQUENCE_NUMBER, fatal too. So again.
- A member that was fenced while it waits joins again with partitions: INVALID_REQUEST, fatal. So members start over.
- An abort does not end if the connection of a record in flight is cut. So it is called again after `CALL_S`.
- A join waits for a request for metadata that was lost with its broker. So metadata is asked for several times a second.
- A member that is assigned partitions while it closes never ends, and holds Python's lock (librdkafka #4884). So members only
  unsubscribe, and stay until the process ends.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

T = TypeVar("T")
Settings = Mapping[str, str | int | bool]
PARTITIONS = 3
PATIENCE_S = 120.0
"""A busy machine needs most of it: requests then take seconds."""
CALL_S = 1.0
"""Calls are repeated after it."""
PATIENCES_S = (2.0, 15.0, 30.0, 60.0)
"""Members start over after each of them but the last."""
COMMON: Settings = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "socket.timeout.ms": 2500,  # that long a client waits for a broker that is silent
}
GROUPS = ("classic", "consumer")
"""The protocol of each group."""
MEMBERS = 2
"""The members of each group."""


class Written(NamedTuple):
    """The values that a producer wrote."""

    stored: set[str]
    """Acknowledged or committed."""
    aborted: set[str]
    unknown: list[set[str]]
    """Transactions whose commit was not answered: each is there as a whole, or not at all."""


class Writer(Protocol):
    """A producer and what it does in a schedule."""

    def write(self, topic: str, choice: random.Random, is_over: threading.Event) -> Written:
        """Write until it is over, and wait for all answers."""


class IdempotentWriter:
    """Writes records without waiting for the answers to those before."""

    def __init__(self, settings: Settings) -> None:
        self._producer = Producer({**settings, "enable.idempotence": True})

    def write(self, topic: str, choice: random.Random, is_over: threading.Event) -> Written:
        """As `Writer`. AssertionError: a record was refused."""
        written, errors, numbers = Written(set(), set(), []), list[KafkaError](), itertools.count()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                written.stored.add(_text(message))

        while not is_over.is_set():
            for number in itertools.islice(numbers, choice.randrange(1, 10)):
                self._producer.produce(topic, f"i-{number}", on_delivery=delivered)
            self._producer.poll(choice.random() * 0.02)
        assert self._producer.flush(PATIENCE_S) == 0, (topic, "no answer")
        assert not errors, (topic, errors)
        return written


class TransactionalWriter:
    """Writes transactions, seven of ten of which it commits."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings, self._name = settings, name
        self._producer = self._start()

    def _start(self) -> Producer:
        producer = Producer({**self._settings, "transactional.id": self._name})
        _retried(lambda: producer.init_transactions(CALL_S))
        return producer

    def write(self, topic: str, choice: random.Random, is_over: threading.Event) -> Written:
        """As `Writer`."""
        written, numbers = Written(set(), set(), []), itertools.count()
        while not is_over.is_set():
            self._producer.begin_transaction()
            values = [f"{self._name}-{number}" for number in itertools.islice(numbers, choice.randrange(1, 10))]
            with suppress(KafkaException):  # fatal: the end of the transaction raises it, too
                for value in values:
                    self._producer.produce(topic, value)
                    self._producer.poll(choice.random() * 0.005)
            is_committed = self._end(choice.random() < 0.7)
            if is_committed is None:
                written.unknown.append(set(values))
            else:
                (written.stored if is_committed else written.aborted).update(values)
        return written

    def _end(self, is_commit: bool) -> bool | None:
        """End the transaction, and return whether it was committed; None if a fatal error leaves that open."""
        try:
            if is_commit:
                _retried(lambda: self._producer.commit_transaction(CALL_S))
            else:
                _retried(lambda: self._producer.abort_transaction(CALL_S))
        except KafkaException as raised:
            error = raised.args[0]
            if is_commit and error.txn_requires_abort():
                return self._end(False)
            if not error.fatal():
                raise
            self._producer = self._start()
            return None if is_commit else False
        return is_commit


class Member:
    """A member of a group, and the values that it has read of the topic that it is subscribed to."""

    def __init__(self, settings: Settings, group: str, protocol: str, rack: str) -> None:
        classic = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000} if protocol == "classic" else {}
        names = {"group.id": group, "group.protocol": protocol, "client.rack": rack}
        self._consumer = Consumer(
            {**settings, **classic, **names, "auto.commit.interval.ms": 50, "max.poll.interval.ms": 6000}
        )
        self.read = set[str]()
        self._topic = ""

    def subscribe(self, topic: str) -> None:
        """Read another topic."""
        self.read.clear()
        self._topic = topic
        self._consumer.subscribe([topic])

    def poll(self) -> None:
        """Read what is there."""
        for message in self._consumer.consume(500, 0.001):
            if message.error() is None and message.topic() == self._topic:
                self.read.add(_text(message))
                with suppress(KafkaException):  # another member has the partition now
                    self._consumer.store_offsets(message)

    def partitions(self) -> list[int]:
        """Return the partitions that it has."""
        return [one.partition for one in self._consumer.assignment()]

    def committed(self, topic: str) -> dict[int, int]:
        """Commit what it has read, and return what its group has committed."""
        with suppress(KafkaException):  # nothing to commit, or the group changes: what is committed is returned anyway
            self._consumer.commit(asynchronous=False)
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found = _retried(lambda: self._consumer.committed(places, CALL_S))
        return {one.partition: one.offset for one in found}

    def leave(self) -> None:
        """Leave the group, which takes effect as the member is polled."""
        with suppress(KafkaException):  # fatal: it has left
            self._consumer.unsubscribe()


class Group:
    """The members of one group."""

    def __init__(self, settings: Settings, name: str, protocol: str) -> None:
        self._settings, self._name, self._protocol = settings, name, protocol
        self._topic = ""
        self._members = self._start()
        self._left: list[Member] = []

    def _start(self) -> list[Member]:
        return [Member(self._settings, self._name, self._protocol, f"r{number + 1}") for number in range(MEMBERS)]

    def subscribe(self, topic: str) -> None:
        """Read another topic."""
        self._topic = topic
        for member in self._left:
            member.read.clear()
        for member in self._members:
            member.subscribe(topic)

    def poll(self) -> None:
        """Let the members read what is there."""
        for member in (*self._left, *self._members):
            member.poll()

    def finish(self, stored: set[str], ends: dict[int, int]) -> int:
        """Let the group become balanced, read all that is stored, and commit the end of each partition.

        Returns how often its members had to start over. AssertionError: it does not, or it has read more.
        """
        count = 0
        while not self._within(PATIENCES_S[count], lambda: self._has_finished(stored, ends)):
            count += 1
            if count == len(PATIENCES_S):
                break
            self._start_over()
        found = self._read()
        assert self._is_balanced(), (self._topic, self._name, [member.partitions() for member in self._members])
        assert found == stored, (self._topic, self._name, "not read", stored - found, "not stored", found - stored)
        committed = self._members[0].committed(self._topic)
        assert all(committed[partition] >= end for partition, end in ends.items()), (self._topic, committed, ends)
        return count

    def _read(self) -> set[str]:
        return set[str]().union(*(member.read for member in (*self._left, *self._members)))

    def _is_balanced(self) -> bool:
        partitions = [member.partitions() for member in self._members]
        return all(partitions) and sorted(itertools.chain(*partitions)) == [*range(PARTITIONS)]

    def _has_finished(self, stored: set[str], ends: dict[int, int]) -> bool:
        if not self._is_balanced() or not self._read() >= stored:
            return False
        found: dict[int, int] = {}
        for member in self._members:
            found = member.committed(self._topic)
        return all(found[partition] >= end for partition, end in ends.items())

    def _start_over(self) -> None:
        for member in self._members:
            member.leave()
        self._left += self._members
        self._members = self._start()
        for member in self._members:
            member.subscribe(self._topic)

    def _within(self, timeout_s: float, condition: Callable[[], bool]) -> bool:
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                return False
            self.poll()
        return True


class Clients:
    """An idempotent producer, two transactional ones, and two groups that read what is committed."""

    def __init__(self, bootstrap_servers: str, name: str) -> None:
        common = {**COMMON, "bootstrap.servers": bootstrap_servers}
        reading: Settings = {
            **common,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.offset.store": False,
            "topic.metadata.refresh.interval.ms": 200,  # a join whose request for metadata was lost waits for it
        }
        self._writers: list[Writer] = [IdempotentWriter(common)]
        self._writers += [TransactionalWriter(common, f"{name}-{number}") for number in range(2)]
        self._pool = ThreadPoolExecutor(len(self._writers))
        self._writing: list[Future[Written]] = []
        self._is_over = threading.Event()
        self._groups = [Group(reading, f"{name}-{protocol}", protocol) for protocol in GROUPS]
        self._reader = Consumer({**reading, "group.id": "none", "enable.partition.eof": True})
        self._topic = ""

    def begin(self, topic: str, seed: int) -> None:
        """Read and write another topic from now on."""
        self._topic = topic
        for group in self._groups:
            group.subscribe(topic)
        self._is_over.clear()
        self._writing = [
            self._pool.submit(writer.write, topic, random.Random(f"{seed}-{number}"), self._is_over)
            for number, writer in enumerate(self._writers)
        ]

    def poll(self) -> None:
        """Let the groups read what is there."""
        for group in self._groups:
            group.poll()

    def finish(self) -> Mapping[str, int]:
        """Wait for all answers, and compare what is stored and read with them; return counts. AssertionError: it differs."""
        self._is_over.set()
        written = [one.result(2 * PATIENCE_S) for one in self._writing]
        stored = set[str]().union(*(one.stored for one in written))
        aborted = set[str]().union(*(one.aborted for one in written))
        in_log = self._in_log()
        values = Counter(_text(message) for message in in_log)
        for transaction in itertools.chain(*(one.unknown for one in written)):
            found = transaction & values.keys()
            assert found in (set(), transaction), (self._topic, "in part", found, transaction)
            stored |= found
        assert values.keys() == stored, (self._topic, "lost or not committed", values.keys() ^ stored)
        assert values.total() == len(values), (self._topic, "twice", values.most_common(10))
        last, ends = dict[tuple[str, int], int](), dict[int, int]()
        for message in in_log:
            writer, number = _text(message).rsplit("-", 1)
            place = writer, message.partition()
            assert last.get(place, -1) < int(number), (self._topic, "out of order", place, number, last)
            last[place] = int(number)
            ends[message.partition()] = message.offset() + 1
        starts = sum(group.finish(stored, ends) for group in self._groups)
        return {"stored": len(stored), "aborted": len(aborted), "members that started over": starts * MEMBERS}

    def _in_log(self) -> list[Message]:
        """Return what is committed in the topic, read without a group."""
        self._reader.assign([TopicPartition(self._topic, partition, 0) for partition in range(PARTITIONS)])
        found, at_end, until_s = list[Message](), set[int](), time.monotonic() + PATIENCE_S
        while len(at_end) < PARTITIONS:
            assert time.monotonic() < until_s, (self._topic, "not read", at_end)
            for message in self._reader.consume(500, 0.05):
                error = message.error()
                if message.topic() != self._topic:
                    continue  # of the schedule before
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
        self._reader.unassign()
        return found


def _text(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode()


def _retried(call: Callable[[], T]) -> T:
    """Call until there is an answer that is no retriable error."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except KafkaException as raised:
            error = raised.args[0]
            if (
                not (error.retriable() or error.code() in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE))
                or time.monotonic() > until
            ):
                raise
