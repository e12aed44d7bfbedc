"""The log lines about connections closed for bad input: one per address and minute, and a count of the rest."""

from __future__ import annotations

import logging
import struct

import pytest

from diamant.broker.network.refused_peers import RefusedPeers
from tests.broker.network.serving import echo, serving
from tests.broker.wire import WireClient
from tests.waiting import wait_until


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


async def test_many_hostile_connections_are_reported_in_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The first is logged at once; the rest are counted in a line after a minute, or when the broker stops."""
    async with serving(echo) as (_, address):
        for _ in range(20):
            async with WireClient(address) as hostile:
                hostile.writer.write(struct.pack(">i", -1))
                assert await hostile.is_closed()
    first, rest = lines(caplog)
    assert "connection closed: " in first
    assert rest.startswith("127.0.0.1: 19 more connections closed in the last 60 s, the last one: ")


async def test_a_peer_that_continues_is_reported_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A peer that stops is dropped."""
    told = RefusedPeers(pause_s=0.01)
    told.log("10.0.0.1:1", "why")
    told.log("10.0.0.1:2", "once more")
    await wait_until(lambda: not told._counts)
    told.log("10.0.0.1:3", "again")
    told.close()
    assert [one.partition(":")[0] for one in lines(caplog)] == ["10.0.0.1"] * 3
    assert "1 more connections" in lines(caplog)[1]


async def test_names_in_a_reason_write_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Line breaks in a principal or a certificate's subject are escaped; printable text is unchanged."""
    told = RefusedPeers()
    told.log("10.0.0.1:1", "User:a\n10.0.0.9:1: connection closed: as usual")
    told.log("10.0.0.2:1", "no rule applies to CN=Jürgen")
    told.close()
    assert [one.count("\n") for one in lines(caplog)] == [0, 0]
    assert "User:a\\n10.0.0.9" in lines(caplog)[0]
    assert "CN=Jürgen" in lines(caplog)[1]


async def test_addresses_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Addresses beyond the bound are counted together."""
    told = RefusedPeers(max_addresses=3)
    for index in range(10):
        told.log(f"[::{index}]:1", "why")
    assert len(told._counts) == 4
    told.close()
    assert len(lines(caplog)) == 5
    assert lines(caplog)[-1].startswith("other addresses: 6 more")
