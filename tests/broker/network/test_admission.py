"""Connections at a server with limits on new ones: held up, refused, or closed."""

from __future__ import annotations

import asyncio

from diamant.broker.network.admission import ConnectionAdmission
from diamant.broker.network.server import Server
from diamant.broker.security.quotas.connection_quotas import ConnectionQuotas, NewConnectionLimits
from diamant.broker.security.quotas.rate import RateWindows
from tests.broker.network.test_server import KEY, VERSION, echo, serving
from tests.broker.wire import WireClient

WINDOWS = RateWindows(2, 1000)


def limit(server: Server, limits: NewConnectionLimits, now_s: float = 1000.0) -> None:
    """Have limits hold; the clock of rates stands still."""
    quotas = ConnectionQuotas(WINDOWS, lambda: now_s, [])
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
