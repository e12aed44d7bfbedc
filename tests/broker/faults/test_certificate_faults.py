"""Faulty certificates, which a client must refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.client_config import ClientRefused
from diamant.broker.faults.spec import FaultError


@pytest.fixture(scope="module")
def broker() -> Iterator[BlockingBroker]:
    """A broker with a throw-away CA."""
    with Broker(tls=True, diamant_http_listen="") as running:
        yield running


@pytest.mark.parametrize(("kind", "reason"), [("expired", "certificate has expired"), ("wrong-host", "not valid for")])
def test_a_client_that_looks_refuses_it(broker: BlockingBroker, kind: str, reason: str) -> None:
    """The fault fires as often as specified, and each firing is recorded; the next connection is normal."""
    client = broker.client_config()
    client.check()
    with broker.faults.add(certificate=kind, times=1) as fault:
        with pytest.raises(ClientRefused, match=reason):
            client.check()
        client.check()
        assert [firing.api for firing in fault.fired] == ["TLS handshake"]
        assert fault.count == 1
    client.check()


def test_a_certificate_fault_excludes_fields_of_requests(broker: BlockingBroker) -> None:
    """A certificate fault excludes fields of requests, and has two kinds."""
    with pytest.raises(FaultError, match="certificate: expected one of expired, wrong-host, got 'late'"):
        broker.faults.add(certificate="late")
    with pytest.raises(FaultError, match="topic and certificate"):
        broker.faults.add(certificate="expired", topic="t")


def test_a_certificate_fault_needs_the_brokers_own_ca(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without TLS, a certificate fault is refused."""
    with Broker(data_dir=tmp_path_factory.mktemp("data"), diamant_http_listen="") as plain:
        with pytest.raises(FaultError, match=r"BrokerConfig\(tls=True\)"):
            plain.faults.add(certificate="expired")
        assert plain.faults.list() == []
