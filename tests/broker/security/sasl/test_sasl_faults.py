"""Faults of authentication: the n-th attempt fails, is delayed, or gets no response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.security.sasl.sasl_wire import ALICE, SaslClient
from tests.broker.wire import WireClient


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with one user, which answers failures at once."""
    properties = {"connection.failed.authentication.delay.ms": "1"}
    async with Broker(
        listen="SASL_PLAINTEXT://127.0.0.1:0", data_dir=tmp_path, properties=properties, users={"alice": "secret"}
    ) as running:
        yield running


async def log_in(broker: Broker) -> tuple[int, str]:
    """Return the error code and message of a login with the right password; a successful client is then served."""
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
    """The second login gets the error code of a wrong password, and the connection is closed. Other logins succeed."""
    fault = broker.faults.add("SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", after=1, times=1)
    codes = [(await log_in(broker))[0] for _ in range(3)]
    assert codes == [0, 58, 0]
    assert len(fault.fired) == 1


async def test_a_login_that_was_refused_after_applying_is_refused(broker: Broker) -> None:
    """The broker has authenticated the client but responds with an error; the client may stay, as with other false responses."""
    broker.faults.add("SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", after_applying=True, times=1)
    async with WireClient(broker.bootstrap_servers) as wire:
        client = SaslClient(wire)
        await client.handshake()
        assert (await client.authenticate(ALICE))[0] == 58
        assert await client.is_served()


async def test_a_handshake_may_fail(broker: Broker) -> None:
    """The connection is then closed."""
    broker.faults.add("SaslHandshake", error="UNSUPPORTED_SASL_MECHANISM", times=1)
    async with WireClient(broker.bootstrap_servers) as wire:
        assert (await SaslClient(wire).handshake())[0] == 33
        assert await wire.is_closed()
    assert (await log_in(broker))[0] == 0


async def test_a_login_may_be_late(broker: Broker) -> None:
    """A delay changes nothing else. A held login completes when the fault is removed."""
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
