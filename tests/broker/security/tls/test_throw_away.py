"""A broker for a test with TLS: nothing to make, nothing to keep."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.security.tls.listeners import hosts_of
from diamant.broker.security.tls.throw_away import ThrowAwayCa
from tests.broker.security.tls.certificates import written
from tests.waiting import wait_until


def test_addresses_are_those_of_listeners_with_tls() -> None:
    """With users of SASL_SSL listeners; a listener's own name stays."""
    assert [str(one) for one in BrokerConfig(listen="127.0.0.1:1", tls=True).listeners] == ["SSL://127.0.0.1:1"]
    assert [str(one) for one in BrokerConfig(tls=True).listeners] == ["SSL://127.0.0.1:9092"]
    config = BrokerConfig(listen=["127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"], users={"alice": "secret"}, tls=True)
    assert [str(one) for one in config.listeners] == ["SASL_SSL://127.0.0.1:1", "PLAINTEXT://127.0.0.1:2"]


def test_the_certificate_has_the_names_that_clients_use() -> None:
    """Those of this machine and those that clients are told, and not 0.0.0.0."""
    config = BrokerConfig(
        listen="0.0.0.0:9092", tls=True, advertised_listeners="SSL://broker.example:9092", log_dirs="unused"
    )
    hosts = hosts_of(config)
    assert {"localhost", "127.0.0.1", "::1", "broker.example"} <= set(hosts)
    assert "0.0.0.0" not in hosts


async def test_clients_that_the_ca_knows_come_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who trusts the CA, with a certificate of it where one is required; others do not."""
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
