"""Counts of records of a topic and its segments, by kind: exact ones, and quick ones within valid bounds."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import NotFound
from diamant.broker.operations.calls.blocking import Stopped
from diamant.broker.operations.figures import background_counts
from diamant.broker.operations.figures.background_counts import BackgroundCounts
from diamant.cleaner.queries.partition_count import count_by_keys
from diamant.cleaner.rules.record_kinds import KindBounds, Kinds
from diamant.storage.log.log import Log
from tests.broker.http_asking import ask
from tests.broker.operations.explain.explained import Stage, stage
from tests.broker.operations.explain.test_explain_asking import HTTP
from tests.broker.operations.explain.test_explain_asking import ask as ask_at


def exact(count: KindBounds) -> dict[str, int]:
    """Return the numbers of an exact count."""
    assert count.least == count.most
    return count.least.to_fields()


async def check(at: Stage, **expected: int) -> dict[str, Any]:
    """Compare the exact count with the expected numbers, and the bounds with the exact ones; return the bounds."""
    (found,) = (await at.broker.count("t", exact=True)).partitions
    numbers = exact(found.count)
    assert numbers.items() >= expected.items()
    bounds = (await at.broker.count("t", exact=False)).to_fields()
    assert numbers.pop("below_log_start") == 0
    for name, number in numbers.items():
        assert bounds[name]["least"] <= number <= bounds[name]["most"], (name, bounds, numbers)
    return bounds


@pytest.mark.parametrize("seed", range(6))
async def test_counts_at_once_are_bounds_of_the_exact_ones(tmp_path: Path, seed: int) -> None:
    """The bounds hold with values, deletions, aborted, committed and open transactions, in closed and active segments.

    tests/cleaner/queries compares the exact ones with a naive count.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with stage(tmp_path, max_compaction_lag_ms="9000000000", min_cleanable_dirty_ratio="1") as at:
        is_open = False
        for _ in range(40):
            key, action = f"k{chance.randrange(8)}", chance.random()
            if action < 0.6:
                await at.put(f"{key}={'v' if action < 0.45 else ''}")
            elif action < 0.75:
                at.put_transactional(key)
                is_open = True
            elif action < 0.9 and is_open:
                at.end_transaction(is_commit=chance.random() < 0.5)
                is_open = False
            else:
                await at.roll()
        await check(at)


async def test_after_a_compaction_the_count_at_once_is_exact(tmp_path: Path) -> None:
    """Without a dirty part, headers suffice for an exact count; each later record widens the bounds by one."""
    async with stage(tmp_path, broker=HTTP) as at:
        await at.play("a=1 b=1 c=1 | a=2 b=")
        await at.broker.compact("t")
        expected = {"records": 3, "live": 2, "superseded": 0, "tombstones": 1, "keyless": 0, "markers": 0}
        bounds = await check(at, **expected)
        assert all(bounds[name] == {"least": count, "most": count} for name, count in expected.items())
        await at.put("a=3")
        bounds = await check(at, **{**expected, "records": 4, "superseded": 1})
        assert bounds["records"] == {"least": 4, "most": 4}
        assert bounds["live"] == {"least": 1, "most": 3}
        status, found = await ask_at(at, "/v1/count", {"topic": "t", "exact": True})
        assert (status, found["superseded"], found["is_exact"]) == (200, {"least": 1, "most": 1}, True)
        at.log.delete_records(4)  # in the midst of a batch: b= is left of it
        await check(at, **{**expected, "records": 2, "live": 1})


async def test_a_count_is_exact_unless_it_is_large(broker: Broker) -> None:
    """Whatever is dirty. Partitions beyond the bound, of bytes or of processor time, get bounds, and the answer names it."""
    numbers = {"live": {"least": 6, "most": 6}, "superseded": {"least": 34, "most": 34}}
    found = (await ask(broker, "POST", "/v1/count", {"topic": "users"})).json
    assert (found["is_exact"], found["why_not_exact"]) == (True, None)
    assert found.items() >= numbers.items()
    counting, small = broker.services.count(), logs_of(broker)[1].size
    for unasked_bytes, unasked_s, why, exactly_counted in (
        (small, 60.0, "more than 1 GiB of a topic are counted only on request", [False, True]),
        (1 << 30, 0.0, "counting that takes more than 1 s of processor time is done only on request", [False, False]),
    ):
        counting.unasked_bytes, counting.unasked_s = unasked_bytes, unasked_s
        found = (await ask(broker, "POST", "/v1/count", {"topic": "users"})).json
        assert (found["is_exact"], found["why_not_exact"]) == (False, why)
        live = [one["live"] for one in found["partitions"][:2]]
        assert [one["least"] == one["most"] for one in live] == exactly_counted
        exact = (await ask(broker, "POST", "/v1/count", {"topic": "users", "exact": True})).json
        assert (exact["is_exact"], exact["why_not_exact"]) == (True, None)
        assert exact.items() >= numbers.items()


async def test_a_count_is_of_one_moment(tmp_path: Path) -> None:
    """Concurrent rounds change nothing; keys beyond the memory are counted from files."""
    async with stage(tmp_path) as at:
        for turn in range(3):
            await at.put(*(f"k{index}={turn}" for index in range(2000)))
            await at.roll()
        taken, files = await at.broker.services.explain().open(at.log)
        with files:
            await at.broker.compact("t")
            assert len(await at.offsets()) == 2000
            found, problems = await asyncio.to_thread(
                count_by_keys, files.present(), taken.outcomes, 0, max_bytes=100_000
            )
        assert found == Kinds(6000, live=2000, superseded=4000)
        assert not problems


async def test_topics_that_are_not_compacted_and_not_there(tmp_path: Path) -> None:
    """Keys are counted all the same; the quick count knows only the number of records."""
    async with stage(tmp_path, cleanup_policy="delete") as at:
        await at.put("a=1", "a=2")
        bounds = await check(at, records=2, live=1, superseded=1)
        assert (bounds["records"], bounds["live"]) == ({"least": 2, "most": 2}, {"least": 0, "most": 2})
        with pytest.raises(NotFound):
            await at.broker.count("absent")


async def test_a_count_that_takes_long_is_shared_and_known_later(tmp_path: Path) -> None:
    """Callers that do not wait get the last counts; one count serves them all."""
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
    """A broker with a compacted topic of three partitions: the second is the smallest, the third is empty."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "diamant_http_listen": "127.0.0.1:0"}
    async with Broker(data_dir=str(tmp_path / "data"), **settings) as running:
        await running.create_topic("users", 3, compact=True)
        for number in range(40):
            await running.produce("users", "v", key=f"k{number % 4}", partition=int(number % 10 == 0))
        yield running


def logs_of(broker: Broker) -> list[Log]:
    """Return the partitions of the topic."""
    return [*broker.node.topics.by_name["users"].logs.values()]


async def test_viewed_topics_are_counted_in_the_background(broker: Broker) -> None:
    """Topics are counted one by one, the smallest first, and again after writes; a pause after each count limits the load to 1
    %.
    """
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
    """The partial result is dropped when nobody looks; the next view begins again."""
    counts = broker.services.background_counts()
    counts.look([])
    counts.check_wanted()
    counts._wanted_until_s = 0.0
    with pytest.raises(Stopped):
        counts.check_wanted()


async def test_a_partition_that_cannot_be_counted_is_left_alone_for_a_while(broker: Broker) -> None:
    """The others are counted; it is retried later."""
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
    """A large partition is not counted automatically; a request for all has a job with progress."""
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
    """The count's job ends: nothing is kept, and the next one can run."""
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
