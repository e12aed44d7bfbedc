"""DescribeConfigs of a broker: all of Kafka's names, and the settings of listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.configurations import NOTHING_TO_DO, REAL
from tests.broker.request_fields import DELETE, SET, alteration
from tests.broker.running import running
from tests.broker.wire import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.memory_env import MemoryEnv

BROKER = 4
OWN, OF_ALL, STATIC, DEFAULT = 2, 3, 4, 5


async def describe(wire: WireClient, *names: str, version: int = 4, resource: str = "1") -> dict[str, Any]:
    """Return the entries of DescribeConfigs, by name; all without names."""
    asked = {"resource_type": BROKER, "resource_name": resource, "configuration_keys": list(names) or None}
    fields = {"resources": [asked], "include_synonyms": True, "include_documentation": version >= 3}
    (result,) = (await wire.call(DESCRIBE_CONFIGS, version, fields)).results
    assert result.error_code == 0
    return {entry.name: entry for entry in result.configs}


async def alter(wire: WireClient, name: str, value: str | None, *, resource: str = "1") -> ErrorCode:
    """Set or delete one configuration."""
    request = alteration(BROKER, resource, (name, DELETE if value is None else SET, value))
    return ErrorCode((await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, request)).responses[0].error_code)


def shown(entry: Any) -> tuple[Any, ...]:
    """Value, read-only, source, sensitive, type and synonyms."""
    synonyms = [(one.name, one.value, int(one.source)) for one in entry.synonyms]
    return entry.value, entry.read_only, entry.config_source, entry.is_sensitive, entry.config_type, synonyms


async def test_all_of_kafkas_names_are_described() -> None:
    """Each has Kafka's type; what only Kafka uses has its default and is read-only, and setting it is refused."""
    types = dict(
        zip(["BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"], range(1, 10))
    )
    async with running(MemoryEnv()) as (_, wire):
        found = await describe(wire)
        assert [name for name in REAL if name not in found] == []
        for name, (type_, default, _) in REAL.items():
            assert found[name].config_type == types[type_], name
            assert found[name].documentation, name
            if found[name].documentation.startswith("Kafka's: nothing"):
                assert found[name].value == NOTHING_TO_DO.get(name, default), name
                assert found[name].config_source == DEFAULT
        for name in ("num.io.threads", "broker.session.timeout.ms"):
            assert found[name].read_only
            assert await alter(wire, name, "3") is ErrorCode.INVALID_REQUEST
            assert (await describe(wire, name))[name].value == found[name].value
        kafkas = [name for name in found if name in REAL]
        assert kafkas == sorted(kafkas)


async def test_settings_kept_for_kafka_are_described_as_they_were_set() -> None:
    """Settings of TLS and SASL without effect here, and throttles of copies: as Kafka shows them."""
    name = "sasl.mechanism.inter.broker.protocol"
    throttle = "leader.replication.throttled.rate"
    async with running(MemoryEnv()) as (_, wire):
        assert throttle not in await describe(wire)
        assert await alter(wire, name, "PLAIN") is ErrorCode.NONE
        assert await alter(wire, throttle, "100", resource="") is ErrorCode.NONE
        found = await describe(wire, name, throttle)
        synonyms = [(name, "PLAIN", OWN), (name, "GSSAPI", DEFAULT)]
        assert shown(found[name]) == ("PLAIN", False, OWN, False, 2, synonyms)
        assert shown(found[throttle]) == ("100", False, OF_ALL, False, 5, [(throttle, "100", OF_ALL)])


async def test_clients_get_the_advertised_listeners() -> None:
    """If none are advertised, clients get the actual port, and the host at which they reached a listener of every interface."""
    for listen in ("127.0.0.1:0", "0.0.0.0:0"):
        async with running(MemoryEnv(), listen=listen) as (broker, wire):
            port = broker.bootstrap_servers.rpartition(":")[2]
            entry = (await describe(wire, "advertised.listeners"))["advertised.listeners"]
            assert entry.value == f"PLAINTEXT://127.0.0.1:{port}"


