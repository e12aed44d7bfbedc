"""The turns of connections: no client waits for the queue of another."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import pytest

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.network.turns import CLOSED_PER_TURN, TURN_S, Turns
from diamant.protocol.wire.server_connection import Request
from tests.broker.network.serving import KEY, VERSION, serving
from tests.broker.wire import WireClient
from tests.waiting import wait_until

QUEUED = 50


class Taker:
    """A connection with a queue, whose requests take a given time."""

    used_s = 0.0

    def __init__(self, turns: Turns, name: str, cost_s: float, queued: int, taken: list[str]) -> None:
        self.turns, self.name, self.cost_s, self.queued, self.taken = turns, name, cost_s, queued, taken

    def take_turn(self) -> None:
        """Handle one."""
        self.taken.append(self.name)
        self.queued -= 1
        self.turns.used(self, self.cost_s)
        if self.queued:
            self.turns.wait(self)

    def close(self) -> None:
        """Only its end is noted."""
        self.taken.append(self.name)


async def test_the_one_that_used_least_comes_first() -> None:
    """A client with a small request comes before the queues of others, and of two queues none gets more time."""
    taken: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    for name, cost_s, queued in (("slow", 0.004, 30), ("quick", 0.001, 120)):
        turns.wait(Taker(turns, name, cost_s, queued, taken))
    await wait_until(lambda: len(taken) > 50)
    slow, quick = taken.count("slow"), taken.count("quick")
    assert 3 <= quick / slow <= 5
    turns.wait(Taker(turns, "small", 0.001, 1, taken))
    seen = len(taken)
    await wait_until(lambda: len(taken) == 151)
    assert "small" in taken[seen : seen + 3]


async def test_only_time_that_is_used_up_is_restored() -> None:
    """Short requests cost no callback of the loop; the one that uses the last of a turn's time does."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop)
    taker = Taker(turns, "short", 0, 0, [])
    for _ in range(2):
        turns.used(taker, 0.4 * TURN_S)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert turns.left_s == pytest.approx(0.2 * TURN_S)
    turns.used(taker, 0.4 * TURN_S)
    await wait_until(lambda: turns.left_s == pytest.approx(0.8 * TURN_S))


async def test_a_long_request_leaves_turns_of_the_loop_to_others() -> None:
    """After a request that took more than two turns' time, no other is begun in the next one: those who connect get on."""
    taken: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    turns.wait(Taker(turns, "long", 2.5 * TURN_S, 2, taken))
    counts: list[int] = []
    await wait_until(lambda: counts.append(len(taken)) is not None or len(taken) == 2)
    assert counts == [0, 1, 1, 2]


async def test_a_request_that_a_busy_machine_delayed_does_not_put_its_connection_last() -> None:
    """A stall of ten seconds during a request is not counted as its connection's: it waits behind a tenth of a second."""
    taken: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    stalled = Taker(turns, "stalled", 0.001, 1, taken)
    turns.used(stalled, 10.0)
    turns.wait(stalled)
    turns.wait(Taker(turns, "other", 0.002, 500, taken))
    await wait_until(lambda: "stalled" in taken)
    assert len(taken) < 60


def slowly(served: list[bytes]) -> Any:
    """Return a dispatch whose requests take three milliseconds, unless they are of a polite client."""

    def dispatch(_: ConnectionInfo, request: Request) -> bytes | None:
        served.append(bytes(request.body))
        if served[-1] == b"polite":
            return b"answer"
        began_s = time.monotonic()
        while time.monotonic() - began_s < 0.003:
            pass
        return None

    return dispatch


async def test_a_small_request_does_not_wait_for_the_queue_of_another_client() -> None:
    """One client sends fifty requests at once; that of another client is handled after a few of them."""
    served: list[bytes] = []
    async with serving(slowly(served)) as (_, address), WireClient(address) as greedy, WireClient(address) as polite:
        greedy.writer.write(b"".join(greedy.frame(KEY, VERSION, b"greedy") for _ in range(QUEUED)))
        polite.writer.write(polite.frame(KEY, VERSION, b"polite"))
        assert await polite.receive_frame() == (1, b"answer")
        assert len(served) < QUEUED // 2
        await wait_until(lambda: len(served) == QUEUED + 1)


