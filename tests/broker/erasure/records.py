"""Topics with values of the key, and what is left of them."""

from __future__ import annotations

from collections.abc import Sequence

from diamant.broker.broker import Broker
from diamant.broker.groups.store.group import Group
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.internal_topics.group_records import encode_offset_commit_value
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.builder import make_marker
from tests.cleaner.evidence.scan.naive_scanner import records_of_key


async def create(
    broker: Broker, name: str = "users", partitions: int = 1, policy: str = "compact", segment_bytes: int = 1000
) -> None:
    """Create a compacted topic with small segments that the cleaner ignores: it holds exactly the test's records."""
    configs = {"internal_segment_bytes": segment_bytes, "min_cleanable_dirty_ratio": 1.0}
    await broker.create_topic(name, partitions, cleanup_policy=policy, **configs)


def write(
    broker: Broker,
    *pairs: tuple[bytes, bytes | None],
    topic: str = "users",
    partition: int = 0,
    codec: int = 0,
    headers: Sequence[Header] = (),
) -> int:
    """Append one batch; return its base offset."""
    now_ms = broker.env.clock.now_ms()
    records = [Record(offset, now_ms, key, value, tuple(headers)) for offset, (key, value) in enumerate(pairs)]
    log = broker.node.topics.log(topic, partition)
    return log.append_as_leader(memoryview(build_batch(records, codec=codec))).base_offset


def write_often(broker: Broker, count: int, value: bytes | None = b"again", topic: str = "users") -> None:
    """Append `count` records of the key, in batches that fit small segments."""
    for first in range(0, count, 20):
        write(broker, *[(KEY, value)] * min(20, count - first), topic=topic)


def commit(broker: Broker, *commits: tuple[int, str]) -> None:
    """Set the only groups: the offset that each has committed in each partition of `users`."""
    groups = broker.services.groups().groups
    groups.clear()
    for offset, name in commits:
        group = groups[name] = Group(name)
        value = encode_offset_commit_value(offset, -1, "", broker.env.clock.now_ms())
        group.offsets.committed["users"] = dict.fromkeys(range(10), (value, 0))


class Producer:
    """A transactional producer in one partition."""

    def __init__(self, broker: Broker, topic: str, partition: int, producer_id: int) -> None:
        self._broker = broker
        self._log = broker.node.topics.log(topic, partition)
        self._id = producer_id
        self._sequence = 0

    def write(self, *pairs: tuple[bytes, bytes | None], codec: int = 0, headers: Sequence[Header] = ()) -> None:
        """Append a batch to the producer's transaction."""
        now_ms = self._broker.env.clock.now_ms()
        records = [Record(offset, now_ms, key, value, tuple(headers)) for offset, (key, value) in enumerate(pairs)]
        own = {"producer_id": self._id, "producer_epoch": 0, "base_sequence": self._sequence}
        batch = build_batch(records, codec=codec, is_transactional=True, **own)
        self._log.append_as_leader(memoryview(batch))
        self._sequence += len(pairs)

    def end(self, *, is_commit: bool) -> None:
        """Append the marker."""
        now_ms = self._broker.env.clock.now_ms()
        marker = make_marker(self._id, is_commit=is_commit, leader_epoch=self._log.leader_epoch, timestamp=now_ms)
        self._log.append_internal(marker)
        self._broker.node.log_events.changed(self._log)


def fill(broker: Broker, count: int = 30, topic: str = "users", partition: int = 0) -> None:
    """Write other customers."""
    for number in range(count):
        pair = (b"customer-%d" % (100 + number % 10), b"someone else, %d" % number)
        write(broker, pair, topic=topic, partition=partition)


async def create_with_key(broker: Broker, partitions: int = 1, *, others: int = 0, codec: int = 0) -> None:
    """Create `users` with one value of the key in each partition, followed by records of other customers."""
    await create(broker, partitions=partitions)
    for partition in range(partitions):
        write(broker, (KEY, PERSON), partition=partition, codec=codec)
        fill(broker, others, partition=partition)


def values_left(broker: Broker, key: bytes = KEY) -> list[bytes | None]:
    """Return the values of a key in the files of `users`, None for a tombstone, as found by the tests' scanner."""
    return [one.value for one in records_of_key(data_of(broker), "users", key)]
