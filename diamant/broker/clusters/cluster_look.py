"""Inspects a cluster before it is changed: topics, their configurations, and the caller's rights (KIP-430)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from diamant.broker.acl import Operation
from diamant.broker.client.kafka_client import (
    KafkaClient,
    KafkaRefusal,
    LedPartition,
    error_name,
    partitions_of,
    topic_refusal,
)
from diamant.broker.client.kafka_connection import ConnectionFailed, Fields
from diamant.broker.operation_errors import NotAllowed, NotPossible
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import METADATA, NOT_REQUESTED

DESCRIBE_CONFIGS = 32
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
MOST_IN_A_REQUEST = 100
T = TypeVar("T")
OWN_SOURCE = 1
"""The config_source of a value that is set on the topic itself."""
TIERED_CONFIG = "remote.storage.enable"
TRANSACTION_TOPIC = "__transaction_state"
BACKOFF_CONFIG, DEFAULT_BACKOFF_MS = "log.cleaner.backoff.ms", 15_000


class ConfigValue(NamedTuple):
    """The value of a configuration. `is_own`: True if it is set on the topic itself."""

    value: str | None
    is_own: bool


class SeenTopic(NamedTuple):
    """A topic as the cluster described it."""

    name: str
    topic_id: str
    """Empty if the brokers are too old to have topic ids."""
    is_internal: bool
    partitions: tuple[LedPartition, ...]
    operations: frozenset[Operation] | None
    """The operations that the caller may perform; None if the broker does not report them."""
    configs: Mapping[str, ConfigValue]

    @property
    def is_compacted(self) -> bool:
        """True if `cleanup.policy` includes compact."""
        return "compact" in (self.configs["cleanup.policy"].value or "")

    def number(self, config: str) -> float:
        """Return the value of a numeric configuration; infinity if the cluster does not know the configuration."""
        found = self.configs.get(config)
        return float("inf") if found is None or found.value is None else float(found.value)


class Cluster(NamedTuple):
    """A cluster as it described itself."""

    cluster_id: str
    brokers: tuple[int, ...]
    topics: Mapping[str, SeenTopic]
    has_transactions: bool
    """True if `__transaction_state` exists and the caller may DESCRIBE it."""
    backoff_ms: int
    """`log.cleaner.backoff.ms`; Kafka's default if the caller may not see it."""


def look(client: KafkaClient, names: Sequence[str], needed: Collection[Operation] = ()) -> Cluster:
    """Inspect topics. Raises ConnectionFailed, KafkaRefusal if one is missing, or NotAllowed if a right in `needed` is."""
    asked = {
        "topics": [{"name": name} for name in (*names, TRANSACTION_TOPIC)],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }
    answer = client.ask_any(METADATA, asked)
    client.note_brokers(answer)
    found = {topic["name"]: topic for topic in answer["topics"]}
    for name in names:
        if found[name]["error_code"] not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
            raise topic_refusal(name, found[name]["error_code"])
    _check_rights([found[name] for name in names], needed)
    topics, configs = {}, all_configs(client, names)
    for name in names:
        one, own = found[name], configs[name]
        if isinstance(own, KafkaRefusal):
            raise own
        topic_id = one.get("topic_id")
        topics[name] = SeenTopic(
            name,
            "" if topic_id is None else str(topic_id),
            one["is_internal"],
            partitions_of(one),
            _operations(one),
            own,
        )
    brokers = tuple(sorted(broker["node_id"] for broker in answer["brokers"]))
    return Cluster(
        answer["cluster_id"] or "",
        brokers,
        topics,
        has_transactions=not found[TRANSACTION_TOPIC]["error_code"],
        backoff_ms=_backoff_ms(client, brokers),
    )


def configs_of(client: KafkaClient, topic: str) -> dict[str, ConfigValue]:
    """Return a topic's configurations. Raises KafkaRefusal, ConnectionFailed."""
    found = all_configs(client, [topic])[topic]
    if isinstance(found, KafkaRefusal):
        raise found
    return found


def all_configs(
    client: KafkaClient, topics: Iterable[str], broker: int | None = None
) -> dict[str, dict[str, ConfigValue] | KafkaRefusal]:
    """Return the configurations of each topic, or the refusal, as sent by `broker` (None: any). Raises ConnectionFailed."""
    found: dict[str, dict[str, ConfigValue] | KafkaRefusal] = {}
    for names in in_requests(topics):
        resources = [
            {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None} for name in names
        ]
        asked = {"resources": resources}
        answer = (
            client.ask_any(DESCRIBE_CONFIGS, asked)
            if broker is None
            else client.broker(broker).ask(DESCRIBE_CONFIGS, asked)
        )
        for result in answer["results"]:
            name, code = result["resource_name"], result["error_code"]
            found[name] = (
                topic_refusal(name, code, result["error_message"])
                if code
                else {
                    one["name"]: ConfigValue(one["value"], one["config_source"] == OWN_SOURCE)
                    for one in result["configs"]
                }
            )
    return found


