"""The table of group configurations (resource type 32, KIP-848), with their validation and description.

A group's own value overrides the broker's, within the broker's limits. A configuration may be set before its group exists.
Configurations of streams groups are stored for a Kafka broker that opens the directory.

Source: GroupConfig, GroupConfigManager.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from diamant.broker.config.coordinator_table import CoordinatorSettings
from diamant.broker.config.kafka_table import KAFKA_ONLY
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import (
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribedConfig,
    InvalidValue,
    Validator,
    Value,
    any_of,
    at_least,
    settings_of,
)

if TYPE_CHECKING:
    from diamant.broker.config.broker_config import BrokerConfig

ASSIGNMENT_INTERVAL_MS = "consumer.assignment.interval.ms"
SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"

ASSIGNOR_NAME = "streams.assignor.name"
RACK_TAGS = "streams.rack.aware.assignment.tags"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"

_INT, _STRING, _BOOLEAN = ConfigType.INT, ConfigType.STRING, ConfigType.BOOLEAN
_DEAD_LETTERS = "For share groups. Kept and shown; dead letters are not written here."
_STREAMS = "For streams groups. Kept and shown; streams groups are not served here."
_NO_SYNONYM = frozenset({"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"})
_DURATION = re.compile(
    r"by_duration:(?i:P(?=.)((?P<d>\d+)D)?(T(?=.)((?P<h>\d+)H)?((?P<m>\d+)M)?((?P<s>\d+(\.\d{0,9})?)S)?)?)"
)


def _check_start(name: str, value: Value) -> None:
    if str(value) not in ("earliest", "latest") and not _DURATION.fullmatch(str(value)):
        raise InvalidValue(
            name,
            value,
            f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', 'latest' or of the format "
            "'by_duration:<PnDTnHnMn.nS>'.",
        )


def _row(
    name: str,
    type_: ConfigType,
    default: Value,
    documentation: str,
    validator: Validator | None = None,
    synonym: str | None = None,
) -> ConfigKey:
    """Return a configuration without a broker-wide default, or with one (`synonym`, else `group.NAME`) that only Kafka uses."""
    is_of_broker = name not in _NO_SYNONYM and not name.startswith("errors.")
    synonyms = (synonym or f"group.{name}",) if is_of_broker else ()
    return ConfigKey(name, type_, default, documentation, validator, synonyms)


_OF_COORDINATOR = {key.name: key for key in settings_of(CoordinatorSettings)}


def _of_broker(name: str, documentation: str) -> ConfigKey:
    """Return a configuration with the type, default and limits of the broker-wide `group.NAME`."""
    key = _OF_COORDINATOR[f"group.{name}"]
    return ConfigKey(name, key.type, key.default, documentation, key.validator, (key.name,))


GROUP_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        _of_broker(ASSIGNMENT_INTERVAL_MS, "Shortest time between two target assignments of this consumer group."),
        _of_broker(HEARTBEAT_INTERVAL_MS, "Interval of the heartbeats of this consumer group's members."),
        _of_broker(SESSION_TIMEOUT_MS, "Time after which a silent member is removed from this consumer group."),
        _row("errors.deadletterqueue.copy.record.enable", _BOOLEAN, False, _DEAD_LETTERS),
        _row(DEAD_LETTER_TOPIC, _STRING, "", _DEAD_LETTERS),
        _of_broker("share.assignment.interval.ms", "Shortest time between two target assignments of this share group."),
        _row(
            "share.auto.offset.reset",
            _STRING,
            "latest",
            "Where this share group begins: `latest`, `earliest` or `by_duration:` and an ISO-8601 duration.",
            Validator("a strategy", _check_start),
        ),
        _of_broker("share.delivery.count.limit", "Deliveries of a record after which the record is archived."),
        _of_broker("share.heartbeat.interval.ms", "Interval of the heartbeats of this share group's members."),
        _row(
            "share.isolation.level",
            _STRING,
            "read_uncommitted",
            "With `read_committed`, records of open and aborted transactions are not delivered.",
            any_of("read_committed", "read_uncommitted"),
        ),
        _of_broker("share.partition.max.record.locks", "Maximum number of records in flight in a partition."),
        _of_broker("share.record.lock.duration.ms", "How long a member holds a record before others may get it."),
        _row("share.renew.acknowledge.enable", _BOOLEAN, True, "Allow members to renew their locks (KIP-1222)."),
        _of_broker("share.session.timeout.ms", "Time after which a silent member is removed from this share group."),
        _row("streams.assignment.interval.ms", _INT, 1_000, _STREAMS, at_least(0)),
        _row(ASSIGNOR_NAME, _STRING, None, _STREAMS, None, "group.streams.assignors"),
        _row("streams.heartbeat.interval.ms", _INT, 5_000, _STREAMS, at_least(1)),
        _row("streams.initial.rebalance.delay.ms", _INT, 3_000, _STREAMS, at_least(0)),
        _row("streams.num.standby.replicas", _INT, 0, _STREAMS, at_least(0)),
        _row(RACK_TAGS, ConfigType.LIST, [], _STREAMS),
        _row("streams.session.timeout.ms", _INT, 45_000, _STREAMS, at_least(1)),
    )
}
"""The table, by name."""

_LIMITED = (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    ASSIGNMENT_INTERVAL_MS,
    "share.heartbeat.interval.ms",
    "share.session.timeout.ms",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "share.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
    "streams.assignment.interval.ms",
)
LIMITS = {
    name: tuple(f"group.{kind}.{limit}.{rest}" for limit in ("min", "max"))
    for name in _LIMITED
    for kind, _, rest in (name.partition("."),)
}
"""The broker's configurations that limit a group's own value, in the order of Kafka's checks."""
_MAX_STANDBYS = ("streams.num.standby.replicas", "group.streams.max.standby.replicas")
_SESSIONS = [
    (f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms") for kind in ("consumer", "share", "streams")
]

_OF_THE_BROKER: Mapping[str, Callable[[BrokerConfig], int]] = {
    name: attrgetter(GROUP_CONFIGS[name].synonyms[0].replace(".", "_"))
    for name in LIMITS
    if not name.startswith("streams.")
}


def validate_group_configs(outcome: Mapping[str, str], config: BrokerConfig) -> None:
    """Check all of a group's configurations after a change. Raises KafkaError(INVALID_CONFIG) (`GroupConfig.validate`)."""
    for name in outcome:
        if name not in GROUP_CONFIGS:
            raise _refusal(f"Unknown group config name: {name}")
    tags = [tag.strip() for tag in outcome.get(RACK_TAGS, "").split(",")]
    if len({*tags}) < len(tags):
        raise _refusal(f"{RACK_TAGS} must not contain duplicate tag keys.")
    try:
        values = {name: GROUP_CONFIGS[name].parse(text) for name, text in outcome.items()}
    except ConfigError as error:
        raise _refusal(str(error)) from None
    for name, limits in LIMITS.items():
        lowest, highest = (_number(_of_the_broker(config, limit)) for limit in limits)
        if name in values and not lowest <= _number(values[name]) <= highest:
            raise _refusal(f"{name} must be in the range {lowest} to {highest} inclusive.")
    name, limit = _MAX_STANDBYS
    most = _number(_of_the_broker(config, limit))
    if name in values and _number(values[name]) > most:
        raise _refusal(f"{name} must be less than or equal to {most}")
    assignors = _of_the_broker(config, "group.streams.assignors")
    assert isinstance(assignors, list)
    if ASSIGNOR_NAME in values and values[ASSIGNOR_NAME] not in assignors:
        raise _refusal(
            f"{ASSIGNOR_NAME} '{values[ASSIGNOR_NAME]}' is not a registered task assignor. Registered assignors are: "
            f"[{', '.join(assignors)}]."
        )
    for pair in _SESSIONS:
        session, heartbeat = (
            values.get(name, _of_the_broker(config, GROUP_CONFIGS[name].synonyms[0])) for name in pair
        )
        if _number(session) <= _number(heartbeat) and values.keys() & {*pair}:
            raise _refusal(f"{pair[0]} must be greater than {pair[1]}")
    if str(values.get(DEAD_LETTER_TOPIC, "")).startswith("__"):
        raise _refusal(f"{DEAD_LETTER_TOPIC}: DLQ topic name must not start with '__'")


def _of_the_broker(config: BrokerConfig, name: str) -> Value:
    return KAFKA_ONLY[name].default if name in KAFKA_ONLY else config[name]


def value_of_group(name: str, overrides: Mapping[str, str], config: BrokerConfig) -> int:
    """Return a group's own value, clamped to the broker's limits (`GroupConfig.evaluate`); if it has none, the broker's value."""
    text = overrides.get(name)
    if text is None:
        return _OF_THE_BROKER[name](config)
    lowest, highest = LIMITS[name]
    return max(_number(_of_the_broker(config, lowest)), min(int(text), _number(_of_the_broker(config, highest))))


def text_of_group(name: str, overrides: Mapping[str, str]) -> str:
    """Return the value of a configuration without a broker-wide default: the group's own, else the default in the table."""
    return overrides.get(name, str(GROUP_CONFIGS[name].default).lower())


def duration_ms(start: str) -> int | None:
    """Return the milliseconds in a valid `by_duration:...` value of `share.auto.offset.reset`; None for other values."""
    match = _DURATION.fullmatch(start)
    if match is None:
        return None
    seconds = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    return round(sum(float(match[unit] or 0) * seconds[unit] for unit in seconds) * 1000)


def describe_group_configs(overrides: Mapping[str, str], config: BrokerConfig) -> list[DescribedConfig]:
    """Return every configuration of a group, with its value and source."""
    described = []
    for key in GROUP_CONFIGS.values():
        synonyms = _synonyms(key, config)
        if key.name in overrides:
            synonyms.insert(0, ConfigSynonym(key.name, overrides[key.name], ConfigSource.GROUP_CONFIG))
        described.append(
            DescribedConfig(
                name=key.name,
                value=synonyms[0].value,
                source=synonyms[0].source,
                type=key.type,
                synonyms=tuple(synonyms),
                documentation=key.documentation,
            )
        )
    return described


def _synonyms(key: ConfigKey, config: BrokerConfig) -> list[ConfigSynonym]:
    """Return the sources of a value that a group has not set itself: the broker's configuration, or the default."""
    name = key.synonyms[0] if key.synonyms else key.name
    if key.synonyms and name not in KAFKA_ONLY:
        return list(config.sources(name))
    row = KAFKA_ONLY.get(name, key)
    return [ConfigSynonym(name, row.shown(row.default), ConfigSource.DEFAULT_CONFIG)]


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
