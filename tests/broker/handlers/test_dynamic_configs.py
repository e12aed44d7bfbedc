"""Configurations of a broker set over the wire: checked as the next start would check them, alone and with what is stored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.protocol.errors import ErrorCode
from diamant.storage.config_key import ConfigError, ConfigType
from tests.broker.request_fields import DELETE, SET, alteration
from tests.broker.running import running
from tests.broker.security.tls.certificates import of_broker, written
from tests.broker.wire import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.memory_env import MemoryEnv

TOPIC, BROKER = 2, 4
INVALID = ErrorCode.INVALID_REQUEST
KEY_STORE = "diamant.http.ssl.keystore.location"


async def alter(wire: WireClient, *changes: tuple[str, str | None], name: str = "1") -> tuple[ErrorCode, str]:
    """Set configurations, or delete those with None; the error and its message. `validate_only` must answer the same."""
    asked = [(key, DELETE if value is None else SET, value) for key, value in changes]
    answers = []
    for validate_only in (True, False):
        request = alteration(BROKER, name, *asked, validate_only=validate_only)
        (found,) = (await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
        answers.append((ErrorCode(found.error_code), found.error_message or ""))
    assert answers[0] == answers[1]
    return answers[1]


async def replace(wire: WireClient, resource_type: int, name: str, **configs: str) -> tuple[ErrorCode, str]:
    """AlterConfigs (configs with underscores for dots); the error and its message."""
    entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": entries}
    (found,) = (await wire.call(ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False})).responses
    return ErrorCode(found.error_code), found.error_message or ""


@pytest.mark.parametrize("name", ["1", ""])
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("max.connections", "0", "no client could connect"),
        ("listener.name.plaintext.max.connections", "0", "no client could connect"),
        ("listener.name.plaintext.max.connections", "abc", "Not a number of type INT"),
        ("listener.name.plaintext.max.connection.creation.rate", "0", "Value must be at least 1"),
        ("max.connection.creation.rate", "0", "Value must be at least 1"),
        ("max.connections.per.ip", "0", "max.connections.per.ip.overrides property is set"),
        ("max.connections.per.ip.overrides", "127.0.0.1:0", "no client could connect with 127.0.0.1:0"),
        ("group.consumer.assignment.interval.ms", "99999999", "must be less than or equal to"),
        ("diamant.cleaner.spark.conf.spark.jars", "x", "Cannot update these configs dynamically"),
        ("diamant.cleaner.mode", "kafka", "Cannot update these configs dynamically"),
        ("diamant.compact.wait.max", "1", "there is no such configuration. Did you mean diamant.compact.wait.max.ms?"),
    ],
)
async def test_values_that_lock_out_or_do_nothing_are_refused(name: str, key: str, value: str, reason: str) -> None:
    """Such values are refused as by Kafka 4.3.1; names that begin as ours and are unknown or reserved are refused as well."""
    async with running(MemoryEnv()) as (_, wire):
        code, message = await alter(wire, (key, value), name=name)
        assert code is INVALID
        assert reason in message
        assert (await alter(wire, (key, None), name=name))[0] is ErrorCode.NONE  # what is not set can be deleted


async def test_limits_by_address_are_checked_together() -> None:
    """0 for all addresses needs an override above 0, which then cannot be removed or lowered."""
    limit, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    async with running(MemoryEnv()) as (_, wire):
        assert (await alter(wire, (limit, "0"), (overrides, "10.0.0.1:0")))[0] is INVALID
        assert (await alter(wire, (limit, "0"), (overrides, "127.0.0.1:9")))[0] is ErrorCode.NONE
        for value in (None, "", "10.0.0.1:0"):
            code, message = await alter(wire, (overrides, value))
            assert (code, f"{limit} can be set to zero only if {overrides}" in message) == (INVALID, True)
        assert (await alter(wire, (overrides, None), (limit, None)))[0] is ErrorCode.NONE


async def test_the_cleaners_memory_is_checked_with_what_is_set_elsewhere() -> None:
    """Threads for this broker and memory for all brokers are one configuration; removing one must leave a valid rest."""
    threads, memory = "log.cleaner.threads", "log.cleaner.dedupe.buffer.size"
    async with running(MemoryEnv(), log_cleaner_dedupe_buffer_size=1_500_000) as (_, wire):
        assert (await alter(wire, (threads, "2")))[0] is INVALID
        assert (await alter(wire, (memory, "5000000"), name=""))[0] is ErrorCode.NONE
        assert (await alter(wire, (threads, "2")))[0] is ErrorCode.NONE
        assert (await alter(wire, (memory, None), name=""))[0] is INVALID


def test_a_start_without_any_address_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A start without addresses is refused, as in Kafka; max.connections=0 starts with a warning, since a file can be changed."""
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip can be set to zero only if"):
        BrokerConfig(max_connections_per_ip=0)
    assert BrokerConfig(max_connections=0).max_connections == 0
    assert "max.connections=0: no client can connect" in caplog.text