def in_requests(subjects: Iterable[T]) -> Iterator[list[T]]:
    """Split topics or partitions into lists that are short enough for one request and its response."""
    left = iter(subjects)
    while some := list(islice(left, MOST_IN_A_REQUEST)):
        yield some


def _check_rights(topics: Iterable[Fields], needed: Collection[Operation]) -> None:
    missing = [
        f"{operation.name} on topic {topic['name']}"
        for topic in topics
        for operation in needed
        if (operations := _operations(topic)) is not None and operation not in operations
    ]
    if missing:
        raise NotAllowed(f"nothing was changed: this user lacks {', '.join(missing)}")


def _operations(topic: Fields) -> frozenset[Operation] | None:
    bits = topic.get("topic_authorized_operations", NOT_REQUESTED)
    return None if bits == NOT_REQUESTED else frozenset(one for one in Operation if bits >> one & 1)


def check_cleanable(topics: Iterable[SeenTopic]) -> None:
    """Raise NotPossible if a topic cannot be cleaned now: it is internal, tiered or not compacted, or a leader is missing."""
    for topic in topics:
        if topic.is_internal:
            raise NotPossible(f"topic {topic.name!r} is internal to the brokers: expected one of your own topics")
        if (found := topic.configs.get(TIERED_CONFIG)) and found.value == "true":
            raise NotPossible(
                f"topic {topic.name!r} has tiered storage ({TIERED_CONFIG}): Kafka does not compact such topics, so a tombstone "
                f"removes nothing there; {_goes(topic)}, in remote storage, too"
            )
        if not topic.is_compacted:
            raise NotPossible(_not_compacted(topic))
        for one in topic.partitions:
            if one.leader < 0:
                raise NotPossible(
                    f"{topic.name}-{one.number} has no leader; its replicas are on brokers "
                    f"{', '.join(map(str, one.replicas))}: start one of them"
                )


def _goes(topic: SeenTopic) -> str:
    retention_ms = topic.number("retention.ms")
    if retention_ms < 0:
        return "its records stay (retention.ms=-1)"
    return f"its records are deleted {retention_ms / 86_400_000:g} days after they were written"


def _not_compacted(topic: SeenTopic) -> str:
    return (
        f"topic {topic.name!r} is not compacted (cleanup.policy={topic.configs['cleanup.policy'].value}), so a tombstone removes "
        f"nothing there; {_goes(topic)} (`diamant explain {topic.name} --key KEY` lists them, each with its time). Kafka can "
        "only delete all records up to an offset (kafka-delete-records.sh), including those of other keys"
    )


def _backoff_ms(client: KafkaClient, brokers: Sequence[int]) -> int:
    resource = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": str(brokers[0]),
        "configuration_keys": [BACKOFF_CONFIG],
    }
    try:
        result = client.broker(brokers[0]).ask(DESCRIBE_CONFIGS, {"resources": [resource]})["results"][0]
    except (ConnectionFailed, KafkaRefusal):
        return DEFAULT_BACKOFF_MS
    return next((int(one["value"]) for one in result["configs"] if one["value"]), DEFAULT_BACKOFF_MS)


def check_same(client: KafkaClient, topics: Iterable[SeenTopic]) -> dict[str, tuple[LedPartition, ...]]:
    """Return the topics' current partitions. Raises NotPossible if a topic was deleted, or deleted and created again."""
    seen = {one.name: one for one in topics}
    asked = {"topics": [{"name": name} for name in seen], "allow_auto_topic_creation": False}
    answer = client.ask_any(METADATA, asked)
    client.note_brokers(answer)
    partitions = {}
    for one in answer["topics"]:
        name, found = one["name"], one.get("topic_id")
        if one["error_code"] not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
            raise NotPossible(f"topic {name!r} was deleted during this run ({error_name(one['error_code'])})")
        if seen[name].topic_id and found is not None and str(found) != seen[name].topic_id:
            raise NotPossible(f"topic {name!r} was deleted and created again during this run: start again")
        partitions[name] = partitions_of(one)
    return partitions


def now_ms() -> int:
    """Return the time in ms since the epoch."""
    return time.time_ns() // 1_000_000
