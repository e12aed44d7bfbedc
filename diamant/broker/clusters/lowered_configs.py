"""Configurations of topics, lowered for a time: saved first, set where the cluster accepts them, seen at each broker, put back.

What counts is what DescribeConfigs says afterwards: some clusters raise what they are given, or take it for unset. Where the
lowest accepted time is long, `CleaningDelays` says how long. A value that another client has changed since is left as it is, and
named.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diamant.broker.client.kafka_client import RETRY_S, KafkaClient, KafkaRefusal, topic_refusal
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters.cluster_look import TOPIC_RESOURCE, SeenTopic, configs_of
from diamant.broker.clusters.register import ClusterWork, LoweredValue, Register
from diamant.broker.errors import NotPossible
from diamant.protocol.errors import ErrorCode

INCREMENTAL_ALTER_CONFIGS = 44
SET, DELETE = 0, 1
SEGMENT_MS = 1000
"""Lower, and a topic under traffic would roll with each batch."""
ROLLING = {"segment.ms": str(SEGMENT_MS)}
CLEANING = {"min.cleanable.dirty.ratio": "0.0", "min.compaction.lag.ms": "0", "file.delete.delay.ms": "0"}
BY_LAG = {"max.compaction.lag.ms": "1"}
"""For clusters that refuse the ratio: a maximum lag overrides it."""
LONGER_MS = ("600000", "3600000", "86400000", "604800000")
"""Tried in turn by a cluster that refuses the lowest time: ten minutes, an hour, a day, a week."""
SMALL_SEGMENTS = {"segment.bytes": "1048576"}
TOMBSTONES_NOW = {"delete.retention.ms": "0"}
_REFUSALS = {ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_REQUEST}


class CleaningDelays(NamedTuple):
    """How long records stay with the values that are in use, in ms."""

    roll_ms: float = SEGMENT_MS
    """The age of an active segment that the next append closes."""
    clean_ms: float = 0
    """The age of records for which the cleaner comes in any case."""


def delays(topic: SeenTopic, changes: Mapping[str, LoweredValue]) -> CleaningDelays:
    """Return the delays of a topic with these changes."""

    def used(name: str) -> float:
        return float(changes[name].lowered) if name in changes else topic.number(name)

    longest_ms = used("max.compaction.lag.ms")
    shortest_ms = used("min.compaction.lag.ms") if "min.compaction.lag.ms" in topic.configs else 0
    is_dirty_at_once = used("min.cleanable.dirty.ratio") == 0
    return CleaningDelays(
        max(SEGMENT_MS, min(used("segment.ms"), longest_ms)),
        max(shortest_ms, 0 if is_dirty_at_once or longest_ms <= 1 else longest_ms),
    )


def lowering(client: KafkaClient, topic: SeenTopic, *, tombstones_now: bool = False) -> dict[str, str]:
    """Return what to set on a topic: only what is higher now, the lowest value that the cluster accepts (validate_only).

    NotPossible if too little is accepted to have the cleaner come.
    """
    refused: dict[str, str] = {}
    wanted = {**ROLLING, **CLEANING, **(TOMBSTONES_NOW if tombstones_now else {})}
    found = _accepted(client, topic, wanted, refused)
    if "min.cleanable.dirty.ratio" in refused:
        found.update(_accepted(client, topic, BY_LAG, refused))
    if {"min.cleanable.dirty.ratio", "max.compaction.lag.ms"} <= refused.keys():
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise NotPossible(
            f"nothing was changed: the cluster accepts too few changes of topic {topic.name!r} ({reasons})"
        )
    return found


def _accepted(
    client: KafkaClient, topic: SeenTopic, wanted: Mapping[str, str], refused: dict[str, str]
) -> dict[str, str]:
    found = {}
    for name, lowest in wanted.items():
        for value in (lowest, *(LONGER_MS if name in ROLLING | BY_LAG else ())):
            if name not in topic.configs or topic.number(name) <= float(value):
                break
            try:
                alter(client, topic.name, {name: value}, validate_only=True)
            except KafkaRefusal as error:
                if error.code not in _REFUSALS:
                    raise
                refused.setdefault(name, str(error))
                continue
            found[name] = value
            refused.pop(name, None)
            break
    return found


def alter(client: KafkaClient, topic: str, values: Mapping[str, str | None], *, validate_only: bool = False) -> None:
    """Set configurations of a topic; None unsets one. KafkaRefusal, ConnectionFailed."""
    operations = [
        {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
        for name, value in values.items()
    ]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": operations}
    deadline = time.monotonic() + client.timeout_s
    while True:
        answer = client.ask_any(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": validate_only})
        found = answer["responses"][0]
        code = found["error_code"]
        if not code:
            return
        try:
            client.pause(deadline, topic, code)
        except KafkaRefusal:
            raise topic_refusal(topic, code, found["error_message"]) from None


def lower(
    client: KafkaClient, register: Register, work: ClusterWork, topic: SeenTopic, values: Mapping[str, str]
) -> None:
    """Save a topic's values, set the lower ones, and wait until all of its brokers know them, or those that they use instead."""
    own = work.changes.setdefault(topic.name, {})
    for name, value in values.items():
        found = topic.configs[name]
        before = own[name].before if name in own else (found.value if found.is_own else None)
        own[name] = LoweredValue(before, value)
    if not values:
        return
    register.save(work)
    alter(client, topic.name, values)
    if differing := wait_known(client, topic, values):
        for name, shown in differing.items():
            own[name].lowered = shown
        register.save(work)
    if "min.cleanable.dirty.ratio" in differing and topic.number("max.compaction.lag.ms") > 1:
        lower(client, register, work, topic, BY_LAG)


