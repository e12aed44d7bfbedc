"""Topic configurations, compared with the responses of a real Kafka 4.3.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.topic_values import (
    append_to_list,
    describe_topic_configs,
    log_config,
    subtract_from_list,
    validate_topic_configs,
)
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import ConfigError, ConfigKey, ConfigSource, format_value, settings_of
from diamant.storage.segments.log_config import LogConfig

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> dict[str, Any]:
    """Return a file recorded from a real Kafka."""
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return content


NEW_IN_4_4 = golden("new_configs_4.4.0.json")
REAL = golden("topic_configs_4.3.1.json")["configs"] | NEW_IN_4_4["topic"]
REAL_ANSWERS = golden("topic_config_values_4.3.1.json")["cases"] + NEW_IN_4_4["topic_values"]


def test_the_table_has_what_kafka_has() -> None:
    """Every topic configuration of Kafka has its type and default, and there are no others but Diamant's own."""
    table = {key.name: key for key in TOPIC_CONFIGS.values() if not key.is_internal}
    assert table.keys() == REAL.keys()
    for name, real in REAL.items():
        assert (table[name].type.name, format_value(table[name].default)) == (real["type"], real["default"]), name


def test_a_new_topic_is_described_as_kafka_describes_it() -> None:
    """DescribeConfigs of a topic without its own configurations gives Kafka's values and broker synonyms."""
    described = {config.name: config for config in describe_topic_configs({}, BrokerConfig())}
    assert described.keys() == REAL.keys()
    for name, real in REAL.items():
        assert described[name].value == real["default"], name
        assert [synonym.name for synonym in described[name].synonyms] == real["synonyms"], name
        assert described[name].source is ConfigSource.DEFAULT_CONFIG


@pytest.mark.parametrize(("name", "value", "message"), REAL_ANSWERS)
def test_values_are_taken_and_refused_as_by_kafka(name: str, value: str, message: str | None) -> None:
    """Each value tried with a real Kafka has the same outcome, including the exact message."""
    if message is None:
        validate_topic_configs({name: value}, BrokerConfig())
        return
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs({name: value}, BrokerConfig())
    assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_CONFIG, message)


def test_compaction_lags_must_not_cross() -> None:
    """The minimum lag may not exceed the maximum lag, from any source; it may equal it."""
    validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"}, BrokerConfig())
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, BrokerConfig())
    assert caught.value.detail == (
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    )
    broker = BrokerConfig(properties={"log.cleaner.min.compaction.lag.ms": "100"})
    with pytest.raises(KafkaError, match="conflict"):
        validate_topic_configs({"max.compaction.lag.ms": "50"}, broker)