@pytest.mark.parametrize("version", [1, 4])
async def test_a_listeners_settings_are_described(version: int) -> None:
    """A listener's settings have their values, unless they are passwords, and the broker's setting among the synonyms; read-only,
    as in Kafka.
    """
    prefix = "listener.name.plaintext."
    async with running(MemoryEnv(), max_connections=70) as (_, wire):
        for name, value in (
            ("max.connections", "9"),
            ("ssl.keystore.location", "/etc/passwd"),
            ("ssl.keystore.password", "secret"),
            ("scram-sha-256.sasl.jaas.config", "secret"),
            ("connections.max.reauth.ms", "5"),
            ("ssl.endpoint.identification.algorithm", ""),
            ("no.such", "1"),
        ):
            assert await alter(wire, prefix + name, value) is ErrorCode.NONE, name
        assert await alter(wire, f"{prefix}max.connections", "8", resource="") is ErrorCode.NONE
        found = await describe(wire, version=version)
        synonyms = [
            (f"{prefix}max.connections", "9", OWN),
            (f"{prefix}max.connections", "8", OF_ALL),
            ("max.connections", "70", STATIC),
            ("max.connections", "2147483647", DEFAULT),
        ]
        expected = {
            "max.connections": ("9", False, 3),
            "ssl.keystore.location": ("/etc/passwd", False, 2),
            "ssl.keystore.password": (None, True, 9),
            "scram-sha-256.sasl.jaas.config": (None, True, 9),
            "connections.max.reauth.ms": ("5", False, 5),
            "ssl.endpoint.identification.algorithm": ("", False, 2),
            "no.such": (None, True, 0),
        }
        for name, (value, is_sensitive, type_) in expected.items():
            entry = found[prefix + name]
            assert (entry.value, entry.is_sensitive, entry.config_source, entry.read_only) == (
                value,
                is_sensitive,
                OWN,
                True,
            )
            assert getattr(entry, "config_type", type_) == type_
        limit = f"{prefix}max.connections"
        assert shown((await describe(wire, limit))[limit]) == ("9", True, OWN, False, 3, synonyms)
        of_all = (await describe(wire, limit, resource=""))[limit]
        assert (of_all.value, of_all.config_source) == ("8", OF_ALL)


async def test_a_listeners_settings_of_the_start_are_described(tmp_path: Path) -> None:
    """Settings in server.properties have its source; a password among them is hidden."""
    name, password = "listener.name.inside.max.connections", "listener.name.inside.scram-sha-256.sasl.jaas.config"
    protocol = "sasl.mechanism.inter.broker.protocol"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    given = {name: "33", password: module, protocol: "SCRAM-SHA-256", "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    listeners = {"listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OPEN:PLAINTEXT"}
    listen = ["OPEN://127.0.0.1:0", "INSIDE://127.0.0.1:0"]
    config = BrokerConfig(listen=listen, data_dir=tmp_path, properties={**given, **listeners})
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers.split(",")[0]) as wire:
        found = await describe(wire, name, password, protocol)
        assert [(one.value, one.config_source, one.read_only) for one in found.values()] == [
            ("33", STATIC, True),
            (None, STATIC, True),
            ("SCRAM-SHA-256", STATIC, False),
        ]


def test_a_warning_suggests_no_other_name_for_one_of_kafkas() -> None:
    """Kafka's names are no typing errors; those of a listener are corrected with their prefix."""
    given = {
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "num.io.threads": "8",
        "listener.name.inside.num.network.threads": "3",
        "max.conections": "5",
        "listener.name.inside.max.conections": "5",
        "listener.name.inside.plain.sasl.jaas.confg": "x",
    }
    found = dict(one.split(" has no effect: ") for one in BrokerConfig(properties=given).warnings)
    text = "it is not a configuration that Diamant uses."
    assert found == {
        "sasl.mechanism.inter.broker.protocol": text,
        "num.io.threads": text,
        "listener.name.inside.num.network.threads": text,
        "max.conections": f"{text} Did you mean max.connections?",
        "listener.name.inside.max.conections": f"{text} Did you mean listener.name.inside.max.connections?",
        "listener.name.inside.plain.sasl.jaas.confg": (
            f"{text} Did you mean listener.name.inside.plain.sasl.jaas.config?"
        ),
    }
