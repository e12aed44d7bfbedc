"""A test broker with TLS and a throw-away CA: each library connects with its own configuration."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.client.client_config import ClientConfig, ClientRefused
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.security.tls.listeners import hosts_of
from diamant.broker.security.tls.throw_away import ThrowAwayCa
from diamant.storage.properties import parse_properties
from tests.broker.security.tls.certificates import written
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker that requires certificates on one listener and a login on another."""
    config = BrokerConfig(
        listen=["SSL://127.0.0.1:0", "SASL_SSL://127.0.0.1:0"],
        data_dir=tmp_path_factory.mktemp("data"),
        tls=True,
        users={"alice": "secret"},
        ssl_client_auth="required",
        diamant_http_listen="",
    )
    with Broker(config) as running:
        running.create_topic("topic")
        yield running


def test_who_belongs_comes_in(broker: BlockingBroker) -> None:
    """Clients connect with a certificate, or with a password over TLS; not without a certificate or with an unknown CA."""
    broker.client_config(certificate="bob").check()
    broker.client_config("alice").check()
    assert broker.client_config("alice").security_protocol == "SASL_SSL"
    for refused in (broker.client_config(), ClientConfig(broker.client_config().bootstrap_servers, "SSL")):
        with pytest.raises(ClientRefused):
            refused.check()


def test_without_a_throw_away_ca_no_certificates_are_made(tmp_path: Path) -> None:
    """The error names the setting that provides the CA."""
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)) as plain:
        with pytest.raises(ValueError, match=r"BrokerConfig\(tls=True\)"):
            plain.client_config(certificate="bob")


def test_the_words_of_java(broker: BlockingBroker) -> None:
    """PEM takes one line in a properties file."""
    config = broker.client_config(certificate="bob")
    properties = parse_properties(config.java())
    assert properties["ssl.truststore.certificates"] == config.ca
    assert (properties["ssl.keystore.key"], properties["ssl.keystore.certificate.chain"]) == (
        config.key,
        config.certificate,
    )
    assert (properties["ssl.keystore.type"], properties["ssl.truststore.type"]) == ("PEM", "PEM")


def test_commands_reach_a_cluster_with_tls(broker: BlockingBroker, tmp_path: Path) -> None:
    """They take the CA from a file, and a user. A wrong file gives an error of one line."""
    config = broker.client_config("alice")
    (tmp_path / "ca.pem").write_text(config.ca or "")
    (tmp_path / "password").write_text("secret\n")
    asked = ["topic", "list", "-b", config.bootstrap_servers, "--user", f"alice:{tmp_path / 'password'}", "--ca"]
    result = CliRunner().invoke(main, [*asked, str(tmp_path / "ca.pem")])
    assert (result.exit_code, "topic" in result.stdout) == (0, True)
    for file, reason in (("password", "expected certificates in PEM"), ("none", "No such file or directory")):
        result = CliRunner().invoke(main, [*asked, str(tmp_path / file)])
        assert result.exit_code == 2
        assert reason in result.stderr


@pytest.mark.slow
def test_confluent_kafka_comes_in(broker: BlockingBroker) -> None:
    """It writes with a certificate and with a password."""
    from confluent_kafka import Producer

    for config in (broker.client_config(certificate="bob"), broker.client_config("alice")):
        producer = Producer(config.confluent())
        producer.produce("topic", b"value")
        assert producer.flush(60) == 0


@pytest.mark.slow
async def test_aiokafka_comes_in(broker: BlockingBroker) -> None:
    """It writes with a certificate and with a password."""
    import aiokafka

    for config in (broker.client_config(certificate="bob"), broker.client_config("alice")):
        async with aiokafka.AIOKafkaProducer(**config.aiokafka()) as producer:
            await producer.send_and_wait("topic", b"value")


@pytest.mark.slow
def test_kafka_python_comes_in(broker: BlockingBroker) -> None:
    """It writes with a certificate and with a password."""
    import kafka

    for config in (broker.client_config(certificate="bob"), broker.client_config("alice")):
        producer = kafka.KafkaProducer(**config.kafka_python())
        producer.send("topic", b"value").get(60)
        producer.close()


def test_addresses_are_those_of_listeners_with_tls() -> None:
    """With users they are SASL_SSL listeners. A listener's own name is kept."""
    assert [str(one) for one in BrokerConfig(listen="127.0.0.1:1", tls=True).listeners] == ["SSL://127.0.0.1:1"]
    assert [str(one) for one in BrokerConfig(tls=True).listeners] == ["SSL://127.0.0.1:9092"]
    config = BrokerConfig(listen=["127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"], users={"alice": "secret"}, tls=True)
    assert [str(one) for one in config.listeners] == ["SASL_SSL://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"]


def test_the_certificate_has_the_names_that_clients_use() -> None:
    """It has the names of this machine and the advertised ones, but not 0.0.0.0."""
    config = BrokerConfig(
        listen="0.0.0.0:9092", tls=True, advertised_listeners="SSL://broker.example:9092", log_dirs="unused"
    )
    hosts = hosts_of(config)
    assert {"localhost", "127.0.0.1", "::1", "broker.example"} <= set(hosts)
    assert "0.0.0.0" not in hosts


async def test_clients_that_the_ca_knows_come_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client must trust the CA, and have a certificate of the CA if one is required."""
    caplog.set_level(logging.WARNING)
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, tls=True, ssl_client_auth="required")
    async with Broker(config) as broker:
        assert broker.node.tls is not None
        ca = broker.node.tls.authority
        assert ca is not None
        for issued, is_known in ((ca.issue("alice"), True), (ThrowAwayCa().issue("alice"), False)):
            context = ssl.create_default_context(cadata=ca.certificate)
            context.load_cert_chain(written(tmp_path, issued))
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", broker.addresses.kafka[0].port, ssl=context, server_hostname="127.0.0.1"
            )
            if is_known:
                await wait_until(lambda: len(broker.services.server.connections) == 1)
                (connection,) = broker.services.server.connections
                assert str(connection.info.principal) == "User:CN=alice"
            else:
                with pytest.raises(ssl.SSLError):
                    await reader.read()
                assert "the client's certificate is refused: " in caplog.text
            writer.close()
