"""A test broker with TLS and a throw-away CA: each library connects with its own configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.client_config import ClientConfig, ClientRefused
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.security.tls.tls_listeners import hosts_of
from tests.broker.security.writing import LIBRARIES, Write


@pytest.fixture(scope="module")
def broker() -> Iterator[BlockingBroker]:
    """A broker that requires certificates on one listener and a login on another."""
    with Broker(
        listen=["SSL://127.0.0.1:0", "SASL_SSL://127.0.0.1:0"],
        tls=True,
        users={"alice": "secret"},
        ssl_client_auth="required",
        diamant_http_listen="",
    ) as running:
        running.create_topic("topic")
        yield running


def test_clients_with_credentials_connect(broker: BlockingBroker) -> None:
    """Clients connect with a certificate, or with a password over TLS; not without a certificate or with an unknown CA."""
    broker.client_config(certificate="bob").check()
    broker.client_config("alice").check()
    assert broker.client_config("alice").security_protocol == "SASL_SSL"
    for refused in (broker.client_config(), ClientConfig(broker.client_config().bootstrap_servers, "SSL")):
        with pytest.raises(ClientRefused):
            refused.check()


def test_without_a_throw_away_ca_no_certificates_are_made(tmp_path: Path) -> None:
    """The error names the setting that provides the CA."""
    with Broker(data_dir=tmp_path) as plain:
        with pytest.raises(ValueError, match=r"BrokerConfig\(tls=True\)"):
            plain.client_config(certificate="bob")


@pytest.mark.slow
@pytest.mark.parametrize("write", LIBRARIES)
async def test_each_library_comes_in(broker: BlockingBroker, write: Write) -> None:
    """Each library writes with a certificate and with a password."""
    for config in (broker.client_config(certificate="bob"), broker.client_config("alice")):
        await write(config, "topic")


def test_the_certificate_has_the_names_that_clients_use() -> None:
    """The certificate has the names of this machine and the advertised ones, but not 0.0.0.0."""
    config = BrokerConfig(
        listen="0.0.0.0:9092", tls=True, advertised_listeners="SSL://broker.example:9092", log_dirs="unused"
    )
    hosts = hosts_of(config)
    assert {"localhost", "127.0.0.1", "::1", "broker.example"} <= set(hosts)
    assert "0.0.0.0" not in hosts
