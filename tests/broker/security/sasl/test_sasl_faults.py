"""Faults of authentication: the n-th attempt fails, is late, or gets no answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.security.sasl.sasl_wire import ALICE, SaslClient
from tests.broker.wire import WireClient


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """With one user, and failures that are answered at once."""
    properties = {"connection.failed.authentication.delay.ms": "1"}
    config = BrokerConfig("SASL_PLAINTEXT://127.0.0.1:0", tmp_path, properties, users={"alice": "secret"})
    async with Broker(config) as running:
        yield running


async def log_in(broker: Broker) -> tuple[int, str]:
    """Error code and message of a login with the right password; what a client may do then is tried."""
    async with WireClient(broker.bootstrap_servers) as wire:
        client = SaslClient(wire)
        assert (await client.handshake())[0] == 0
        code, message, _, _ = await client.authenticate(ALICE)
        if code:
            assert await wire.is_closed()
        else:
            assert await client.is_served()
        return code, message


async def test_the_second_login_fails(broker: Broker) -> None:
    """As a wrong password does: with its code, and the end of the connection. The others come in."""
    fault = broker.faults.add("SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", after=1, times=1)
    codes = [(await log_in(broker))[0] for _ in range(3)]
    assert codes == [0, 58, 0]
    assert len(fault.fired) == 1


async def test_a_login_that_was_refused_after_applying_is_refused(broker: Broker) -> None:
    """The broker has let the client in, and tells it otherwise: it may stay, as with any other answer that lies."""
    broker.faults.add("SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", after_applying=True, times=1)
    async with WireClient(broker.bootstrap_servers) as wire:
        client = SaslClient(wire)
        await client.handshake()
        assert (await client.authenticate(ALICE))[0] == 58
        assert await client.is_served()


async def test_a_handshake_may_fail(broker: Broker) -> None:
    """Then the connection ends."""
    broker.faults.add("SaslHandshake", error="UNSUPPORTED_SASL_MECHANISM", times=1)
    async with WireClient(broker.bootstrap_servers) as wire:
        assert (await SaslClient(wire).handshake())[0] == 33
        assert await wire.is_closed()
    assert (await log_in(broker))[0] == 0


async def test_a_login_may_be_late(broker: Broker) -> None:
    """A delay changes nothing else; one that is held comes when the fault is removed."""
    broker.faults.add("SaslAuthenticate", delay_ms=1, times=1)
    assert (await log_in(broker))[0] == 0
    fault = broker.faults.add("SaslAuthenticate", hold=True, times=1)
    async with WireClient(broker.bootstrap_servers) as wire:
        client = SaslClient(wire)
        await client.handshake()
        wire.send(36, 2, {"auth_bytes": ALICE})
        await wire.writer.drain()
        await fault.until_fired()
        fault.remove()
        assert int((await wire.receive(36, 2)).error_code) == 0
        assert await client.is_served()
