"""The broker's configurations: Kafka's names, precedence and errors."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import get_type_hints

import pytest

from diamant.broker.config.broker_config import BrokerConfig, read_properties, validate_dynamic_config
from diamant.broker.config.broker_table import BROKER_CONFIGS, RACK_AWARE
from diamant.broker.config.listeners import Listener
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.topic_values import log_config
from diamant.broker.handlers.configs.described_broker import describe_broker
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import ConfigError, ConfigSource, format_value
from tests.broker.configurations import NOTHING_TO_DO, REAL

# Each with its reason in the documentation of the configuration.
OTHER_DEFAULTS = {
    "listeners",
    "log.dir",
    "node.id",
    "process.roles",
    "broker.id",
    "group.initial.rebalance.delay.ms",
    "group.coordinator.rebalance.protocols",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "sasl.server.max.receive.size",
    "share.coordinator.state.topic.replication.factor",
}
# Their defaults in the real broker were covered by what its file set.
NOT_ASKED = {"controller.listener.names", "listener.security.protocol.map"}


def test_the_table_agrees_with_kafka() -> None:
    """Every configuration that is not Diamant's own is Kafka's, with the same type, default and dynamic flag."""
    for key in BROKER_CONFIGS.values():
        if key.is_internal or key.name.startswith("diamant."):
            continue
        type_, default, is_read_only = REAL[key.name]
        assert key.type.name == type_, key.name
        if key.name not in OTHER_DEFAULTS | NOT_ASKED:
            assert format_value(key.default) == default, key.name
        if key.name not in ("listeners", "listener.security.protocol.map"):  # dynamic in Kafka, not here
            assert key.is_dynamic == (not is_read_only), key.name


def test_each_other_default_is_documented() -> None:
    """administration.md has a row for each configuration whose default is not Kafka's."""
    page = (Path(__file__).parents[3] / "docs/reference/administration.md").read_text()
    section = page.partition("## Where DescribeConfigs differs")[2].partition("\n## ")[0]
    assert [name for name in sorted({*OTHER_DEFAULTS, *NOT_ASKED, *NOTHING_TO_DO}) if f"`{name}`" not in section] == []


def test_every_attribute_is_a_row() -> None:
    """Every declared attribute of BrokerConfig exists, with the declared type."""
    config = BrokerConfig()
    for name, annotation in get_type_hints(BrokerConfig).items():
        value = getattr(config, name)
        if annotation in (int, bool, float, str):
            assert type(value) is annotation, name


def test_defaults_are_safe_and_local() -> None:
    """Without configuration, the broker listens on this machine only, keeps its data in a local directory, and creates topics
    automatically.
    """
    config = BrokerConfig()
    assert config.listeners == [Listener("PLAINTEXT", "127.0.0.1", 9092)]
    assert config.advertised_listeners == config.listeners
    assert (config.node_id, config.data_dir, config.clock) == (1, "data", "system")
    assert config.auto_create_topics_enable
    assert config.warnings == ()


