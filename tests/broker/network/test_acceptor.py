"""The acceptance of connections within `max.connections` and rate limits; further connections wait or are refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.network.acceptor import ConnectionAdmission
from diamant.broker.network.api import frame_header
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import ServerLimits
from diamant.broker.security.quotas.connection_quotas import ConnectionQuotas, NewConnectionLimits
from diamant.broker.security.quotas.rate import RateWindows
from tests.broker.network.serving import KEY, VERSION, echo, serving
from tests.broker.security.tls.certificates import client_context
from tests.broker.security.tls.serving import serving_tls
from tests.broker.wire import METADATA, WireClient
from tests.waiting import PATIENCE_S, wait_until

LIMITS = ServerLimits(max_frame_bytes=1 << 20, max_connections=100, max_idle_ms=60_000)


async def is_answered(client: WireClient) -> None:
    """Send a request and wait for its response."""
    client.writer.write(client.frame(KEY, VERSION, b"x"))
    assert (await client.receive_frame())[1] == b"x"


async def test_connections_beyond_the_limit_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Connections beyond the limit are served in turn as soon as others close. The log names the limit once."""
    async with serving(echo, max_connections=1) as (server, address):
        async with WireClient(address) as first, WireClient(address) as second, WireClient(address) as third:
            for client in (first, second, third):
                await is_answered(client)
                assert len(server.connections) == 1
                client.writer.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["listener PLAINTEXT accepts no more connections until one is closed: max.connections=1 is reached"]


async def test_a_limit_that_is_raised_lets_in_who_waits() -> None:
    """No connection has to close first."""
    async with serving(echo, max_connections=1) as (server, address):
        async with WireClient(address) as first, WireClient(address) as second:
            await is_answered(first)
            second.writer.write(second.frame(KEY, VERSION, b"x"))
            await wait_until(lambda: bool(server.slots.waiting))
            server.set_limits(server.limits._replace(max_connections=2))
            assert await second.receive_frame() == (1, b"x")


async def test_a_handshake_that_is_not_done_has_a_slot(tmp_path: Path) -> None:
    """A TLS connection counts from its acceptance until it is closed, whether it was admitted or not."""
    async with serving_tls(echo, max_connections=1) as (server, address, tls):
        _, silent = await asyncio.open_connection(*address.split(":"))
        await wait_until(lambda: len(tls.handshakes) == 1)

        async def use_one() -> None:
            async with WireClient(address, client_context(tmp_path)) as client:
                await is_answered(client)

        using = asyncio.create_task(use_one())
        await wait_until(lambda: bool(server.slots.waiting))
        assert len(tls.handshakes) == 1
        silent.close()
        await silent.wait_closed()
        await using
        await wait_until(lambda: not server.slots.taken.total())


@contextlib.asynccontextmanager
async def two_listeners(limits: ServerLimits) -> AsyncIterator[tuple[Server, str, str]]:
    """A server with listeners A and B."""
    server = Server(echo, frame_header, limits)
    addresses = []
    for name in ("A", "B"):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        addresses.append(f"127.0.0.1:{sock.getsockname()[1]}")
        server.listen(sock, name, "", 0)
    try:
        yield server, addresses[0], addresses[1]
    finally:
        await server.close(5)


async def test_a_listener_may_have_a_limit_of_its_own() -> None:
    """A listener's limit does not delay the other listener; the broker's limit delays both."""
    limits = LIMITS._replace(max_connections=3, max_connections_of={"A": 1})
    async with two_listeners(limits) as (server, a, b):
        async with contextlib.AsyncExitStack() as stack:
            first, late, second, third, fourth = [
                await stack.enter_async_context(WireClient(address)) for address in (a, a, b, b, b)
            ]
            for client in (first, second, third):
                await is_answered(client)
            await wait_until(lambda: len(server.slots.waiting) == 2)
            assert server.slots.taken == {"A": 1, "B": 2}
            second.writer.close()
            await is_answered(fourth)
            assert server.slots.taken == {"A": 1, "B": 2}
            first.writer.close()
            await is_answered(late)


