"""TLS connections: bytes in both directions, back-pressure, their end, and their principals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.security.identity.principal import ANONYMOUS, Principal
from diamant.broker.security.tls.throw_away import ThrowAwayCa
from diamant.protocol.wire.server_connection import Request
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.segment import FileSlice
from tests.broker.network.serving import KEY, VERSION, echo, serving
from tests.broker.security.tls.certificates import client_context, of_client
from tests.broker.security.tls.serving import serving_tls
from tests.broker.wire import WireClient
from tests.waiting import wait_until


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_of_all_sizes_are_answered_in_order(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Small requests share one record, and large ones take many."""
    context = client_context(tmp_path)
    context.minimum_version = context.maximum_version = version
    bodies = [b"", b"x", *[str(n).encode() for n in range(300)], os.urandom(70_000), os.urandom(3_000_000), b"last"]
    async with serving_tls(echo) as (_, address, _tls), WireClient(address, context) as client:
        client.writer.write(b"".join(client.frame(KEY, VERSION, body) for body in bodies))
        for number, body in enumerate(bodies):
            assert await client.receive_frame() == (number + 1, body)


async def test_the_listener_and_the_client_are_known(tmp_path: Path) -> None:
    """A client without a certificate is ANONYMOUS; one with a certificate has its subject as name."""
    seen: list[ConnectionInfo] = []

    def dispatch(info: ConnectionInfo, request: Request) -> bytes:
        seen.append(info)
        return b""

    rules = {"ssl.client.auth": "requested", "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/U"}
    async with serving_tls(dispatch, rules) as (_, address, _tls):
        for issued in (None, of_client()):
            async with WireClient(address, client_context(tmp_path, issued)) as client:
                client.writer.write(client.frame(KEY, VERSION, b""))
                await client.receive_frame()
    assert [info.security_protocol for info in seen] == ["SSL", "SSL"]
    assert [info.principal for info in seen] == [ANONYMOUS, Principal("User", "ALICE")]


