"""Lowers topic configurations temporarily: saves the values, sets the lowest that the cluster accepts, waits until each broker
shows them, and finally puts the old values back.

Some clusters raise a given value or treat it as unset, so the values that DescribeConfigs shows afterwards are used. If a cluster
accepts only long times, `CleaningDelays` has them. A value that another client has changed since then is left as it is, and
reported.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from diamant.broker.client.kafka_client import RETRIED, RETRY_S, KafkaClient, KafkaRefusal, topic_refusal
from diamant.broker.client.kafka_connection import ConnectionFailed, Fields
from diamant.broker.clusters.cluster_look import TOPIC_RESOURCE, ConfigValue, SeenTopic, all_configs, in_requests
from diamant.broker.clusters.register import ClusterWork, LoweredValue, Register
from diamant.broker.operation_errors import NotPossible
from diamant.protocol.errors import ErrorCode

INCREMENTAL_ALTER_CONFIGS = 44
SET, DELETE = 0, 1
SEGMENT_MS = 1000
"""With a lower value, a busy topic would roll a segment for every batch."""
ROLLING = {"segment.ms": str(SEGMENT_MS)}
CLEANING = {"min.cleanable.dirty.ratio": "0.0", "min.compaction.lag.ms": "0", "file.delete.delay.ms": "0"}
BY_LAG = {"max.compaction.lag.ms": "1"}
"""Set instead of the dirty ratio if a cluster refuses that: past the maximum lag, logs are cleaned regardless of their ratio."""
LONGER_MS = ("600000", "3600000", "86400000", "604800000")
"""Tried one after another if a cluster refuses the lowest time: ten minutes, an hour, a day, a week."""
SMALL_SEGMENTS = {"segment.bytes": "1048576"}
TOMBSTONES_NOW = {"delete.retention.ms": "0"}
_REFUSALS = {ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_REQUEST}


Lowering: TypeAlias = Mapping[str, Mapping[str, str]]
"""Values to set, by topic and configuration name."""


class CleaningDelays(NamedTuple):
    """How long the configurations in effect delay the cleaning of records, in ms."""

    roll_ms: float = SEGMENT_MS
    """The age at which an active segment is closed by the next append."""
    clean_ms: float = 0
    """The age up to which the cleaner may leave records alone."""


def delays(topic: SeenTopic, changes: Mapping[str, LoweredValue]) -> CleaningDelays:
    """Return the delays of a topic after these changes."""

    def used(name: str) -> float:
        return float(changes[name].lowered) if name in changes else topic.number(name)

    longest_ms = used("max.compaction.lag.ms")
    shortest_ms = used("min.compaction.lag.ms") if "min.compaction.lag.ms" in topic.configs else 0
    is_dirty_at_once = used("min.cleanable.dirty.ratio") == 0
    return CleaningDelays(
        max(SEGMENT_MS, min(used("segment.ms"), longest_ms)),
        max(shortest_ms, 0 if is_dirty_at_once or longest_ms <= 1 else longest_ms),
    )


def lowering(
    client: KafkaClient, topics: Sequence[SeenTopic], *, tombstones_now: bool = False
) -> dict[str, dict[str, str]]:
    """Return the values to set on each topic: the lowest that the cluster accepts (validate_only), if lower than now.

    Raises NotPossible if the cluster accepts too few of them for the cleaner to run.
    """
    lowest = {**ROLLING, **CLEANING, **(TOMBSTONES_NOW if tombstones_now else {})}
    wanted = {
        one.name: {name: value for name, value in lowest.items() if _is_higher(one, name, value)} for one in topics
    }
    refusals = alter(client, wanted, validate_only=True)
    return {one.name: _accepted(client, one, lowest) if one.name in refusals else wanted[one.name] for one in topics}


def _is_higher(topic: SeenTopic, name: str, value: str) -> bool:
    return name in topic.configs and topic.number(name) > float(value)


def _accepted(client: KafkaClient, topic: SeenTopic, lowest: Mapping[str, str]) -> dict[str, str]:
    """Validate the changes of a topic one by one, and return those that the cluster accepts. Raises NotPossible."""
    refused: dict[str, str] = {}
    found = _accepted_of(client, topic, lowest, refused)
    if "min.cleanable.dirty.ratio" in refused:
        found.update(_accepted_of(client, topic, BY_LAG, refused))
    if {"min.cleanable.dirty.ratio", "max.compaction.lag.ms"} <= refused.keys():
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise NotPossible(
            f"nothing was changed: the cluster accepts too few of the changes to topic {topic.name!r} ({reasons})"
        )
    return found


def _accepted_of(
    client: KafkaClient, topic: SeenTopic, wanted: Mapping[str, str], refused: dict[str, str]
) -> dict[str, str]:
    found = {}
    for name, lowest in wanted.items():
        for value in (lowest, *(LONGER_MS if name in ROLLING | BY_LAG else ())):
            if not _is_higher(topic, name, value):
                break
            if error := alter(client, {topic.name: {name: value}}, validate_only=True).get(topic.name):
                if error.code not in _REFUSALS:
                    raise error
                refused.setdefault(name, str(error))
                continue
            found[name] = value
            refused.pop(name, None)
            break
    return found


def alter(
    client: KafkaClient, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> dict[str, KafkaRefusal]:
    """Set configurations of topics, or unset those whose value is None. Returns refusals by topic. Raises ConnectionFailed."""
    left, refused = {topic: values for topic, values in changes.items() if values}, dict[str, KafkaRefusal]()
    deadline = time.monotonic() + client.timeout_s
    while left:
        again = set[str]()
        for names in in_requests(left):
            fields = {"resources": [_changed(name, left[name]) for name in names], "validate_only": validate_only}
            for one in client.ask_any(INCREMENTAL_ALTER_CONFIGS, fields)["responses"]:
                name, code = one["resource_name"], one["error_code"]
                if code in RETRIED and time.monotonic() < deadline:
                    again.add(name)
                elif code:
                    refused[name] = topic_refusal(name, code, one["error_message"])
        left = {name: left[name] for name in again}
        if left:
            time.sleep(RETRY_S)
    return refused


def _changed(topic: str, values: Mapping[str, str | None]) -> Fields:
    operations = [
        {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
        for name, value in values.items()
    ]
    return {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": operations}


def lower(
    client: KafkaClient, register: Register, work: ClusterWork, topics: Iterable[SeenTopic], values: Lowering
) -> None:
    """Save the topics' own values, set `values`, and wait until the brokers show them. If they show others, save those, too.
    Raises KafkaRefusal or ConnectionFailed. Some values may be lowered by then, but all original values are saved.
    """
    seen = {one.name: one for one in topics}
    for name, topic in seen.items():
        own = work.changes.setdefault(name, {})
        for config, value in values[name].items():
            found = topic.configs[config]
            before = own[config].before if config in own else (found.value if found.is_own else None)
            own[config] = LoweredValue(before, value)
    wanted = {name: values[name] for name in seen if values[name]}
    if not wanted:
        return
    register.save(work)
    for refusal in alter(client, wanted).values():
        raise refusal
    differing = wait_known(client, seen, wanted)
    for name, others in differing.items():
        for config, shown in others.items():
            work.changes[name][config].lowered = shown
    if differing:
        register.save(work)
    by_lag = [
        seen[name]
        for name, others in differing.items()
        if "min.cleanable.dirty.ratio" in others and seen[name].number("max.compaction.lag.ms") > 1
    ]
    if by_lag:
        lower(client, register, work, by_lag, dict.fromkeys(seen, BY_LAG))


def wait_known(client: KafkaClient, topics: Mapping[str, SeenTopic], values: Lowering) -> dict[str, dict[str, str]]:
    """Wait until all brokers with replicas of the topics show these values. Returns any other values still shown, by topic."""
    brokers: dict[int, set[str]] = {}
    for name in values:
        for broker in {broker for one in topics[name].partitions for broker in one.replicas}:
            brokers.setdefault(broker, set()).add(name)
    deadline = time.monotonic() + client.timeout_s
    differing: dict[str, dict[str, str]] = {}
    while brokers:
        differing = {}
        for broker in sorted(brokers):
            try:
                shown = all_configs(client, sorted(brokers[broker]), broker)
            except ConnectionFailed:
                client.forget(broker)
                del brokers[broker]  # The broker will read the current values when it starts.
                continue
            for name, found in shown.items():
                wrong = {} if isinstance(found, KafkaRefusal) else _differing(found, values[name])
                if wrong or isinstance(found, KafkaRefusal):
                    differing.setdefault(name, {}).update(wrong)
                else:
                    brokers[broker].discard(name)
        brokers = {broker: names for broker, names in brokers.items() if names}
        if brokers and time.monotonic() > deadline:
            break
        if brokers:
            time.sleep(RETRY_S)
    return differing


def _differing(shown: Mapping[str, ConfigValue], values: Mapping[str, str]) -> dict[str, str]:
    return {name: shown[name].value or "" for name, value in values.items() if not _is_same(shown[name].value, value)}


def _is_same(shown: str | None, wanted: str | None) -> bool:
    try:
        return shown == wanted or float(shown or "nan") == float(wanted or "nan")
    except ValueError:
        return False


class PutBack(NamedTuple):
    """The values that `put_back` did not put back."""

    left: Sequence[str] = ()
    """Sentences about values that were left alone because another client has changed them or has deleted the topic."""
    failed: Mapping[str, str] = MappingProxyType({})
    """Why topics still have lowered values, by topic. The register keeps their original values."""


def put_back(
    client: KafkaClient, register: Register, work: ClusterWork, names: Collection[str] | None = None
) -> PutBack:
    """Put back the lowered values, or only those of `names`; return what was not put back. Continues if a topic fails."""
    own = {
        topic: {name: value for name, value in lowered.items() if names is None or name in names}
        for topic, lowered in work.changes.items()
    }
    left, failed = list[str](), dict[str, str]()
    try:
        values, there = dict[str, dict[str, str | None]](), all_configs(client, own)
        for topic, shown in there.items():
            if not isinstance(shown, KafkaRefusal):
                values[topic] = _to_put_back(topic, own[topic], shown, left)
            elif shown.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                left.append(f"topic {topic!r} was deleted, and its configurations with it")
                del work.changes[topic]
            else:
                failed[topic] = str(shown)
        refused = alter(client, values)
        failed.update({topic: str(error) for topic, error in refused.items()})
        altered = {topic: own for topic, own in values.items() if topic not in refused}
        failed.update(_not_shown(client, altered))
        for topic in altered.keys() - failed.keys():
            for name in own[topic]:
                del work.changes[topic][name]
            if not work.changes[topic]:
                del work.changes[topic]
    except ConnectionFailed as error:
        failed.update({topic: str(error) for topic in own.keys() & work.changes.keys() - failed.keys()})
    finally:
        register.save(work)
    return PutBack(left, failed)


class LoweringRun:
    """A run of a job that lowers configurations and puts them back."""

    def __init__(self, client: KafkaClient, register: Register, work: ClusterWork) -> None:
        self._client = client
        self._register = register
        self._work = work
        self.left: list[str] = []
        """Sentences about what the run leaves behind: configurations that other clients have changed, and tombstones."""
        self.not_put_back: Mapping[str, str] = {}
        """Why topics still have lowered configurations, by topic."""

    def _lower(self, topics: Iterable[SeenTopic], values: Lowering) -> None:
        lower(self._client, self._register, self._work, topics, values)

    def _put_back(self, names: Collection[str] | None = None) -> None:
        if self._work.changes:
            found = put_back(self._client, self._register, self._work, names)
            self.left += found.left
            self.not_put_back = found.failed


def _to_put_back(
    topic: str, own: Mapping[str, LoweredValue], shown: Mapping[str, ConfigValue], left: list[str]
) -> dict[str, str | None]:
    """Return the values to put back on a topic. Appends a sentence to `left` for each value that another client has changed."""
    values: dict[str, str | None] = {}
    for name, saved in own.items():
        found = shown.get(name, ConfigValue(None, is_own=False))
        if found.is_own and _is_same(found.value, saved.lowered):
            values[name] = saved.before
        elif (found.value if found.is_own else None) != saved.before:
            left.append(
                f"{topic}: {name} is {found.value}, which another client has set since; originally, it was "
                f"{saved.before or 'not set'}"
            )
    return values


def _not_shown(client: KafkaClient, values: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
    """Wait until the cluster shows the values. Returns the reasons for topics that do not show them in time, by topic."""
    deadline = time.monotonic() + client.timeout_s
    waiting = {topic for topic, own in values.items() if own}
    while True:
        found: dict[str, str] = {}
        for topic, shown in all_configs(client, sorted(waiting)).items():
            if isinstance(shown, KafkaRefusal):
                found[topic] = str(shown)
                continue
            wrong = [
                name
                for name, value in values[topic].items()
                if shown[name].is_own != (value is not None)
                or (value is not None and not _is_same(shown[name].value, value))
            ]
            if wrong:
                found[topic] = f"the cluster did not restore {', '.join(wrong)}"
        if not found or time.monotonic() > deadline:
            return found
        waiting = set(found)
        time.sleep(RETRY_S)