async def test_the_limits_of_listeners_are_configurations(tmp_path: Path) -> None:
    """They are `listener.name.NAME.max.connections` and the creation rate of a listener (KIP-612)."""
    properties = {
        "listener.security.protocol.map": "ONE:PLAINTEXT,TWO:PLAINTEXT",
        "listener.name.one.max.connections": "7",
        "listener.name.two.max.connection.creation.rate": "5",
    }
    listen = ["ONE://127.0.0.1:0", "TWO://127.0.0.1:0"]
    async with Broker(listen=listen, data_dir=tmp_path, properties=properties) as broker:
        server = broker.services.server
        assert server.limits.max_connections_of == {"ONE": 7}
        assert server.admission is not None
        assert server.admission.quotas.limits.per_second_of_listener == {"TWO": 5}
        address, _, _ = broker.bootstrap_servers.partition(",")
        async with WireClient(address) as wire:
            change = {"name": "listener.name.one.max.connections", "config_operation": 0, "value": "1"}
            resource = {"resource_type": 4, "resource_name": "1", "configs": [change]}
            answer = await wire.call(44, 1, {"resources": [resource], "validate_only": False})
            assert answer.responses[0].error_code == 0
            assert server.limits.max_connections_of == {"ONE": 1}
            async with WireClient(address) as late:
                sent = late.send(METADATA, 1, {"topics": []})
                await wait_until(lambda: bool(server.slots.waiting))
                wire.writer.close()
                assert (await late.receive(METADATA, 1, sent)).brokers


WINDOWS = RateWindows(2, 1000)


def limit(server: Server, limits: NewConnectionLimits, now_s: float = 1000.0) -> None:
    """Set limits; the clock of rates is frozen."""
    quotas = ConnectionQuotas(WINDOWS, lambda: now_s)
    quotas.limits = limits
    server.admission = ConnectionAdmission(asyncio.get_running_loop(), quotas)


async def is_served(address: str) -> bool:
    """Connect and send a request; False if the connection is closed."""
    async with WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"x"))
        try:
            return await client.receive_frame() == (1, b"x")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False


async def test_accepting_waits_when_too_many_come() -> None:
    """Each connection is served eventually, and none early."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second=10))
        before_s = asyncio.get_running_loop().time()
        assert all(await asyncio.gather(*(is_served(address) for _ in range(11))))
        assert asyncio.get_running_loop().time() - before_s >= 0.1


async def test_a_connection_that_cannot_be_set_up_after_its_wait_leaves_the_listener_open() -> None:
    """An error of the one that a rate limit held back is logged, and the next one is served."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second=10))
        assert all(await asyncio.gather(*(is_served(address) for _ in range(10))))
        acceptor = server._acceptors[0]
        reader, writer = await asyncio.open_connection(*address.split(":"))
        await wait_until(lambda: acceptor._waiting is not None)
        assert acceptor._waiting is not None
        acceptor._waiting.close()
        assert await reader.read() == b""
        server.admission = None
        async with asyncio.timeout(PATIENCE_S):
            assert await is_served(address)
        writer.close()


async def test_an_address_that_comes_too_often_is_refused() -> None:
    """Connections beyond its rate are closed after a delay, unread; existing ones are kept."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(per_second_of={"127.0.0.1": 10}))
        served = await asyncio.gather(*(is_served(address) for _ in range(11)))
        assert sorted(served) == [False] + [True] * 10


async def test_an_address_with_too_many_connections_is_closed_at_once() -> None:
    """A new connection is accepted after one of them closes."""
    async with serving(echo) as (server, address):
        limit(server, NewConnectionLimits(at_once_of_any=1))
        async with WireClient(address) as first:
            await is_answered(first)
            assert not await is_served(address)
        await wait_until(lambda: not server.connections)
        assert await is_served(address)


async def test_a_handshake_that_is_not_done_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka, a TLS connection counts once, from its acceptance, even if it was accepted before the limit was set."""
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
                await is_answered(client)
            assert server.counts == {"127.0.0.1": 3}
            reader, writer = await asyncio.open_connection(*address.split(":"))
            assert await reader.read() == b""
            writer.close()
        silent[0][1].close()
        await wait_until(lambda: not server.counts)
    told = [record.getMessage() for record in caplog.records]
    assert "max.connections.per.ip" in told[0]
    assert "58 more connections closed" in told[1]


@pytest.mark.parametrize("limits", [NewConnectionLimits(per_second_of_any=1), NewConnectionLimits(per_second=1)])
async def test_a_stop_closes_what_is_held(limits: NewConnectionLimits) -> None:
    """Refused and held-back sockets are closed with the server."""
    async with serving(echo) as (server, address):
        limit(server, limits)
        async with WireClient(address) as first, WireClient(address) as held:
            await is_answered(first)
            await server.close(5)
            assert await held.is_closed()
