"""Validates, merges and describes topic configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from diamant.cleaner.rules.modes import KAFKA
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import (
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribedConfig,
    Value,
    format_value,
)
from diamant.storage.segments.log_config import LogConfig

if TYPE_CHECKING:
    from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_table import TOPIC_CONFIGS


def validate_topic_configs(overrides: Mapping[str, str | None], broker: BrokerConfig) -> None:
    """Check all configurations of a topic, each by itself, against each other and against the broker's defaults.

    Raises KafkaError(INVALID_CONFIG). ``overrides`` are the topic's configurations *after* the change. Kafka:
    ``LogConfig.validate``.
    """
    for name in overrides:
        _key(name)
    if nulls := sorted(name for name, value in overrides.items() if value is None):
        raise _refusal(f"Null value not supported for topic configs: {','.join(nulls)}")
    values = {name: _parse(name, value) for name, value in overrides.items() if value is not None}
    if values.get("remote.storage.enable"):
        raise _refusal(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage."
        )
    shortest, longest = (
        values.get(name, broker.topic_default(name)) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        raise _refusal(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )


def append_to_list(name: str, current: str | None, addition: str) -> str:
    """Return the value after IncrementalAlterConfigs APPEND. If ``current`` is None, the topic has no value of its own, and the
    default is extended.
    """
    entries = _list_entries("APPEND", name, current)
    return ",".join(entries + [entry for entry in _split(addition) if entry not in entries])


def subtract_from_list(name: str, current: str | None, removal: str) -> str:
    """Return the value after IncrementalAlterConfigs SUBTRACT; missing entries are ignored."""
    entries = _list_entries("SUBTRACT", name, current)
    for entry in _split(removal):
        if entry in entries:
            entries.remove(entry)
    return ",".join(entries)


def log_config(overrides: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """Return the configuration of a topic's logs: the topic's own values over the broker's defaults.

    An override that does not parse is ignored: it was valid for the broker that wrote it, and must not prevent this broker from
    opening the log directory.
    """
    values: dict[str, Any] = {
        field.name: _effective(TOPIC_CONFIGS[field.name.replace("_", ".")], overrides, broker)
        for field in fields(LogConfig)
    }
    values["cleanup_policy"] = frozenset(values["cleanup_policy"])
    internal_bytes = _effective(TOPIC_CONFIGS["internal.segment.bytes"], overrides, broker)
    if internal_bytes is not None:
        values["segment_bytes"] = internal_bytes
    config = LogConfig(**values)
    return config if broker.diamant_cleaner_mode == KAFKA else config.with_clamped_jitter()


def topic_value(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> Value:
    """Return the value of one topic configuration: the topic's own, else the broker's. Raises KeyError for other names."""
    return _effective(TOPIC_CONFIGS[name], overrides, broker)


def describe_topic_configs(overrides: Mapping[str, str], broker: BrokerConfig) -> list[DescribedConfig]:
    """Return every configuration of a topic, with its value and source (Kafka: ``ConfigHelper``, LogConfig half).

    As in Kafka, only the first broker synonym counts as a source: a ``retention.ms`` set by ``log.retention.hours`` has the
    right value, but the source DEFAULT_CONFIG.
    """
    return [
        _describe(key, overrides, broker)
        for key in TOPIC_CONFIGS.values()
        if not key.is_internal or key.name in overrides
    ]


def _describe(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerConfig) -> DescribedConfig:
    value = format_value(_effective(key, overrides, broker))
    synonyms: list[ConfigSynonym] = []
    if key.name in overrides:
        synonyms.append(ConfigSynonym(key.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    if key.synonyms:
        synonyms += broker.sources(key.synonyms[0])
    return DescribedConfig(
        name=key.name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=key.type,
        synonyms=tuple(synonyms),
        documentation=key.documentation,
    )


def _effective(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerConfig) -> Value:
    own = overrides.get(key.name)
    if own is not None:
        try:
            return key.parse(own)
        except ConfigError:
            pass  # see log_config
    return broker.topic_default(key.name)


def _parse(name: str, value: str) -> Value:
    key = _key(name)
    try:
        return key.parse(value)
    except ConfigError as error:
        raise _refusal(str(error)) from None


def _key(name: str) -> ConfigKey:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise _refusal(f"Unknown topic config name: {name}")
    return key


def _list_entries(operation: str, name: str, current: str | None) -> list[str]:
    key = _key(name)
    if key.type is not ConfigType.LIST:
        raise _refusal(f"Can't {operation} to key {name} because its type is not LIST.")
    return _split(format_value(key.default) or "" if current is None else current)


def _split(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
