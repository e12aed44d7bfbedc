"""Certificates renewed while the broker runs, and their state after a restart."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.security.tls.throw_away import Issued
from tests.broker.security import altering
from tests.broker.security.tls.certificates import authority, client_context

HOSTS = ["localhost", "127.0.0.1"]
LOCATION = "listener.name.ssl.ssl.keystore.location"


def write(file: Path, issued: Issued) -> str:
    """Write a key and its certificate to a file; return the certificate."""
    file.write_text(issued.certificate + issued.key)
    return issued.certificate


async def shown(broker: Broker, address: str = "") -> str:
    """Return the certificate presented to a new connection, by the Kafka port unless another address is given."""
    host, _, port = (address or broker.bootstrap_servers).rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def agreed(broker: Broker) -> str:
    """Return the TLS version of a new connection."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=client_context(Path()))
    writer.close()
    version: str = writer.get_extra_info("ssl_object").version()
    return version


async def alter(broker: Broker, name: str, value: str) -> None:
    """Set a dynamic configuration of the broker."""
    is_secured = broker.addresses.kafka[0].security_protocol == "SSL"
    security = {"security_protocol": "SSL", "ssl_ca_pem": authority().certificate} if is_secured else {}
    await altering.alter(broker.bootstrap_servers, name, value, **security)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a key and a certificate."""
    write(tmp_path / "key.pem", authority().issue("broker", hosts=HOSTS))
    return tmp_path / "key.pem"


@pytest.fixture
def config(tmp_path: Path, file: Path) -> BrokerConfig:
    """A broker with TLS, by that file."""
    return BrokerConfig(
        listen="SSL://127.0.0.1:0", data_dir=tmp_path / "data", properties={"ssl.keystore.location": str(file)}
    )


async def test_a_certificate_is_renewed_without_a_restart(tmp_path: Path, file: Path, config: BrokerConfig) -> None:
    """Setting the location, to the same or another file, reloads the file and holds after a restart."""
    other = tmp_path / "other.pem"
    async with Broker(config) as broker:
        first = await shown(broker)
        second = write(file, authority().issue("broker", hosts=[*HOSTS, "more"]))
        assert await shown(broker) == first
        await alter(broker, LOCATION, str(file))
        assert await shown(broker) == second
        third = write(other, authority().issue("broker", hosts=[*HOSTS, "more"]))
        await alter(broker, LOCATION, str(other))
        assert await shown(broker) == third
    async with Broker(config) as broker:
        assert await shown(broker) == third


async def test_a_store_that_cannot_be_used_changes_nothing(tmp_path: Path, config: BrokerConfig) -> None:
    """An unusable store is refused as in Kafka: INVALID_REQUEST with the reason; nothing changes."""
    bad, stranger, fewer = tmp_path / "bad.pem", tmp_path / "stranger.pem", tmp_path / "fewer.pem"
    bad.write_text("no PEM")
    write(stranger, authority().issue("mallory", hosts=HOSTS))
    write(fewer, authority().issue("broker", hosts=HOSTS[:1]))
    async with Broker(config) as broker:
        first = await shown(broker)
        for location, reason in (
            (tmp_path / "none.pem", "No such file"),
            (bad, "cannot be opened as PKCS12"),
            (stranger, "is CN=mallory, but the current one's is CN=broker; ssl.allow.dn.changes=true allows it"),
            (fewer, "lacks alternative names of the current one: 127.0.0.1; ssl.allow.san.changes=true allows it"),
        ):
            with pytest.raises(KafkaException) as caught:
                await alter(broker, LOCATION, str(location))
            assert caught.value.args[0].name() == "INVALID_REQUEST"
            assert reason in caught.value.args[0].str()
            assert await shown(broker) == first


async def test_other_settings_of_an_open_listener_wait_for_the_next_start(
    tmp_path: Path, config: BrokerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Other settings are stored, as in Kafka 4.3.1, and logged. A new trust store, and values that prevent a start, are
    refused.
    """
    ca = tmp_path / "ca.pem"
    ca.write_text(authority().certificate)
    async with Broker(config) as broker:
        for name, value, reason in (
            ("listener.name.ssl.ssl.truststore.location", str(ca), "Cannot add SSL truststore to an existing listener"),
            ("listener.name.ssl.ssl.client.auth", "required", "and no trust store"),
            ("ssl.cipher.suites", "TLS_OF_MY_OWN", "TLS_OF_MY_OWN"),
        ):
            with pytest.raises(KafkaException, match=reason):
                await alter(broker, name, value)
        await alter(broker, "listener.name.ssl.ssl.enabled.protocols", "TLSv1.2")
        assert await agreed(broker) == "TLSv1.3"
        assert "listener.name.ssl.ssl.enabled.protocols: takes effect at the next start" in caplog.text
    async with Broker(config) as broker:
        assert await agreed(broker) == "TLSv1.2"


async def test_the_certificate_of_http_is_renewed_the_same_way(tmp_path: Path, file: Path) -> None:
    """HTTP's own settings renew its certificate; an unusable file changes nothing."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path / "data",
        diamant_http_listen="127.0.0.1:0",
        diamant_http_ssl_keystore_location=str(file),
    )
    name = "diamant.http.ssl.keystore.location"
    async with Broker(config) as broker:
        assert broker.addresses.http is not None
        http = f"127.0.0.1:{broker.addresses.http.port}"
        first = await shown(broker, http)
        second = write(file, authority().issue("broker", hosts=[*HOSTS, "more"]))
        with pytest.raises(KafkaException, match="No such file"):
            await alter(broker, name, str(tmp_path / "none.pem"))
        assert await shown(broker, http) == first
        await alter(broker, name, str(file))
        assert await shown(broker, http) == second
