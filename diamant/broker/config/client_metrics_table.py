"""The table of client metrics subscriptions (resource type 16, KIP-714), which are checked, stored and shown.

No client sends metrics, because the two APIs for them are not served. A Kafka broker without a metrics receiver does the same.

Source: ClientMetricsConfigs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import (
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    DescribedConfig,
    format_value,
)

MIN_INTERVAL_MS = 100
MAX_INTERVAL_MS = 3_600_000

_MATCHABLE = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

CLIENT_METRICS_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey("interval.ms", ConfigType.INT, 300_000, "Interval at which clients send their metrics."),
        ConfigKey("match", ConfigType.LIST, [], "Selected clients, as `attribute=regular expression`; empty: all."),
        ConfigKey("metrics", ConfigType.LIST, [], "Prefixes of the requested metrics; empty: none."),
    )
}
"""The table, by name."""


def validate_client_metrics_configs(outcome: Mapping[str, str]) -> None:
    """Check all of a subscription's configurations after a change. Raises KafkaError (`ClientMetricsConfigs.validate`)."""
    for name in outcome:
        if name not in CLIENT_METRICS_CONFIGS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    try:
        values = {name: CLIENT_METRICS_CONFIGS[name].parse(text) for name, text in outcome.items()}
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    interval_ms = values.get("interval.ms", MIN_INTERVAL_MS)
    assert isinstance(interval_ms, int)
    if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between {MIN_INTERVAL_MS} and "
            f"{MAX_INTERVAL_MS} (1 hour)",
        )
    patterns = values.get("match", [])
    assert isinstance(patterns, list)
    for pattern in patterns:
        _check_pattern(pattern)


def describe_client_metrics_configs(overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """Return every configuration of a subscription, with its value and source."""
    source = ConfigSource.CLIENT_METRICS_CONFIG
    return [
        DescribedConfig(
            name=key.name,
            value=overrides.get(key.name, format_value(key.default)),
            source=source if key.name in overrides else ConfigSource.DEFAULT_CONFIG,
            type=key.type,
            synonyms=(ConfigSynonym(key.name, overrides[key.name], source),) if key.name in overrides else (),
            documentation=key.documentation,
        )
        for key in CLIENT_METRICS_CONFIGS.values()
    ]


def _check_pattern(pattern: str) -> None:
    attribute, separator, expression = pattern.partition("=")
    is_sound = bool(separator) and "=" not in expression and attribute.strip() in _MATCHABLE
    if is_sound:
        try:
            re.compile(expression.strip())
        except re.error:
            is_sound = False
    if not is_sound:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")
