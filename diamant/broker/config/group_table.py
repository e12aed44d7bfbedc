"""The table of group configurations (resource type 32, KIP-848), with their validation and description.

A group's own value overrides the broker's, within the broker's limits. A configuration may be set before its group exists.
Kafka also has rows for share and streams groups.

Source: GroupConfig, GroupConfigManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import (
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribedConfig,
    at_least,
)

if TYPE_CHECKING:
    from diamant.broker.config.broker_config import BrokerConfig

ASSIGNMENT_INTERVAL_MS = "consumer.assignment.interval.ms"
SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"

GROUP_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            ASSIGNMENT_INTERVAL_MS,
            ConfigType.INT,
            1_000,
            "Shortest time between two target assignments of this consumer group.",
            at_least(0),
            ("group.consumer.assignment.interval.ms",),
        ),
        ConfigKey(
            HEARTBEAT_INTERVAL_MS,
            ConfigType.INT,
            5_000,
            "Interval of the heartbeats of this consumer group's members.",
            at_least(1),
            ("group.consumer.heartbeat.interval.ms",),
        ),
        ConfigKey(
            SESSION_TIMEOUT_MS,
            ConfigType.INT,
            45_000,
            "Time after which a silent member is removed from this consumer group.",
            at_least(1),
            ("group.consumer.session.timeout.ms",),
        ),
    )
}
"""The table, by name."""

_LIMITS = {
    ASSIGNMENT_INTERVAL_MS: ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    HEARTBEAT_INTERVAL_MS: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    SESSION_TIMEOUT_MS: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
}


_OF_THE_BROKER: Mapping[str, Callable[[BrokerConfig], int]] = {
    name: attrgetter(key.synonyms[0].replace(".", "_")) for name, key in GROUP_CONFIGS.items()
}


def validate_group_configs(outcome: Mapping[str, str], config: BrokerConfig) -> None:
    """Check a group's configurations as they are after a change; raises KafkaError(INVALID_CONFIG) (`GroupConfig.validate`)."""
    for name in outcome:
        if name not in GROUP_CONFIGS:
            raise _refusal(f"Unknown group config name: {name}")
    try:
        values = {name: GROUP_CONFIGS[name].parse(text) for name, text in outcome.items()}
    except ConfigError as error:
        raise _refusal(str(error)) from None
    for name, (lowest, highest) in _LIMITS.items():
        value = values.setdefault(name, config[GROUP_CONFIGS[name].synonyms[0]])
        if _number(value) < _number(config[lowest]):
            raise _refusal(f"{name} must be greater than or equal to {lowest}")
        if _number(value) > _number(config[highest]):
            raise _refusal(f"{name} must be less than or equal to {highest}")
    if _number(values[SESSION_TIMEOUT_MS]) <= _number(values[HEARTBEAT_INTERVAL_MS]):
        raise _refusal(f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}")


def value_of_group(name: str, overrides: Mapping[str, str], config: BrokerConfig) -> int:
    """A group's own value, clamped to the broker's current limits (`GroupConfig.evaluate`), or the broker's."""
    text = overrides.get(name)
    if text is None:
        return _OF_THE_BROKER[name](config)
    lowest, highest = _LIMITS[name]
    return max(_number(config[lowest]), min(int(text), _number(config[highest])))


def describe_group_configs(overrides: Mapping[str, str], config: BrokerConfig) -> list[DescribedConfig]:
    """Every configuration of a group, with its value and source."""
    described = []
    for key in GROUP_CONFIGS.values():
        synonyms = list(config.sources(key.synonyms[0]))
        if key.name in overrides:
            synonyms.insert(0, ConfigSynonym(key.name, overrides[key.name], ConfigSource.GROUP_CONFIG))
        described.append(
            DescribedConfig(
                name=key.name,
                value=synonyms[0].value,
                source=synonyms[0].source,
                type=key.type,
                is_read_only=False,
                is_sensitive=False,
                synonyms=tuple(synonyms),
                documentation=key.documentation,
            )
        )
    return described


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