REFUSED = {
    "no certificate": (
        {"ssl.client.auth": "required"},
        lambda path: client_context(path),
        "the client has sent no certificate, and ssl.client.auth=required",
    ),
    "a certificate of another CA": (
        {"ssl.client.auth": "required"},
        lambda path: client_context(path, ThrowAwayCa().issue("alice")),
        "the client's certificate is refused: ",
    ),
    "a name that no rule fits": (
        {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=bob$/bob/"},
        lambda path: client_context(path, of_client()),
        "no rule applies to CN=alice",
    ),
    "a client without the broker's CA": (
        {},
        lambda path: ssl.create_default_context(),
        "the client does not trust the broker's certificate",
    ),
    # OpenSSL negotiates a suite of TLS 1.3 of its own; the connection is then closed.
    "a suite that is not allowed": (
        {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"},
        lambda path: client_context(path),
        "TLS_AES_256_GCM_SHA384 is not among ssl.cipher.suites",
    ),
}


def _received(address: str, context: ssl.SSLContext) -> bytes:
    """Return the bytes that a client gets; none if either side refuses the other. asyncio's client would send no alert."""
    try:
        with _connected(address, context) as client:
            return client.recv(1)
    except OSError:
        return b""


@pytest.mark.parametrize(("settings", "make_context", "said"), REFUSED.values(), ids=REFUSED)
async def test_a_client_that_is_refused_is_reported(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, str],
    make_context: Callable[[Path], ssl.SSLContext],
    said: str,
) -> None:
    """A refused client gets nothing, and one log line has the reason."""
    async with serving_tls(echo, settings) as (server, address, _tls):
        assert await asyncio.to_thread(_received, address, make_context(tmp_path)) == b""
        await wait_until(lambda: caplog.records != [])
        await wait_until(lambda: not server.connections)
    (record,) = caplog.records
    assert said in record.getMessage().partition(": connection closed: ")[2]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\0\0\0\x1a\0\x12\0\x03\0\0\0\1", "a Kafka request without TLS on a listener with TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request without TLS on a port with TLS"),
        (b"\x80\x2e\1\0\2", "no TLS on a port with TLS: the first bytes are 80 2e 01 00 02"),
        (b"\x16\x03\x01\0\5hello", "the TLS handshake has failed: "),
    ],
)
async def test_clients_without_tls_are_logged(sent: bytes, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the mistake, and the connection is closed."""
    async with serving_tls(echo) as (_, address, _tls):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(sent)
        async with asyncio.timeout(60):
            assert len(await reader.read()) <= 7  # an alert at most
        writer.close()
        assert said in caplog.records[0].getMessage()


async def test_a_peer_that_ends_gets_an_end(tmp_path: Path) -> None:
    """close_notify is answered with close_notify, so the peer knows that nothing was truncated."""
    async with serving_tls(echo) as (server, address, _tls):
        client = await asyncio.to_thread(_connected, address, client_context(tmp_path))
        await asyncio.to_thread(client.unwrap)
        client.close()
        await wait_until(lambda: not server.connections)


def _connected(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except OSError:
        connection.close()
        raise


async def test_ranges_of_files_are_sent_to_a_peer_that_reads_late(tmp_path: Path) -> None:
    """All bytes arrive in order, and unsent ranges are not read into memory."""
    content = os.urandom(5_000_000)
    (tmp_path / "log").write_bytes(content)
    with contextlib.closing(RealEnv().open(str(tmp_path / "log"))) as file:
        parts = [
            b"head",
            FileSlice(file, 0, 3_000_000),
            b"",
            b"between",
            FileSlice(file, 3_000_000, 2_000_000),
            b"tail",
        ]
        async with serving_tls(lambda *_: parts, send_buffer_bytes=16384) as (server, address, _tls):
            async with WireClient(address, client_context(tmp_path)) as client:
                client.writer.write(client.frame(KEY, VERSION, b""))
                await wait_until(lambda: any(connection.is_busy for connection in server.connections))
                _, body = await client.receive_frame()
    assert body == b"head" + content[:3_000_000] + b"between" + content[3_000_000:] + b"tail"


async def test_a_peer_that_sends_without_reading_is_left_alone(tmp_path: Path) -> None:
    """The socket of a connection with a full queue is not read. All requests are answered once the peer reads."""
    answer = bytes(200_000)
    async with serving_tls(lambda *_: answer, send_buffer_bytes=16384, receive_buffer_bytes=16384) as (
        server,
        address,
        _tls,
    ):
        async with WireClient(address, client_context(tmp_path)) as client:
            frames = b"".join(client.frame(KEY, VERSION, bytes(50_000)) for _ in range(60))
            client.writer.write(frames)
            await wait_until(lambda: any(connection.is_reading_paused for connection in server.connections))
            for _ in range(60):
                assert (await client.receive_frame())[1] == answer


async def test_open_connections_end_with_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Handshakes in progress and connections end without an error."""
    caplog.set_level(logging.WARNING)
    async with serving_tls(echo) as (server, address, tls):
        async with WireClient(address, client_context(tmp_path)):
            silent_reader, silent_writer = await asyncio.open_connection(*address.split(":"))
            await wait_until(lambda: len(tls.handshakes) == 1)
            tls.handshakes.close()
            await server.close(5)
            async with asyncio.timeout(60):
                assert await silent_reader.read() == b""
            silent_writer.close()
    assert not caplog.records


@pytest.mark.parametrize("is_secured", [False, True])
async def test_a_closed_connection_leaves_nothing_to_the_garbage_collector(tmp_path: Path, is_secured: bool) -> None:
    """Its memory is free at once: transports that refer to themselves made long passes of the collector longer."""
    context = client_context(tmp_path) if is_secured else None
    async with contextlib.AsyncExitStack() as stack:
        server, address, *_ = await stack.enter_async_context(serving_tls(echo) if is_secured else serving(echo))
        gc.disable()
        stack.callback(gc.enable)
        async with WireClient(address, context) as client:
            client.writer.write(client.frame(KEY, VERSION, b"x"))
            await client.receive_frame()
            (connection,) = server.connections
            transport = connection._transport
            left = [weakref.ref(connection), weakref.ref(transport)]
            if is_secured:
                left.append(weakref.ref(transport._below))  # type: ignore[union-attr]
            del connection, transport
        await wait_until(lambda: not any(one() for one in left))


class ForeignTransport(asyncio.Transport):
    """Has no `__dict__`, like the transports of loops that are not written in Python."""

    __slots__ = ()


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
async def test_a_connection_of_another_loop_is_closed_whole(tmp_path: Path, is_secured: bool) -> None:
    """Its transport is given up without asyncio's attributes; else the server would wait for the connection for ever."""
    context = client_context(tmp_path) if is_secured else None
    async with serving_tls(echo) if is_secured else serving(echo) as (server, address, *_):
        async with WireClient(address, context) as client:
            client.writer.write(client.frame(KEY, VERSION, b"x"))
            await client.receive_frame()
            (connection,) = server.connections
            if is_secured:
                connection._transport._below = ForeignTransport()  # type: ignore[union-attr]
            else:
                connection._transport = ForeignTransport()
        await wait_until(lambda: not server.connections)
