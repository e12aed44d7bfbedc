"""Topics with all kinds of records and configs, for directories that one broker takes over from the other."""

from __future__ import annotations

import random
import time
from typing import Any

from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from programs import Checks
from topic_contents import Contents

CODECS = ("gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (3, {}),
    "compact": (
        2,
        {"cleanup.policy": "compact", "min.compaction.lag.ms": str(7 * DAY_MS), "delete.retention.ms": "60000"},
    ),
    "segments": (1, {"segment.bytes": "1048576", "index.interval.bytes": "1024", "retention.ms": "-1"}),
    **{codec: (1, {}) for codec in CODECS},
    "recompressed": (1, {"compression.type": "lz4"}),
    "idempotent": (2, {}),
    "append-time": (1, {"message.timestamp.type": "LogAppendTime"}),
    "altered": (1, {"max.message.bytes": "200000"}),
    "trimmed": (1, {}),
    "empty": (2, {"retention.bytes": "1000000"}),
    "deleted": (1, {}),
}


def wait_for_all(futures: dict[Any, Any]) -> list[Any]:
    """Results of the futures of an admin call."""
    return [future.result(30) for future in futures.values()]


class Writer:
    """Sends records from a seeded generator."""

    def __init__(self, servers: str, seed: int) -> None:
        self.servers = servers
        self.random = random.Random(seed)
        # Recent, so that neither retention nor a bound on timestamps touches them, and distinct.
        self.timestamp = int(time.time() * 1000) - 3_600_000

    def send(
        self,
        topic: str,
        count: int,
        *,
        partitions: int = 1,
        size: int = 40,
        keys: int = 0,
        batch: int = 50,
        **config: Any,
    ) -> None:
        """`count` records over the partitions in turn, a flush after each `batch`; a tenth without value, some with headers.

        keys: 0 for a mixture of null keys and distinct ones, otherwise how many different keys there are.
        """
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20, **config})
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                errors.append(error)

        for index in range(count):
            self.timestamp += 1
            key = f"key-{self.random.randrange(keys)}" if keys else (f"key-{index}" if index % 3 else None)
            producer.produce(
                topic,
                None if index % 10 == 7 and key else self.random.randbytes(size // 2) + b"x" * (size - size // 2),
                key,
                partition=index // 7 % partitions,
                timestamp=self.timestamp,
                headers=[("index", str(index).encode()), ("null", None), ("index", b"")] if index % 5 == 0 else None,
                on_delivery=delivered,
            )
            if index % batch == batch - 1:
                producer.flush(30)
        left = producer.flush(30)
        if errors or left:
            raise RuntimeError(f"{topic}: {left} records not delivered, first error: {errors[:1]}")


def fill(servers: str, seed: int) -> None:
    """Create the topics and write all kinds of records, then change and delete some."""
    admin = AdminClient({"bootstrap.servers": servers})
    new = [NewTopic(name, count, 1, config=config) for name, (count, config) in TOPICS.items()]
    wait_for_all(admin.create_topics(new))
    append(servers, seed)
    writer = Writer(servers, seed + 1)
    writer.send("deleted", 10)
    writer.send("trimmed", 100)
    wait_for_all(admin.delete_records([TopicPartition("trimmed", 0, 60)]))
    wait_for_all(admin.delete_topics(["deleted"]))
    wait_for_all(admin.create_partitions([NewPartitions("altered", 3)]))
    entry = ConfigEntry("retention.ms", str(30 * DAY_MS), incremental_operation=AlterConfigOpType.SET)
    gone = ConfigEntry("max.message.bytes", "", incremental_operation=AlterConfigOpType.DELETE)
    wait_for_all(
        admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, "altered", incremental_configs=[entry, gone])]
        )
    )


def append(servers: str, seed: int) -> None:
    """Write records to topics that exist."""
    writer = Writer(servers, seed)
    writer.send("plain", 300, partitions=3)
    writer.send("compact", 300, partitions=2, keys=20)
    writer.send("segments", 2000, size=1000, batch=20)
    for codec in CODECS:
        writer.send(codec, 300, size=200, **{"compression.type": codec})
    writer.send("recompressed", 200, size=200, **{"compression.type": "gzip"})
    writer.send("idempotent", 300, partitions=2, **{"enable.idempotence": True})
    writer.send("append-time", 100)
    writer.send("altered", 20)


def transact(servers: str) -> None:
    """A committed and an aborted transaction, only for a broker that has them."""
    admin = AdminClient({"bootstrap.servers": servers})
    wait_for_all(admin.create_topics([NewTopic("transactions", 1, 1)]))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "check"})
    producer.init_transactions(60)
    for number, finish in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        for index in range(10):
            producer.produce("transactions", f"{number}-{index}", "key")
        producer.flush(30)
        finish(60)


def create_topics(servers: str, topics: dict[str, dict[str, str]]) -> None:
    """Create topics with one partition and these configs."""
    admin = AdminClient({"bootstrap.servers": servers})
    wait_for_all(admin.create_topics([NewTopic(name, 1, 1, config=config) for name, config in topics.items()]))


def check_configs_as_set(checks: Checks, who: str, seen: Contents) -> None:
    """What was asked for at creation, changed afterwards, is what is described; offsets are where they have to be."""
    expected = {name: config for name, (_, config) in TOPICS.items() if name != "deleted"}
    expected["altered"] = {"retention.ms": str(30 * DAY_MS)}
    faults = [
        f"{name}: expected {config}, got {seen.configs.get(name)}"
        for name, config in expected.items()
        if seen.configs.get(name) != config
    ]
    if seen.bounds.get(("trimmed", 0)) != (60, 100):
        faults.append(f"trimmed-0: expected offsets 60 to 100, got {seen.bounds.get(('trimmed', 0))}")
    if "deleted" in seen.topics:
        faults.append("the deleted topic is still there")
    checks.report(f"{who} kept what it was told", faults)