def test_a_topic_follows_its_own_then_the_brokers_then_the_default() -> None:
    """The three sources apply in order, to the log and to DescribeConfigs."""
    broker = BrokerConfig(properties={"log.segment.bytes": "2097152", "log.cleanup.policy": "compact,delete"})
    own = {"segment.bytes": "1048577"}
    config = log_config(own, broker)
    assert config.segment_bytes == 1_048_577
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.retention_bytes == -1
    described = {entry.name: entry for entry in describe_topic_configs(own, broker)}
    assert [(synonym.name, synonym.value, int(synonym.source)) for synonym in described["segment.bytes"].synonyms] == [
        ("segment.bytes", "1048577", 1),
        ("log.segment.bytes", "2097152", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert described["cleanup.policy"].source is ConfigSource.STATIC_BROKER_CONFIG


@pytest.mark.parametrize("name", ["min.compaction.lag.ms", "max.compaction.lag.ms"])
def test_a_topics_own_lag_counts_before_the_brokers(name: str) -> None:
    """The broker's default applies to topics without a value, in the log and in DescribeConfigs."""
    broker = BrokerConfig(properties={f"log.cleaner.{name}": "5000"})
    field = name.replace(".", "_")
    assert getattr(log_config({}, broker), field) == 5000
    assert getattr(log_config({name: "7000"}, broker), field) == 7000
    described = {entry.name: entry for entry in describe_topic_configs({name: "7000"}, broker)}[name]
    assert [(synonym.name, synonym.value, int(synonym.source)) for synonym in described.synonyms][:2] == [
        (name, "7000", 1),
        (f"log.cleaner.{name}", "5000", 4),
    ]


def test_times_from_hours_are_described_without_their_source() -> None:
    """As in Kafka, retention.ms from log.retention.hours has the value, but the source DEFAULT_CONFIG."""
    broker = BrokerConfig(properties={"log.retention.hours": "1"})
    described = {entry.name: entry for entry in describe_topic_configs({}, broker)}["retention.ms"]
    assert (described.value, described.source, described.synonyms) == ("3600000", ConfigSource.DEFAULT_CONFIG, ())


def test_the_logs_defaults_are_kafkas() -> None:
    """A default LogConfig equals that of a topic in a broker without configuration."""
    assert log_config({}, BrokerConfig()) == LogConfig()


def test_a_topic_sets_every_field_of_its_log() -> None:
    """A topic's own value, other than the default, reaches the log."""
    changed = {key.name: other_value(key) for key in settings_of(LogConfig)}
    config = log_config(changed, BrokerConfig(diamant_cleaner_mode="kafka"))
    shown = {key.name: getattr(config, key.name.replace(".", "_")) for key in settings_of(LogConfig)}
    expected = {name: TOPIC_CONFIGS[name].parse(text) for name, text in changed.items()}
    assert shown == {**expected, "cleanup.policy": frozenset({"compact"})}


def other_value(key: ConfigKey) -> str:
    """Return an allowed value that is not the default."""
    words = key.allowed.removeprefix("list of ").split(", ")
    for text in ("false", "true", "1", "2", "4194304", "0.25", *words):
        try:
            if key.parse(text) not in (key.default, ["delete"]):
                return text
        except ConfigError:
            continue
    raise AssertionError(f"{key.name} allows only {key.allowed}")


def test_internal_segment_bytes_wins_and_is_shown_once_set() -> None:
    """Kafka's configuration for tests allows smaller segments than segment.bytes."""
    own = {"internal.segment.bytes": "1000"}
    assert log_config(own, BrokerConfig()).segment_bytes == 1000
    assert "internal.segment.bytes" in {entry.name for entry in describe_topic_configs(own, BrokerConfig())}


def test_a_value_that_no_longer_parses_does_not_stop_the_log() -> None:
    """A directory of another broker may hold values that are refused here; its logs use the broker's default."""
    assert log_config({"retention.ms": "soon", "made.up": "1"}, BrokerConfig()) == LogConfig()


def test_values_are_described_as_they_were_understood() -> None:
    """As in Kafka, stored text is shown parsed: without blanks, doubles in Java's notation, duplicates merged."""
    own = {"cleanup.policy": "compact,compact", "min.cleanable.dirty.ratio": "1e-2", "preallocate": " TRUE "}
    described = {entry.name: entry.value for entry in describe_topic_configs(own, BrokerConfig())}
    assert [described[name] for name in own] == ["compact", "0.01", "true"]


def test_lists_can_be_appended_to_and_subtracted_from() -> None:
    """IncrementalAlterConfigs APPEND and SUBTRACT start from the topic's value, else from the default."""
    assert append_to_list("cleanup.policy", None, "compact") == "delete,compact"
    assert append_to_list("cleanup.policy", "compact", "compact") == "compact"
    assert subtract_from_list("cleanup.policy", "compact,delete", "compact") == "delete"
    assert subtract_from_list("cleanup.policy", "compact", "delete") == "compact"
    with pytest.raises(KafkaError, match=r"Can't APPEND to key retention\.ms because its type is not LIST\."):
        append_to_list("retention.ms", None, "9")