async def test_what_waits_for_its_turn_is_handled_after_its_client_has_left() -> None:
    """Requests without answers, as Produce with acks=0 sends them, are handled though the client has closed its connection."""
    served: list[bytes] = []
    async with serving(slowly(served)) as (server, address):
        async with WireClient(address) as client:
            client.writer.write(b"".join(client.frame(KEY, VERSION, b"unanswered") for _ in range(QUEUED)))
        await wait_until(lambda: len(served) == QUEUED and not server.connections)


@pytest.mark.parametrize("number", [3, 60])
async def test_a_peer_that_resets_its_connection_leaves_no_line(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is queued or half written then: nothing more is handled, and asyncio has nothing to say."""
    served: list[int] = []
    sock = socket.socket()

    def large(_: ConnectionInfo, request: Request) -> bytes:
        served.append(request.correlation_id)
        if len(served) == number:
            sock.close()
        return bytes(1_000_000)

    def has_read_on() -> bool:
        with suppress(OSError):
            sock.recv(1 << 20)
        return len(served) >= number

    async with serving(large) as (server, address):
        client = WireClient(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.connect((address.split(":")[0], int(address.split(":")[1])))
        sock.sendall(b"".join(client.frame(KEY, VERSION, b"") for _ in range(100)))
        sock.setblocking(False)
        await wait_until(has_read_on)
        await wait_until(lambda: not server.connections)
    assert len(served) == number
    assert caplog.text == ""


async def test_a_peer_that_never_reads_is_closed_when_it_has_been_idle() -> None:
    """Its answers wait in memory no longer than `connections.max.idle.ms`."""
    async with serving(lambda *_: bytes(50_000_000), max_idle_ms=100) as (server, address):
        with socket.create_connection(address.split(":")) as sock:
            sock.sendall(WireClient(address).frame(KEY, VERSION, b""))
            await wait_until(lambda: bool(server.connections))
            await wait_until(lambda: not server.connections)


async def test_a_crowd_that_ends_at_once_is_closed_over_several_turns() -> None:
    """Beyond the share of a turn, those whose peers have closed them wait for the next turns, and all go."""
    closed: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    crowd = [Taker(turns, f"{number}", 0, 0, closed) for number in range(2 * CLOSED_PER_TURN + 1)]
    later = [turns.closes_later(connection) for connection in crowd]
    assert later == [False] * CLOSED_PER_TURN + [True] * (CLOSED_PER_TURN + 1)
    await asyncio.sleep(0)
    assert len(closed) == CLOSED_PER_TURN
    await asyncio.sleep(0)
    assert len(closed) == CLOSED_PER_TURN + 1
    await asyncio.sleep(0)
    assert turns.closes_later(crowd[0]) is False


async def test_connections_whose_peers_all_end_at_once_are_closed() -> None:
    """None of them stays open, however many there are."""
    async with serving(lambda *_: b"", max_connections=1000) as (server, address):
        host, port = address.split(":")
        crowd = [socket.create_connection((host, int(port))) for _ in range(2 * CLOSED_PER_TURN + 1)]
        await wait_until(lambda: len(server.connections) == len(crowd))
        for sock in crowd:
            sock.close()
        await wait_until(lambda: not server.connections)


async def test_a_crowd_of_idle_connections_is_closed_over_several_turns() -> None:
    """All go, also where the machine runs for less time than they may be idle, and no turn closes more than its share."""
    async with serving(lambda *_: b"", max_connections=1000, max_idle_ms=10**14) as (server, address):
        host, port = address.split(":")
        crowd = [socket.create_connection((host, int(port))) for _ in range(2 * CLOSED_PER_TURN + 1)]
        await wait_until(lambda: len(server.connections) == len(crowd))
        for connection in server.connections:
            connection.last_active_s = -1e12
        server._sweep()
        closing = [connection for connection in server.connections if connection._transport.is_closing()]
        assert len(closing) == CLOSED_PER_TURN
        await wait_until(lambda: not server.connections)
        for sock in crowd:
            sock.close()
