"""TLS handshakes: their limit, their timeout, and hostile peers. Other clients are not affected."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from diamant.broker.security.tls.handshakes import Handshakes
from tests.broker.network.serving import KEY, VERSION, echo
from tests.broker.security.tls.certificates import client_context
from tests.broker.security.tls.serving import serving_tls
from tests.broker.wire import WireClient
from tests.effort import examples
from tests.waiting import wait_until


class Recorded:
    """A handshake that records the calls on it."""

    def __init__(self, name: str, address: str = "a") -> None:
        self.name = name
        self.address = address
        self.said: list[str] = []

    def advance(self) -> None:
        self.said.append("advance")

    def advanced(self) -> None:
        self.said.append("advanced")

    def give_up(self, reason: str) -> None:
        self.said.append(reason)


def refuse_threads(_: threading.Thread) -> None:
    """Stand in for `Thread.start` on a system that has no more threads."""
    raise RuntimeError("can't start new thread")


async def test_the_one_that_has_waited_longest_for_its_peer_gives_way() -> None:
    """A handshake whose bytes have arrived is kept, since it waits for the broker."""
    handshakes = Handshakes(most=2)
    due, waiting, late = Recorded("due"), Recorded("waiting"), Recorded("late")
    assert handshakes.begin(due)
    assert handshakes.begin(waiting)
    handshakes.step(due)
    assert handshakes.begin(late)
    assert waiting.said == ["its TLS handshake was evicted: more than 2 at the same time"]
    await wait_until(lambda: due.said == ["advance", "advanced"])
    assert len(handshakes) == 2
    handshakes.close()
    assert late.said == [""]


async def test_a_thread_that_the_system_refuses_does_not_end_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that needed the thread fails; the next step of any handshake tries again."""
    handshakes = Handshakes(most=2)
    refused, next_ = Recorded("refused"), Recorded("next")
    assert handshakes.begin(refused)
    assert handshakes.begin(next_)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_threads)
        with pytest.raises(RuntimeError, match="new thread"):
            handshakes.step(refused)
    handshakes.step(next_)
    await wait_until(lambda: next_.said == ["advance", "advanced"])
    handshakes.close()


async def test_an_address_with_many_does_not_push_out_others() -> None:
    """The address's own handshakes are evicted, even if those of others have waited longer."""
    handshakes = Handshakes(most=4)
    honest = [Recorded("honest", "b"), Recorded("honest", "c")]
    greedy = [Recorded(str(number)) for number in range(20)]
    for one in (*honest, *greedy):
        assert handshakes.begin(one)
        if one.name == "3":
            handshakes.step(honest[0])  # what comes back to waiting waits among its own
            handshakes.wait(honest[0])
    assert [one.name for one in greedy if not one.said] == ["18", "19"]
    assert handshakes.begin(Recorded("late", "d"))
    assert [one.name for one in greedy if not one.said] == ["19"]
    handshakes.close()
    assert [one.said[-1] for one in honest] == ["", ""]


async def test_the_longest_waiting_handshake_gives_way_among_equals() -> None:
    """The longest wait decides if all addresses have one handshake."""
    handshakes = Handshakes(most=2)
    first, second = Recorded("first", "a"), Recorded("second", "b")
    for one in (first, second, Recorded("third", "c")):
        assert handshakes.begin(one)
    assert (len(first.said), second.said) == (1, [])
    handshakes.close()


async def test_there_is_no_room_when_all_wait_for_the_broker() -> None:
    """The new client is refused and has to retry."""
    handshakes = Handshakes(most=1)
    due = Recorded("due")
    handshakes.begin(due)
    handshakes.step(due)
    assert not handshakes.begin(Recorded("late"))
    handshakes.close()


async def test_one_that_takes_too_long_is_given_up() -> None:
    """Each handshake has its own timeout, from its start."""
    handshakes = Handshakes(timeout_s=0.02)
    first, second = Recorded("first"), Recorded("second")
    handshakes.begin(first)
    handshakes.wait(first)
    await wait_until(lambda: first.said == ["no TLS handshake within 0.02 s"])
    handshakes.begin(second)
    await wait_until(lambda: second.said != [])
    assert len(handshakes) == 0
    handshakes.close()
    assert not handshakes.begin(Recorded("after"))


