"""The server of the Kafka port: its limits and its stop. Responses come from a function, not from a broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, cast

import pytest

from diamant.broker.network.api import ConnectionInfo, RequestContext, client_host, frame_header
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import ServerLimits
from diamant.protocol.wire.apis import API_VERSIONS, METADATA
from diamant.protocol.wire.server_connection import Request
from diamant.storage.env.env import File
from diamant.storage.segments.segment import FileSlice
from tests.broker.network.serving import KEY, VERSION, echo, serving
from tests.broker.network.test_answer_writer import ColdFile
from tests.broker.wire import WireClient
from tests.waiting import wait_until


async def test_an_idle_connection_is_closed() -> None:
    """connections.max.idle.ms closes silent connections. Its one timer ends with the last connection."""
    async with serving(echo, max_idle_ms=20) as (server, address), WireClient(address) as client:
        assert await client.is_closed()
        await wait_until(lambda: not server.connections)


async def test_stop_answers_what_is_under_way() -> None:
    """Closing the server waits for the response to a request, then closes. New connections are refused."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with (
        serving(lambda *_: future) as (server, address),
        WireClient(address) as client,
        WireClient(address) as idle,
    ):
        client.writer.write(client.frame(KEY, VERSION, b""))
        await wait_until(lambda: any(connection.is_busy for connection in server.connections))
        closing = asyncio.create_task(server.close(5))
        assert await idle.is_closed()
        future.set_result(b"answer")
        assert await client.receive_frame() == (1, b"answer")
        await closing
        with pytest.raises(ConnectionError):
            await WireClient(address).__aenter__()


class Unreadable(ColdFile):
    """A file whose reads fail on the event loop, too."""

    def try_pread(self, count: int, position: int) -> bytes | None:
        """Fail as a disk does."""
        raise OSError(5, "Input/output error")


async def test_an_answer_that_cannot_be_made_ends_the_connection() -> None:
    """Its client would wait for ever, if the request is handled after another one that took time."""
    first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def dispatch(info: ConnectionInfo, request: Request) -> Any:
        return [FileSlice(cast(File, Unreadable(b"abc")), 0, 3)] if request.body else first

    async with serving(dispatch) as (server, address), WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"") + client.frame(KEY, VERSION, b"unreadable"))
        await wait_until(lambda: any(connection.queue.requests for connection in server.connections))
        first.set_result(b"answer")
        assert await client.receive_frame() == (1, b"answer")
        assert await client.is_closed()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_listener_is_not_opened_without_what_secures_it(protocol: str) -> None:
    """A server without the TLS or SASL that the listener's protocol needs refuses to listen."""
    server = Server(echo, frame_header, ServerLimits(1 << 20, 100, 60_000))
    with (
        contextlib.closing(socket.socket()) as sock,
        pytest.raises(ValueError, match=f"{protocol} does not match the TLS and SASL setup"),
    ):
        server.listen(sock, "OUTSIDE", "", 0, protocol)


def test_response_headers() -> None:
    """Flexible versions have an empty block of tagged fields after the correlation id, ApiVersions never has."""
    assert frame_header(METADATA, 1, 7, 4) == b"\x00\x00\x00\x08\x00\x00\x00\x07"
    assert frame_header(METADATA, 12, 7, 4) == b"\x00\x00\x00\x09\x00\x00\x00\x07\x00"
    assert frame_header(API_VERSIONS, 4, -1, 4) == b"\x00\x00\x00\x08\xff\xff\xff\xff"


def test_a_member_of_a_group_is_shown_with_its_ipv4_address() -> None:
    """Groups show the address of a client as Java does, without the prefix that a dual-stack socket gives it."""
    connection = ConnectionInfo("PLAINTEXT", "::ffff:10.0.0.1:5000", "10.0.0.1", "broker", 1)
    assert client_host(RequestContext(12, None, connection)) == "/10.0.0.1"