async def test_a_key_store_of_http_is_read_before_it_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The key store is read even where HTTP has no TLS yet, and where it is off: the next start would open the store, and
    fail.
    """
    good, bad = written(tmp_path, of_broker()), tmp_path / "bad.pem"
    bad.write_text("no key")
    data_dir = tmp_path / "data"
    for http in ("", "127.0.0.1:0"):
        config = BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, diamant_http_listen=http)
        async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
            for path in (bad, tmp_path / "missing.pem"):
                code, message = await alter(wire, (KEY_STORE, str(path)))
                assert (code, str(path) in message) == (INVALID, True)
                assert (await replace(wire, BROKER, "1", **{KEY_STORE: str(path)}))[0] is INVALID
            assert (await alter(wire, ("diamant.http.ssl.keystore.type", "PEM")))[0] is ErrorCode.NONE
            assert (await alter(wire, ("diamant.http.ssl.keystore.type", None)))[0] is ErrorCode.NONE
    with caplog.at_level(logging.WARNING):
        async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
            assert (await alter(wire, (KEY_STORE, str(good))))[0] is ErrorCode.NONE
    assert f"{KEY_STORE}: takes effect at the next start" in caplog.text
    async with Broker(config) as broker:
        assert str(broker.http_url).startswith("https://")


EXTREMES = {
    ConfigType.INT: ["0", "1", "-1", "2147483647"],
    ConfigType.LONG: ["0", "-1", "9223372036854775807"],
    ConfigType.DOUBLE: ["0", "-1", "NaN", "Infinity"],
    ConfigType.STRING: ["", "x", "nohost.invalid:5", "/etc/passwd"],
    ConfigType.LIST: ["", "x", "compact", "PLAIN"],
    ConfigType.PASSWORD: ["", "x"],
}
LISTENERS = [
    f"listener.name.plaintext.{name}"
    for name in ("max.connections", "sasl.enabled.mechanisms", "ssl.keystore.location")
]


@pytest.mark.parametrize("key", [*(key.name for key in BROKER_CONFIGS.values() if key.is_dynamic), *LISTENERS])
async def test_accepted_settings_let_the_next_start_serve_clients(key: str) -> None:
    """Whatever extreme value was accepted, the broker starts with it, and a client can create a topic and delete the value."""
    type_ = BROKER_CONFIGS[key.removeprefix("listener.name.plaintext.")].type
    env = MemoryEnv()
    for value in EXTREMES.get(type_, ["true", "false"]):
        async with running(env) as (_, wire):
            code, _ = await alter(wire, (key, value))
        if code is not ErrorCode.NONE:
            continue
        async with running(env) as (broker, wire):
            stored = broker.node.metadata.image.configs[BROKER, "1"]
            assert stored[key] == value
            assert (await wire.create(f"t{value}".replace(":", "-").replace("/", "-"))).error_code == ErrorCode.NONE
            assert (await alter(wire, (key, None)))[0] is ErrorCode.NONE


async def test_commands_are_refused_where_they_would_do_nothing() -> None:
    """AlterConfigs refuses diamant.compact=now and the clock's entries, CreateTopics the first; as described they are ignored."""
    async with running(MemoryEnv()) as (_, wire):
        created = await wire.create("t", cleanup_policy="compact", diamant_compact="now")
        assert (created.error_code, "IncrementalAlterConfigs" in created.error_message) == (
            ErrorCode.INVALID_CONFIG,
            True,
        )
        assert (await wire.create("t", cleanup_policy="compact", diamant_compact="")).error_code == ErrorCode.NONE
        code, message = await replace(wire, TOPIC, "t", cleanup_policy="compact", diamant_compact="now")
        assert (code, "diamant.compact=now" in message) == (ErrorCode.INVALID_CONFIG, True)
        given = {"diamant_compact": "", "diamant_tombstones": "7"}
        assert (await replace(wire, TOPIC, "t", cleanup_policy="compact", **given))[0] is ErrorCode.NONE
        for key in ("diamant_clock_advance_ms", "diamant_clock_now_ms"):
            code, message = await replace(wire, BROKER, "1", **{key: "1000"})
            assert (code, "moves the clock" in message) == (ErrorCode.INVALID_CONFIG, True)
    async with running(MemoryEnv(), diamant_clock="manual") as (broker, wire):
        described = {"diamant_clock_advance_ms": "0", "diamant_clock_now_ms": str(broker.node.env.clock.now_ms())}
        assert (await replace(wire, BROKER, "1", **described))[0] is ErrorCode.NONE
        code, message = await replace(wire, BROKER, "1", diamant_clock_advance_ms="1000")
        assert code is ErrorCode.INVALID_CONFIG