async def test_one_that_has_begun_later_is_given_up_later() -> None:
    """The end of one timeout leaves the others running."""
    handshakes, loop = Handshakes(timeout_s=0.05), asyncio.get_running_loop()
    first, second = Recorded("first"), Recorded("second")
    begun_s = loop.time()
    handshakes.begin(first)
    await wait_until(lambda: loop.time() >= begun_s + 0.02)
    handshakes.begin(second)
    await wait_until(lambda: second.said != [])
    assert first.said == second.said == ["no TLS handshake within 0.05 s"]
    handshakes.close()


async def test_silent_peers_cost_others_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With more silent peers than the limit, a client still connects, and the oldest are evicted, which floods no log.

    Every second one has begun its handshake.
    """
    async with serving_tls(echo) as (_, address, tls):
        tls.handshakes = handshakes = Handshakes(most=20)
        silent = [await asyncio.open_connection(*address.split(":")) for _ in range(200)]
        for _, writer in silent[::2]:
            writer.write(client_hello(client_context(tmp_path)))
        await wait_until(lambda: len(handshakes) == 20)
        async with WireClient(address, client_context(tmp_path)) as client:
            client.writer.write(client.frame(KEY, VERSION, b"through"))
            assert await client.receive_frame() == (1, b"through")
        for _, writer in silent:
            writer.close()
        await wait_until(lambda: len(handshakes) == 0)
        handshakes.close()
    assert "was evicted" in caplog.records[0].getMessage()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 2


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return the first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Copies with bytes changed, removed, repeated or truncated."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(changed))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            del changed[at : at + chance.randrange(1, 20)]
        elif kind == 2:
            changed[at:at] = changed[at : at + chance.randrange(1, 200)]
        else:
            changed = changed[: max(at, 1)]
        if not changed:
            changed = bytearray(b"\x16")
    return bytes(changed)


async def asked_and_closed(address: str, data: bytes) -> None:
    """Send bytes, end, and read until the broker closes."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(60):
            await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_damaged_client_hellos_harm_nothing(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each gets an alert or is closed. A later client connects, and the broker has no errors."""
    chance = random.Random(seed)
    context = client_context(tmp_path)
    hello = client_hello(context)
    async with serving_tls(echo) as (_, address, tls):
        for _ in range(examples(400)):
            await asked_and_closed(address, damaged(hello, chance))
        async with WireClient(address, context) as client:
            client.writer.write(client.frame(KEY, VERSION, b"through"))
            assert await client.receive_frame() == (1, b"through")
        await wait_until(lambda: len(tls.handshakes) == 0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_garbage_after_the_handshake_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that cannot be decrypted are not a request."""
    async with serving_tls(echo) as (server, address, _tls):
        plain = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(tmp_path).wrap_bio(incoming, outgoing, server_hostname="localhost")
        await asyncio.to_thread(_shake_hands, plain, client, incoming, outgoing)
        await wait_until(lambda: len(server.connections) == 1)
        plain.sendall(b"\x17\x03\x03\0\x40" + bytes(64))
        await wait_until(lambda: not server.connections)
        plain.close()
    assert "TLS failed" in caplog.records[0].getMessage()


def _shake_hands(plain: socket.socket, client: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(65536))
            continue
        plain.sendall(outgoing.read())
        return


@pytest.mark.slow
async def test_renegotiation_is_refused() -> None:
    """A TLS 1.2 client cannot renegotiate, which would bypass the limit on handshakes."""
    async with serving_tls(echo) as (_, address, _tls):
        command = ["openssl", "s_client", "-connect", address, "-tls1_2"]
        client = await asyncio.to_thread(
            subprocess.run, command, input=b"R\n", capture_output=True, timeout=60, check=False
        )
        assert b"no renegotiation" in client.stderr or b"RENEGOTIATING" in client.stdout
        assert client.stdout.count(b"Cipher is ECDHE") <= 1
