"""Connections that wait for a quota or for memory: they are not read, and do not delay others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.network.request_memory import RequestMemory
from diamant.broker.security.quotas.quotas import Quotas
from diamant.protocol.wire.server_connection import Request
from tests.broker.network.serving import KEY, VERSION, serving
from tests.broker.wire import WireClient
from tests.waiting import wait_until


class StubQuotas:
    """Throttles after the response to `slow`."""

    def __init__(self, throttle_time_ms: int) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.asked: list[tuple[str, Any]] = []

    def answer(self, user: str, request: Request, body: Any, busy_s: float) -> tuple[Any, int]:
        """Like `Quotas.answer`."""
        assert busy_s >= 0
        self.asked.append((user, body))
        return body, self.throttle_time_ms if request.body == b"slow" else 0


class Handled:
    """A dispatch function that records its requests; `none` gets no response."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, _: ConnectionInfo, request: Request) -> bytes | None:
        self.bodies.append(bytes(request.body))
        return None if request.body == b"none" else bytes(request.body)


async def test_the_answer_goes_out_at_once_and_the_next_request_waits() -> None:
    """A throttled connection gets its response and is then not read. Others are served."""
    handled, stub = Handled(), StubQuotas(3_600_000)
    async with serving(handled) as (server, address), WireClient(address) as slow, WireClient(address) as other:
        server.quotas = cast(Quotas, stub)
        slow.writer.write(slow.frame(KEY, VERSION, b"slow") + slow.frame(KEY, VERSION, b"next"))
        assert await slow.receive_frame() == (1, b"slow")
        other.writer.write(other.frame(KEY, VERSION, b"other"))
        assert await other.receive_frame() == (1, b"other")
        assert handled.bodies == [b"slow", b"other"]
        assert stub.asked == [("ANONYMOUS", b"slow"), ("ANONYMOUS", b"other")]


async def test_the_wait_ends() -> None:
    """After the throttle time the next request is handled, whether it arrived during the wait or later."""
    handled = Handled()
    async with serving(handled) as (server, address), WireClient(address) as client:
        server.quotas = cast(Quotas, StubQuotas(30))
        before_s = asyncio.get_running_loop().time()
        client.writer.write(client.frame(KEY, VERSION, b"slow") + client.frame(KEY, VERSION, b"next"))
        assert await client.receive_frame() == (1, b"slow")
        assert await client.receive_frame() == (2, b"next")
        assert asyncio.get_running_loop().time() - before_s >= 0.03
        client.writer.write(client.frame(KEY, VERSION, b"later"))
        assert await client.receive_frame() == (3, b"later")


async def test_a_stop_waits_for_no_throttle() -> None:
    """Received requests of a throttled client are answered when the server stops."""
    handled = Handled()
    async with serving(handled) as (server, address), WireClient(address) as client:
        server.quotas = cast(Quotas, StubQuotas(3_600_000))
        client.writer.write(client.frame(KEY, VERSION, b"slow") + client.frame(KEY, VERSION, b"next"))
        assert await client.receive_frame() == (1, b"slow")
        await server.close(60)
        assert await client.receive_frame() == (2, b"next")
        assert await client.is_closed()


async def test_a_throttled_client_that_leaves_is_forgotten() -> None:
    """The timer of a throttled client is cancelled with its connection."""
    handled = Handled()
    async with serving(handled) as (server, address):
        server.quotas = cast(Quotas, StubQuotas(3_600_000))
        async with WireClient(address) as client:
            client.writer.write(client.frame(KEY, VERSION, b"slow"))
            assert await client.receive_frame() == (1, b"slow")
            assert len(server.connections) == 1
        await wait_until(lambda: not server.connections)


async def test_a_request_without_an_answer_is_charged() -> None:
    """The quotas get None as the response to a Produce with acks=0."""
    handled, stub = Handled(), StubQuotas(0)
    async with serving(handled) as (server, address), WireClient(address) as client:
        server.quotas = cast(Quotas, stub)
        client.writer.write(client.frame(KEY, VERSION, b"none") + client.frame(KEY, VERSION, b"next"))
        assert await client.receive_frame() == (2, b"next")
        assert stub.asked == [("ANONYMOUS", None), ("ANONYMOUS", b"next")]


def test_frames_are_admitted_while_anything_is_left() -> None:
    """The last admitted frame may exceed the limit. The next one waits for its response."""
    memory = RequestMemory(100)
    admitted: list[str] = []
    assert memory.admit(60, "a", lambda: None)
    assert memory.admit(60, "b", lambda: None)
    assert not memory.admit(10, "c", lambda: admitted.append("c"))
    assert memory.available_bytes == -20
    memory.release(60)
    assert admitted == ["c"]
    assert memory.available_bytes == 30


def test_waiting_frames_are_admitted_in_their_order_and_none_overtakes() -> None:
    """A small frame that would fit waits behind larger ones."""
    memory = RequestMemory(10)
    admitted: list[str] = []
    assert memory.admit(10, "a", lambda: None)
    assert not memory.admit(50, "b", lambda: admitted.append("b"))
    assert not memory.admit(1, "c", lambda: admitted.append("c"))
    memory.forget("nobody")
    memory.release(10)
    assert admitted == ["b"]
    memory.release(50)
    assert admitted == ["b", "c"]


def test_a_connection_that_goes_stops_waiting() -> None:
    """A closed connection is not admitted, and its share is left to others."""
    memory = RequestMemory(10)
    memory.take(10)
    assert not memory.admit(5, "gone", lambda: None)
    memory.forget("gone")
    memory.release(10)
    assert memory.available_bytes == 10