def test_keywords_properties_and_shorthands(tmp_path: Path) -> None:
    """Python values and Kafka's texts are equivalent; listen and data_dir override both."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path,
        num_partitions=4,
        auto_create_topics_enable=False,
        log_cleanup_policy=["compact", "delete"],
        properties={"num.partitions": "9", "log.segment.bytes": "1048576", "log.dirs": "/elsewhere"},
    )
    assert config.listeners == [Listener("PLAINTEXT", "127.0.0.1", 0)]
    assert config.data_dir == str(tmp_path)
    assert config.num_partitions == 4
    assert not config.auto_create_topics_enable
    assert log_config({}, config).cleanup_policy == {"compact", "delete"}
    assert config["log.segment.bytes"] == 1 << 20


def test_a_server_properties_file_of_kafka_can_be_used(tmp_path: Path) -> None:
    """The file of a combined KRaft node: its controller listener is left out, and so are protocols that no listener uses; names
    without effect give a warning.
    """
    file = tmp_path / "server.properties"
    file.write_text(
        "# a node\n"
        "process.roles=broker,controller\n"
        "node.id=7\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL\n"
        "controller.quorum.bootstrap.servers=localhost:9093\n"
        f"log.dirs={tmp_path}\n"
        "num.io.threads=8\n"
    )
    config = BrokerConfig(properties=read_properties(file))
    assert config.node_id == 7
    assert config.listeners == [Listener("PLAINTEXT", "", 9092)]
    assert config.advertised_listeners == [Listener("PLAINTEXT", "localhost", 9092)]
    assert [warning.split()[0] for warning in config.warnings] == [
        "controller.quorum.bootstrap.servers",
        "num.io.threads",
    ]


def test_unknown_properties_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """An unknown name is accepted. The log warns once, with a suggestion if it looks like a typo."""
    with caplog.at_level(logging.WARNING, logger="diamant.config"):
        config = BrokerConfig(properties={"log.segmnt.bytes": "5", "my.plugin": "x"})
        config.with_dynamic({}, {})
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "Did you mean log.segment.bytes?" in messages[0]
    assert "my.plugin has no effect" in messages[1]


def test_java_classes_and_intervals_that_nothing_uses_are_warned_of() -> None:
    """Policies and other classes of an operator do not run here: they refuse nothing, and the log says so."""
    classes = {
        "create.topic.policy.class.name": "org.example.Policy",
        "alter.config.policy.class.name": "org.example.Policy",
        "replica.selector.class": "org.example.Selector",
    }
    intervals = {"log.flush.offset.checkpoint.interval.ms": "1", "log.flush.start.offset.checkpoint.interval.ms": "1"}
    found = dict(one.split(" has no effect: ") for one in BrokerConfig(properties=classes | intervals).warnings)
    assert found == dict.fromkeys(classes, "Diamant runs no Java classes.") | dict.fromkeys(
        intervals, "it is not a configuration that Diamant uses."
    )
    assert not BrokerConfig(properties={"replica.selector.class": RACK_AWARE}).warnings


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [("data_dirr", "data_dir"), ("log_cleaner_enabled", "log_cleaner_enable"), ("lisen", "listen")],
)
def test_an_unknown_keyword_is_an_error(keyword: str, meant: str) -> None:
    """Keywords are meant for Diamant: with a typo, the data might be stored in ./data."""
    with pytest.raises(TypeError, match=f"^{keyword}: there is no such configuration, did you mean {meant}"):
        BrokerConfig(**{keyword: "x"})
    with pytest.raises(TypeError, match=r"^nonsense: there is no such configuration \(properties"):
        BrokerConfig(nonsense=1)


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-5"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, -1),
    ],
)
def test_retention_takes_the_finest_unit(properties: dict[str, str], retention_ms: int) -> None:
    """Milliseconds override minutes, minutes override hours; a negative value is no limit."""
    assert log_config({}, BrokerConfig(properties=properties)).retention_ms == retention_ms


def test_roll_jitter_and_flush_take_the_finest_unit() -> None:
    """Other times with older names follow the same rule."""
    config = log_config({}, BrokerConfig(properties={"log.roll.hours": "2", "log.roll.jitter.hours": "1"}))
    assert (config.segment_ms, config.segment_jitter_ms) == (7_200_000, 3_600_000)
    config = log_config({}, BrokerConfig(properties={"log.roll.hours": "2", "log.roll.ms": "5"}))
    assert config.segment_ms == 5
    config = log_config({}, BrokerConfig(properties={"log.flush.scheduler.interval.ms": "777"}))
    assert config.flush_ms == 777


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"log.segment.bytes": "10"}, "Invalid value 10 for configuration log.segment.bytes: Value must be at least"),
        ({"num.partitions": "many"}, "Not a number of type INT"),
        ({"log.retention.ms": "0"}, "must be unlimited"),
        ({"log.retention.hours": "0"}, "must be unlimited"),
        ({"log.roll.ms": "0"}, "log.roll.ms: Value must be at least 1"),
        ({"node.id": "1", "broker.id": "2"}, "they must agree"),
        ({"log.dirs": "a,b"}, "expected one directory, got 2"),
        ({"log.dirs": "a", "metadata.log.dir": "b"}, "must be a"),
        ({"process.roles": "controller"}, "must include broker"),
        ({"listeners": "127.0.0.1:9092"}, "is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:70000"}, "is not NAME://host:port"),
        ({"listeners": ""}, "expected at least one for clients"),
        ({"listeners": "A://h:1"}, "has no security protocol"),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "occurs twice"),
        ({"listener.security.protocol.map": "A:NONE"}, "is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:SSL,A:SSL"}, "occurs twice"),
        ({"advertised.listeners": "OTHER://h:1", "listener.security.protocol.map": "OTHER:PLAINTEXT"}, "listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "no host that a client could connect to"),
        ({"queued.max.request.bytes": "10"}, "less than the largest request"),
        (
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "5"},
            "is more than log.cleaner.max.compaction.lag.ms",
        ),
    ],
)
def test_an_invalid_value_is_refused_at_the_start(properties: dict[str, str], message: str) -> None:
    """The error names the configuration and the allowed values."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(properties=properties)
    assert message in str(caught.value)


