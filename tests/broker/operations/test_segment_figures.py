"""Counts of the records of each segment, for those who do not wait long."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operations.calls.blocking import Stopped
from diamant.broker.operations.figures import background_counts
from diamant.broker.operations.figures.background_counts import BackgroundCounts
from diamant.storage.log.log import Log
from tests.broker.http_asking import ask


async def test_a_count_that_takes_long_is_shared_and_known_later(tmp_path: Path) -> None:
    """Those who do not wait get what is known; one count serves them all."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0"}
    async with Broker(data_dir=str(tmp_path / "data"), **settings) as broker:
        await broker.create_topic("users", compact=True)
        await broker.produce("users", "v", key="k")
        log = broker.node.topics.by_name["users"].logs[0]
        figures = broker.services.segment_figures()
        async with figures._lock:  # another partition is being counted
            assert await figures.soon(log, 0) is None
            [counting] = figures._counting.values()
            assert await figures.soon(log, 0) is None
            assert [*figures._counting.values()] == [counting]
        found = await counting
        assert found is not None
        assert figures.known(log) is found
        assert found.is_current
        assert await figures.soon(log, 60) is found
        assert figures._counting == {}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a compacted topic of three partitions, of which the second is the smallest and the third is empty."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "diamant_http_listen": "127.0.0.1:0"}
    async with Broker(data_dir=str(tmp_path / "data"), **settings) as running:
        await running.create_topic("users", 3, compact=True)
        for number in range(40):
            await running.produce("users", "v", key=f"k{number % 4}", partition=int(number % 10 == 0))
        yield running


def logs_of(broker: Broker) -> list[Log]:
    """The partitions of the topic."""
    return [*broker.node.topics.by_name["users"].logs.values()]


async def test_what_is_looked_at_is_counted_in_the_background(broker: Broker) -> None:
    """One after the other, the smallest first; again when it was written to; after each the rest of its hundredth is a pause."""
    figures, counts = broker.services.segment_figures(), broker.services.background_counts()
    logs = logs_of(broker)
    assert figures.share(logs) == (2, 0, 0, 0)
    counts.look(logs)
    counts.look(logs)  # one at a time
    assert counts._task is not None
    await counts._task
    assert [figures.sums(log) is not None for log in logs] == [False, True, False]
    counts._from_s = 0.0
    counts.look(logs)
    await counts._task
    share = figures.share(logs)
    assert (share, share.ratio) == ((2, 2, 40, 34), 0.85)
    known = counts._task
    counts._from_s = 0.0
    counts.look(logs)
    assert counts._task is known  # all are current
    await broker.produce("users", "v", key="k1", partition=0)
    first = figures._sums["users", 0]
    figures._sums["users", 0] = first._replace(took_s=1000.0)
    counts.look(logs)
    assert counts._task is known  # it was counted too short a time ago for what it costs
    figures._sums["users", 0] = first._replace(counted_s=0.0)
    counts.look(logs)
    await counts._task
    assert figures.share(logs).superseded == 35
    assert counts._from_s > 0


async def test_a_count_ends_when_nobody_looks(broker: Broker) -> None:
    """What it has read is dropped; the next look begins again."""
    counts = broker.services.background_counts()
    counts.look([])
    counts.check_wanted()
    counts._wanted_until_s = 0.0
    with pytest.raises(Stopped):
        counts.check_wanted()


async def test_a_partition_that_cannot_be_counted_is_left_alone_for_a_while(broker: Broker) -> None:
    """The others are counted; it is tried again later."""
    figures, counts = broker.services.segment_figures(), BackgroundCounts(broker.services.segment_figures())
    logs = logs_of(broker)
    path = logs[1].segments[0].path
    os.rename(path, f"{path}.hidden")
    for _ in range(2):
        counts._from_s = 0.0
        counts.look(logs)
        assert counts._task is not None
        await counts._task
    assert [figures.sums(log) is not None for log in logs] == [True, False, False]
    os.rename(f"{path}.hidden", path)
    counts._failed = dict.fromkeys(counts._failed, -background_counts.RETRY_S)
    counts._from_s = 0.0
    counts.look(logs)
    await counts._task
    assert figures.share(logs).counted == 2


async def test_a_large_partition_is_counted_on_request(broker: Broker) -> None:
    """Not unasked; a request that asks for all has a job, with its progress."""
    figures = broker.services.segment_figures()
    figures.unasked_bytes = 100
    large = logs_of(broker)[0]
    assert await figures.soon(large, 60) is None
    answer = (await ask(broker, "POST", "/v1/segments", {"topic": "users", "all": True})).json
    counts = answer["partitions"][0]["segments"][0]["counts"]
    assert (counts["live"], counts["superseded"]) == (4, 32)
    assert figures.progress(large) is None
    assert await figures.soon(large, 60) is figures.known(large)


async def test_a_count_is_cancelled(broker: Broker) -> None:
    """As by ending its job: nothing of it is kept, and the next one has the place."""
    figures = broker.services.segment_figures()
    log = logs_of(broker)[0]
    is_reading, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def pace() -> None:
        loop.call_soon_threadsafe(is_reading.set)
        may_end.wait()

    counting = asyncio.ensure_future(figures.count(log, pace=pace))
    await is_reading.wait()
    assert figures.progress(log) is not None
    counting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counting
    may_end.set()
    assert (figures.progress(log), figures.known(log)) == (None, None)
    assert (await figures.count(log)).is_current