def wait_known(client: KafkaClient, topic: SeenTopic, values: Mapping[str, str | None]) -> dict[str, str]:
    """Wait until the brokers of a topic's replicas show these values; None is any. Returns those that differ in the end."""
    brokers = {broker for one in topic.partitions for broker in one.replicas}
    deadline = time.monotonic() + client.timeout_s
    differing: dict[str, str] = {}
    while brokers:
        differing = {}
        for broker in sorted(brokers):
            try:
                shown = configs_of(client, topic.name, broker)
            except ConnectionFailed:
                client.forget(broker)
                brokers.discard(broker)  # It reads the present values when it starts.
                continue
            wrong = {
                name: shown[name].value or ""
                for name, value in values.items()
                if not _is_same(shown[name].value, value)
            }
            if not wrong:
                brokers.discard(broker)
            differing.update(wrong)
        if brokers and time.monotonic() > deadline:
            break
        if brokers:
            time.sleep(RETRY_S)
    return differing


def _is_same(shown: str | None, wanted: str | None) -> bool:
    try:
        return wanted is None or shown == wanted or float(shown or "nan") == float(wanted)
    except ValueError:
        return False


def put_back(
    client: KafkaClient, register: Register, work: ClusterWork, names: Iterable[str] | None = None
) -> list[str]:
    """Put back the lowered values, or those of `names`. Returns sentences about values that others have changed.

    KafkaRefusal, ConnectionFailed: what is not back stays in the saved file.
    """
    left: list[str] = []
    try:
        for topic in list(work.changes):
            _put_back_topic(client, work, topic, names, left)
    finally:
        register.save(work)
    return left


def _put_back_topic(
    client: KafkaClient, work: ClusterWork, topic: str, names: Iterable[str] | None, left: list[str]
) -> None:
    own = work.changes[topic]
    wanted: Sequence[str] = [name for name in own if names is None or name in names]
    try:
        shown = configs_of(client, topic) if wanted else {}
    except KafkaRefusal as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        left.append(f"topic {topic!r} was deleted: its configurations went with it")
        del work.changes[topic]
        return
    values: dict[str, str | None] = {}
    for name in wanted:
        found = shown[name]
        if found.is_own and _is_same(found.value, own[name].lowered):
            values[name] = own[name].before
        elif (found.value if found.is_own else None) != own[name].before:
            left.append(
                f"{topic}: {name} is {found.value}, which another client has set since; before it was "
                f"{own[name].before or 'not set'}"
            )
    if values:
        alter(client, topic, values)
        _confirm(client, topic, values)
    for name in wanted:
        del own[name]
    if not own:
        del work.changes[topic]


def _confirm(client: KafkaClient, topic: str, values: Mapping[str, str | None]) -> None:
    """Wait until the cluster shows the values. NotPossible names those that it does not take back."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        shown = configs_of(client, topic)
        wrong = [
            name
            for name, value in values.items()
            if shown[name].is_own != (value is not None) or not _is_same(shown[name].value, value)
        ]
        if not wrong:
            return
        if time.monotonic() > deadline:
            raise NotPossible(
                f"{topic}: the cluster does not take back {', '.join(wrong)}; `diamant restore` tries again"
            )
        time.sleep(RETRY_S)
