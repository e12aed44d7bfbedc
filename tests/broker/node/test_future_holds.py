"""Partitions held by timestamps in the future: in the log, in `status`, in the metrics, and on the page."""

from __future__ import annotations

import logging

import aiohttp
import pytest

from diamant.storage.env.clocks import SettableClock
from tests.broker.compacted import produce
from tests.broker.running import running
from tests.memory_env import MemoryEnv

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
METRIC = "diamant_future_hold_partitions"


async def test_all_views_know_the_held_partitions(caplog: pytest.LogCaptureFixture) -> None:
    """A partition is held from the append on until retention removes the segment; a topic without retention by time is never
    held.
    """
    clock = SettableClock(START_MS)
    configs = {"message_timestamp_after_max_ms": str(40 * DAY_MS)}
    async with (
        running(MemoryEnv(clock), diamant_http_listen="127.0.0.1:0") as (broker, wire),
        aiohttp.ClientSession() as http,
    ):
        await wire.create("held", 1, retention_ms=str(HOUR_MS), **configs)
        await wire.create("kept", 1, retention_ms="-1", **configs)
        await wire.create("compacted", 1, cleanup_policy="compact", **configs)
        for topic in ("held", "kept", "compacted"):
            await produce(wire, topic, "k=1", timestamp=START_MS + 30 * DAY_MS)
        until_ms = START_MS + 30 * DAY_MS + HOUR_MS + 1

        async def texts() -> tuple[str, str]:
            return tuple([await (await http.get(f"{broker.http_url}{path}")).text() for path in ("/metrics", "/")])

        for now_ms, is_held in ((START_MS, True), (until_ms - 1, False), (until_ms, False)):
            clock.set_ms(now_ms)
            await broker.services.housekeeping.retain()
            expected = [{"topic": "held", "partition": 0, "until_ms": until_ms}] if is_held else []
            status = await (await http.get(f"{broker.http_url}/v1/status")).json()
            metrics, page = await texts()
            assert status["future_holds"] == expected
            assert f"{METRIC} {len(expected)}.0" in metrics
            assert ("timestamps in the future keep its oldest segment" in page) == is_held
        assert not broker.node.topics.log("held", 0).segments[0].size
    assert "timestamps in the future keep segments longer than retention.ms: held-0 until 2023-12-14T23:13:20.001Z" in (
        caplog.text
    )


async def test_the_log_names_a_partition_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    """A check that finds the same partitions logs nothing; another partition is named alone, and all of them a day later."""
    clock = SettableClock(START_MS)
    configs = {"message_timestamp_after_max_ms": str(40 * DAY_MS), "retention_ms": str(HOUR_MS)}
    with caplog.at_level(logging.WARNING, logger="diamant.broker.node.future_holds"):
        async with running(MemoryEnv(clock)) as (broker, wire):
            for topic in ("a", "b"):
                await wire.create(topic, 1, **configs)
            lines = []
            for step in ("a", "", "b", "", "a day"):
                if step in ("a", "b"):
                    await produce(wire, step, "k=1", timestamp=START_MS + 30 * DAY_MS)
                clock.advance_ms(DAY_MS if step == "a day" else 1000)
                caplog.clear()
                await broker.services.housekeeping.retain()
                lines.append([one.getMessage().count(" until ") for one in caplog.records])
            assert lines == [[1], [], [1], [], [2]]
