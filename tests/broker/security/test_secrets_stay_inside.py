"""Secrets that were planted in a broker's configuration and in requests, searched in all that it says."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.config_key import ConfigError
from tests.broker.http_asking import ask
from tests.broker.security.sasl.sasl_wire import HANDLER, NAME, PLAIN_MODULE, UNSECURED, SaslClient, bearer, scram_final
from tests.broker.security.tls.certificates import broker_properties
from tests.broker.wire import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient

BROKER = 4
PLANTED = {
    name: f"planted-{name}-7c1f"
    for name in ("user", "jaas", "guess", "http-token", "registry", "bearer", "spark", "altered")
}
PATHS = (
    "/", "/faults", "/forget", "/groups", "/history", "/topics", "/metrics", "/health", "/healthz", "/readyz",
    "/v1/status", "/v1/history", "/v1/jobs", "/v1/openapi.json", "/v1/certificates", "/v1/clock", "/nothing",
)  # fmt: skip


def properties(place: Path) -> dict[str, str]:
    """Every setting that is a secret or may hold one."""
    tokens = place / "tokens"
    tokens.write_text(f"alice:{PLANTED['http-token']}\n")
    tokens.chmod(0o600)
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        f"{NAME}.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_bob="{PLANTED["jaas"]}";',
        HANDLER: UNSECURED,
        "connection.failed.authentication.delay.ms": "1",
        **broker_properties(),
        "diamant.http.listen": "127.0.0.1:0",
        "diamant.http.token.file": str(tokens),
        "diamant.audit.file": str(place / "audit"),
        "diamant.schema.registry.url": "http://127.0.0.1:9",
        "diamant.schema.registry.basic.auth.user.info": f"me:{PLANTED['registry']}",
        "diamant.cleaner.spark.conf.spark.hadoop.fs.s3a.secret.key": PLANTED["spark"],
    }


async def log_in(address: str) -> None:
    """Log in, and fail to, by each mechanism."""
    for user, password in (("alice", PLANTED["user"]), ("bob", PLANTED["jaas"]), ("alice", PLANTED["guess"])):
        async with WireClient(address) as wire:
            client = SaslClient(wire)
            await client.handshake("PLAIN")
            await client.authenticate(f"\0{user}\0{password}".encode())
    async with WireClient(address) as wire:
        client = SaslClient(wire)
        await client.handshake("SCRAM-SHA-256")
        await client.authenticate(b"n,,n=alice,r=abc")
        await client.authenticate(scram_final("n=alice,r=abc", client.token.decode(), PLANTED["guess"]))
    for mechanism, token in (("OAUTHBEARER", bearer(PLANTED["bearer"].encode())), ("PLAIN", PLANTED["guess"].encode())):
        async with WireClient(address) as wire:
            client = SaslClient(wire)
            await client.handshake(mechanism)
            await client.authenticate(token)
    async with WireClient(address) as wire:
        # In place of a handshake: bytes that are no request.
        wire.writer.write(f"GET / {PLANTED['guess']}".encode() * 10)
        await wire.is_closed()


async def answers(broker: Broker) -> list[str]:
    """Return all that the HTTP port says: with the token, with a wrong one, without, and to bodies that are none."""
    said = []
    for token in (PLANTED["http-token"], PLANTED["guess"], None):
        for path in PATHS:
            headers = {"Authorization": None if token is None else f"Bearer {token}"}
            said.append(str(await ask(broker, "GET", path, headers=headers)))
        body = f'{{"topic": "{PLANTED["guess"]}'
        said.append(str(await ask(broker, "POST", "/v1/compact", body, headers={"Authorization": f"Bearer {token}"})))
    return said


async def test_no_secret_is_logged_shown_or_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither logs at DEBUG, the audit log, metrics, pages, the API nor DescribeConfigs have a password, token, key or guess."""
    given = properties(tmp_path)
    # aiohttp and asyncio log what they read only in their own debug modes, which nothing sets.
    with caplog.at_level(logging.DEBUG):
        config = BrokerConfig(data_dir=tmp_path / "data", properties=given, users={"alice": PLANTED["user"]})
        async with Broker(config) as broker:
            addresses = {listener.name: listener.address for listener in broker.addresses.kafka}
            await log_in(addresses["SASL_PLAINTEXT"])
            said = await answers(broker)
            async with WireClient(addresses["PLAINTEXT"]) as wire:
                broken = f'{PLAIN_MODULE} user_carol="{PLANTED["altered"]}" "'
                entry = {"name": f"{NAME}.plain.sasl.jaas.config", "config_operation": 0, "value": broken}
                altered = [{"resource_type": BROKER, "resource_name": "1", "configs": [entry]}]
                fields = {"resources": altered, "validate_only": False}
                said.append(str(await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, fields)))
                resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
                fields = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
                said.append(str(await wire.call(DESCRIBE_CONFIGS, 4, fields)))
    said += [caplog.text, str(config), repr(config), (tmp_path / "audit").read_text()]
    key = "".join(given["ssl.keystore.key"].split("-----")[2].split())
    for name, secret in {**PLANTED, "key": key[40:80]}.items():
        spellings = (secret, base64.b64encode(secret.encode()).decode().rstrip("=")[:-1])
        for text in said:
            found = next((text.index(one) for one in spellings if one in text), None)
            # What a caller sends in a body may come back in the answer to that caller alone.
            assert found is None, f"{name}: {text[max(0, found - 300) : found + 100]}"


async def test_a_failure_to_start_names_no_secret(tmp_path: Path) -> None:
    """The error of a configuration that cannot be served has the name of the setting, and not what it holds."""
    for name, value in (
        (f"{NAME}.plain.sasl.jaas.config", f'nonsense user_bob="{PLANTED["jaas"]}" "'),
        ("diamant.users", f'{{"alice": "{PLANTED["user"]}"'),
        ("ssl.keystore.key", f"-----BEGIN {PLANTED['user']}"),
        ("diamant.schema.registry.url", f"http://me:{PLANTED['registry']}@127.0.0.1:x/"),
    ):
        given = {**properties(tmp_path), name: value}
        with pytest.raises((ConfigError, CannotStart)) as raised:
            await Broker(BrokerConfig(data_dir=tmp_path / "data", properties=given)).__aenter__()
        assert not [secret for secret in PLANTED.values() if secret in str(raised.value)], name
