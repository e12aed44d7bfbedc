"""Connections at a server with limits on new ones: held up, refused, or closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant.broker.network.admission import ConnectionAdmission
from diamant.broker.network.server import Server
from diamant.broker.security.quotas.connection_quotas import ConnectionQuotas, NewConnectionLimits
from diamant.broker.security.quotas.rate import RateWindows
from tests.broker.network.serving import KEY, VERSION, echo, serving
from tests.broker.security.tls.certificates import client_context
from tests.broker.security.tls.serving import serving_tls
from tests.broker.wire import WireClient
from tests.waiting import wait_until

WINDOWS = RateWindows(2, 1000)


def limit(server: Server, limits: NewConnectionLimits, now_s: float = 1000.0) -> None:
    """Have limits hold; the clock of rates stands still."""
    quotas = ConnectionQuotas(WINDOWS, lambda: now_s)
    quotas.limits = limits
    server.admission = ConnectionAdmission(asyncio.get_running_loop(), quotas)


async def is_served(address: str) -> bool:
    """Connect and ask; False if the connection is closed."""
    async with WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"x"))
        try:
            return await client.receive_frame() == (1, b"x")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False


async def test_accepting_waits_when_too_many_come() -> None:
    """Each is served in the end, and none before its time."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second=10))
        before_s = asyncio.get_running_loop().time()
        assert all(await asyncio.gather(*(is_served(address) for _ in range(11))))
        assert asyncio.get_running_loop().time() - before_s >= 0.1


async def test_an_address_that_comes_too_often_is_refused() -> None:
    """What is beyond its rate is closed after a while, unread; what it has stays."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second_of={"127.0.0.1": 10}))
        served = await asyncio.gather(*(is_served(address) for _ in range(11)))
        assert sorted(served) == [False] + [True] * 10


async def test_an_address_with_too_many_connections_is_closed_at_once() -> None:
    """When one of them goes there is room again."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(at_once_of_any=1))
        async with WireClient(address) as first:
            first.writer.write(first.frame(KEY, VERSION, b"x"))
            assert await first.receive_frame() == (1, b"x")
            assert not await is_served(address)
        while server.connections:
            await asyncio.sleep(0)
        assert await is_served(address)


async def test_limits_count_what_was_there_before() -> None:
    """A connection that was made without limits is one of its address's."""
    async with serving(echo) as (server, address), WireClient(address) as first:
        first.writer.write(first.frame(KEY, VERSION, b"x"))
        assert await first.receive_frame() == (1, b"x")
        limit(server, NewConnectionLimits(at_once_of_any=1))
        assert not await is_served(address)
    assert not server.counts


async def test_a_handshake_that_is_not_done_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka a connection with TLS is one from when it is accepted, those before the limit among them, and only once."""
    async with serving_tls(echo) as (server, address, tls):
        silent = [await asyncio.open_connection(*address.split(":"))]
        await wait_until(lambda: len(tls.handshakes) == 1)
        limit(server, NewConnectionLimits(at_once_of_any=3))
        silent += [await asyncio.open_connection(*address.split(":")) for _ in range(60)]
        await asyncio.gather(*(reader.read() for reader, _ in silent[3:]))  # closed, before any time is up
        assert (len(tls.handshakes), server.counts) == (3, {"127.0.0.1": 3})
        for _, writer in silent[1:]:
            writer.close()
        await wait_until(lambda: server.counts == {"127.0.0.1": 1})
        context = client_context(tmp_path)
        async with WireClient(address, context) as first, WireClient(address, context) as second:
            for client in (first, second):
                client.writer.write(client.frame(KEY, VERSION, b"x"))
                assert await client.receive_frame() == (1, b"x")
            assert server.counts == {"127.0.0.1": 3}
            reader, writer = await asyncio.open_connection(*address.split(":"))
            assert await reader.read() == b""
            writer.close()
        silent[0][1].close()
        await wait_until(lambda: not server.counts)
    told = [record.getMessage() for record in caplog.records]
    assert "max.connections.per.ip" in told[0]
    assert "58 more connections closed" in told[1]


async def test_a_stop_closes_what_is_held() -> None:
    """Sockets that wait to be closed, or to be taken, do not outlive the server."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second_of_any=1))
        async with WireClient(address) as first, WireClient(address) as refused:
            first.writer.write(first.frame(KEY, VERSION, b"x"))
            assert await first.receive_frame() == (1, b"x")
            await server.close(5)
            assert await refused.is_closed()
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second=1))
        async with WireClient(address) as first, WireClient(address) as waiting:
            first.writer.write(first.frame(KEY, VERSION, b"x"))
            assert await first.receive_frame() == (1, b"x")
            await server.close(5)
            assert await waiting.is_closed()
