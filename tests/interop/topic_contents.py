"""All that clients can learn about a broker's topics, and how that of two brokers differs."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from programs import Checks, wait_until


class Row(NamedTuple):
    """One record as a client sees it."""

    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Contents(NamedTuple):
    """All that a client can learn about a broker's topics."""

    cluster_id: str
    topics: dict[str, tuple[str, int]]  # topic id and number of partitions
    configs: dict[str, dict[str, str]]  # those that were set on the topic
    bounds: dict[tuple[str, int], tuple[int, int]]  # earliest offset and high watermark
    by_time: dict[tuple[str, int], int]  # answer to a ListOffsets by timestamp
    records: dict[tuple[str, int], list[Row]]


def wait_for_bounds(consumer: Consumer, partition: tuple[str, int]) -> tuple[int, int]:
    """Earliest offset and high watermark. Kafka names topics shortly before it leads their partitions: ask until it does."""
    end = time.monotonic() + 30
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(*partition), 30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return low, high


def contents(servers: str, expected_topics: set[str] | None = None) -> Contents:
    """Everything that clients can see, read with checked CRCs and read_committed."""
    admin = AdminClient({"bootstrap.servers": servers})
    if expected_topics is not None:  # a broker that has just started may answer before it knows all
        wait_until(lambda: expected_topics <= set(admin.list_topics(timeout=10).topics), "all topics are there")
    listed = admin.list_topics(timeout=30)
    names = sorted(name for name in listed.topics if not name.startswith("__"))
    topics = {}
    for name, future in admin.describe_topics(TopicCollection(names)).items():
        described = future.result(30)
        topics[name] = (str(described.topic_id), len(described.partitions))
    configs = {}
    for resource, future in admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names]
    ).items():
        entries = future.result(30).values()
        configs[resource.name] = {
            entry.name: entry.value for entry in entries if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    partitions = [(name, index) for name, (_, count) in topics.items() for index in range(count)]
    bounds = {partition: wait_for_bounds(consumer, partition) for partition in partitions}
    records: dict[tuple[str, int], list[Row]] = {partition: [] for partition in partitions}
    consumer.assign([TopicPartition(*partition, bounds[partition][0]) for partition in partitions])
    open_partitions = set(partitions)
    end = time.monotonic() + 120
    while open_partitions:
        if time.monotonic() > end:
            raise RuntimeError(f"no end of {sorted(open_partitions)} after 120 s")
        for message in consumer.consume(1000, 1):
            partition = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                headers = tuple((key, value) for key, value in message.headers() or ())
                records[partition].append(
                    Row(message.offset(), message.timestamp(), message.key(), message.value(), headers)
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(partition)
            else:
                raise RuntimeError(f"{partition}: {error}")
    # The timestamp of a record in the middle of each partition.
    middles = {partition: rows[len(rows) // 2].timestamp[1] for partition, rows in records.items() if rows}
    answers = consumer.offsets_for_times([TopicPartition(*partition, ms) for partition, ms in middles.items()], 30)
    by_time = {(answer.topic, answer.partition): answer.offset for answer in answers}
    consumer.close()
    return Contents(listed.cluster_id, topics, configs, bounds, by_time, records)


def differences(before: Contents, after: Contents) -> dict[str, list[str]]:
    """What is not the same, by the fields of Contents."""
    found: dict[str, list[str]] = {}
    for field in Contents._fields:
        old, new = getattr(before, field), getattr(after, field)
        faults = []
        if not isinstance(old, dict):
            faults = [f"expected {old}, got {new}"] if old != new else []
        else:
            for key in sorted(old.keys() | new.keys()):
                if old.get(key) == new.get(key):
                    continue
                if field != "records" or key not in old or key not in new:
                    faults.append(f"{key}: expected {old.get(key)}, got {new.get(key)}"[:300])
                    continue
                pairs = [(a, b) for a, b in zip(old[key], new[key], strict=False) if a != b]
                first = f", first: expected {pairs[0][0]}, got {pairs[0][1]}" if pairs else ""
                faults.append(
                    f"{key}: {len(old[key])} records expected, got {len(new[key])}; {len(pairs)} differ{first}"[:400]
                )
        found[field] = faults
    return found


def compare(checks: Checks, what: str, before: Contents, after: Contents) -> None:
    """Report each field of two Contents."""
    counts = {
        "cluster_id": "",
        "topics": f"{len(after.topics)} topics, ids and partitions",
        "configs": f"{sum(map(len, after.configs.values()))} values",
        "bounds": f"{len(after.bounds)} partitions",
        "by_time": f"{len(after.by_time)} look-ups",
        "records": f"{sum(map(len, after.records.values()))} records",
    }
    for field, faults in differences(before, after).items():
        checks.report(f"{what}: same {field}", faults, counts[field])
