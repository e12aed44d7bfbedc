"""Handshakes: their number, their time, and that they do not hold up anything else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant.broker.security.tls.handshakes import Handshakes
from tests.broker.security.tls.certificates import client_context
from tests.broker.security.tls.serving import serving_tls
from tests.broker.security.tls.test_connection import KEY, VERSION, echo
from tests.broker.wire import WireClient
from tests.waiting import wait_until


class Recorded:
    """A handshake that remembers what is done to it."""

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


async def test_the_one_that_has_waited_longest_for_its_peer_gives_way() -> None:
    """One whose bytes are there does not: it waits for the broker."""
    handshakes = Handshakes(most=2)
    due, waiting, late = Recorded("due"), Recorded("waiting"), Recorded("late")
    assert handshakes.begin(due)
    assert handshakes.begin(waiting)
    handshakes.step(due)
    assert handshakes.begin(late)
    assert waiting.said == ["its TLS handshake has to give way: more than 2 at the same time"]
    await wait_until(lambda: due.said == ["advance", "advanced"])
    assert len(handshakes) == 2
    handshakes.close()
    assert late.said == [""]


async def test_an_address_with_many_does_not_push_out_others() -> None:
    """Its own give way, to itself and to others, even if those of others have waited longer."""
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


async def test_where_all_have_one_the_longest_waiting_gives_way() -> None:
    """As without addresses."""
    handshakes = Handshakes(most=2)
    first, second = Recorded("first", "a"), Recorded("second", "b")
    for one in (first, second, Recorded("third", "c")):
        assert handshakes.begin(one)
    assert (len(first.said), second.said) == (1, [])
    handshakes.close()


async def test_there_is_no_room_when_all_wait_for_the_broker() -> None:
    """The newcomer has to try again."""
    handshakes = Handshakes(most=1)
    due = Recorded("due")
    handshakes.begin(due)
    handshakes.step(due)
    assert not handshakes.begin(Recorded("late"))
    handshakes.close()


async def test_one_that_takes_too_long_is_given_up() -> None:
    """Each has its own time, from its begin."""
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


async def test_silent_peers_cost_others_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With more of them than there may be, a client still gets through, and the oldest have gone."""
    async with serving_tls(echo) as (_, address, tls):
        tls.handshakes = handshakes = Handshakes(most=20)
        silent = [await asyncio.open_connection(*address.split(":")) for _ in range(50)]
        await wait_until(lambda: len(handshakes) == 20)
        async with WireClient(address, client_context(tmp_path)) as client:
            client.writer.write(client.frame(KEY, VERSION, b"through"))
            assert await client.receive_frame() == (1, b"through")
        for _, writer in silent:
            writer.close()
        await wait_until(lambda: len(handshakes) == 0)
        handshakes.close()
    assert "has to give way" in caplog.records[0].getMessage()