def test_several_listeners_with_names_and_an_address_for_clients() -> None:
    """Of two named listeners one has another advertised address. IPv6 hosts lose and regain their brackets."""
    config = BrokerConfig(
        properties={
            "listeners": "inside://[::1]:9092, OUTSIDE://:9094",
            "advertised.listeners": "OUTSIDE://example.org:443,INSIDE://[::1]:9092",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        }
    )
    assert config.listeners == [Listener("INSIDE", "::1", 9092), Listener("OUTSIDE", "", 9094)]
    assert [str(listener) for listener in config.advertised_listeners] == [
        "INSIDE://[::1]:9092",
        "OUTSIDE://example.org:443",
    ]


def test_listening_everywhere_advertises_this_machines_name() -> None:
    """Clients cannot connect to 0.0.0.0, so the host name is advertised."""
    for host in ("0.0.0.0", "", "[::]"):
        config = BrokerConfig(listen=f"{host}:9092")
        assert config.advertised_listeners == [Listener("PLAINTEXT", socket.gethostname(), 9092)]


def test_dynamic_values_win_and_go_away_again() -> None:
    """This broker's value overrides all brokers', the file's and the default. Each call replaces the previous values."""
    config = BrokerConfig(properties={"log.segment.bytes": "2000000"})
    changed = config.with_dynamic(
        {"log.segment.bytes": "3000000", "log.retention.ms": "5"}, {"log.segment.bytes": "4000000"}
    )
    assert [(synonym.value, int(synonym.source)) for synonym in changed.sources("log.segment.bytes")] == [
        ("4000000", 2),
        ("3000000", 3),
        ("2000000", 4),
        ("1073741824", 5),
    ]
    assert log_config({}, changed).segment_bytes == 4_000_000
    assert log_config({}, changed).retention_ms == 5
    assert log_config({}, changed.with_dynamic({}, {})) == log_config({}, config)


def test_dynamic_values_without_effect_are_left_alone() -> None:
    """Configurations in the metadata log that are not dynamic, unknown or invalid do not prevent a start."""
    config = BrokerConfig().with_dynamic({"node.id": "9", "made.up": "1"}, {"log.segment.bytes": "1"})
    assert config.node_id == 1
    assert config["log.segment.bytes"] == 1 << 30


def test_dynamic_changes_are_checked() -> None:
    """As in Kafka, read-only names and invalid values give INVALID_REQUEST, and unknown names are stored."""
    validate_dynamic_config("log.segment.bytes", "2000000")
    validate_dynamic_config("made.up", "anything")
    validate_dynamic_config("log.segment.bytes", None)
    for name, value, message in (
        ("node.id", "2", "Cannot update these configs dynamically: [node.id]"),
        ("log.retention.ms", "x", "Invalid value x for configuration log.retention.ms: Not a number of type LONG"),
    ):
        with pytest.raises(KafkaError) as caught:
            validate_dynamic_config(name, value)
        assert (caught.value.code, caught.value.detail) == (ErrorCode.INVALID_REQUEST, message)


def test_the_broker_describes_itself() -> None:
    """DescribeConfigs gives set values as STATIC, others as DEFAULT. Internal rows are shown once they are set."""
    described = {entry.name: entry for entry in describe_broker(BrokerConfig(num_partitions=3), {}, "")}
    assert described["num.partitions"].value == "3"
    assert described["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert described["num.partitions"].is_read_only
    assert not described["log.segment.bytes"].is_read_only
    assert described["log.retention.minutes"].value is None
    assert "log.initial.task.delay.ms" not in described


def test_a_configuration_cannot_be_changed() -> None:
    """Assigning to an attribute raises an error."""
    with pytest.raises(AttributeError, match="immutable"):
        BrokerConfig().node_id = 3  # type: ignore[misc]


def test_a_keyword_of_a_strange_type_is_refused() -> None:
    """Keywords accept bools, numbers, texts, lists and paths."""
    with pytest.raises(ConfigError, match="num_partitions: object is not"):
        BrokerConfig(num_partitions=object())


def test_a_default_of_topics_is_reported_as_the_topic_s() -> None:
    """Its documentation starts with the topic configuration's, as in Kafka, and then says that it is a default."""
    for topic_key in TOPIC_CONFIGS.values():
        first = topic_key.documentation.partition(". ")[0].rstrip(".")
        for synonym in topic_key.synonyms:
            told = BROKER_CONFIGS[synonym].documentation
            assert told.startswith(first) or not told.endswith(f"without `{topic_key.name}`."), synonym
    for name, key in BROKER_CONFIGS.items():
        assert key.documentation, name
        assert not key.documentation.startswith(("Default of", "There is one")), name
