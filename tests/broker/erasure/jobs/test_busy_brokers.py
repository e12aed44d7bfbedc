"""Erasures beside what a broker does all day: topics that roll, lose segments to retention, and are cleaned; all is certified."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.storage.log.segment_removal import delete_oldest
from tests.broker.erasure.cases import KEY, create, create_with_key, data_of, env_of, erase, pinned, values_left, write
from tests.broker.erasure.obstacles import at_stage


@pytest.fixture
async def meanwhile(broker: Broker) -> list[Callable[[], Any]]:
    """Is called on the broker's loop before a thread lists the directory: to locate a key, to scan, for each look of a census."""
    acts: list[Callable[[], Any]] = []
    loop, thread = asyncio.get_running_loop(), threading.current_thread()

    def act() -> None:
        if threading.current_thread() is thread:
            return
        for one in acts:

            async def call(one: Callable[[], Any] = one) -> None:
                result = one()
                if asyncio.iscoroutine(result):
                    await result

            asyncio.run_coroutine_threadsafe(call(), loop).result(20)

    env_of(broker).before("list_dir", str(data_of(broker)), act)
    return acts


async def check_certified(broker: Broker) -> None:
    """Erase at once, and verify."""
    erasure = await erase(broker, is_now=True)
    assert (erasure.state, erasure.certificate["coverage"]["not_read"]) == ("key-gone", [])
    assert values_left(broker) == []
    found = await broker.services.certificates().verify(
        erasure.certificate, public_key=pinned(erasure.certificate), key=KEY
    )
    assert (found.outcome, found.coverage_adds_up) == ("valid", True)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("busy", ["clicks", "users"])
async def test_a_producer_that_never_rests(
    broker: Broker, meanwhile: list[Callable[[], Any]], policy: str, busy: str
) -> None:
    """In another topic or in the same one a segment is rolled whenever anybody looks."""
    await create(broker, "clicks", policy=policy)
    await create_with_key(broker, others=5)
    numbers = iter(range(10_000))

    def produce() -> None:
        log = broker.node.topics.log(busy, 0)
        for _ in range(2):
            write(broker, (b"visitor-%d" % next(numbers), b"x" * 300), topic=busy)
            log.roll()
        broker.node.log_events.changed(log)

    meanwhile.append(produce)
    await check_certified(broker)
    assert next(numbers) < 100


@pytest.mark.parametrize("suffix", [".index", ".txnindex", ".snapshot", ".log.deleted", ".log.swap", ".log.cleaned"])
async def test_a_copy_under_the_name_of_a_segment_begun_since_is_read(
    broker: Broker, meanwhile: list[Callable[[], Any]], suffix: str
) -> None:
    """A name makes no file the log's own: what came while the scan ran may hold anything."""
    await create_with_key(broker, others=5, codec=1)
    log = broker.node.topics.log("users", 0)
    copy = (data_of(broker) / "users-0/00000000000000000000.log").read_bytes()
    looks = iter(range(10_000))

    def roll() -> None:
        # The first look of the scan is its census's.
        if next(looks) == 1:
            write(broker, (b"visitor", b"x"))
            (data_of(broker) / f"users-0/{log.roll().base_offset:020}{suffix}").write_bytes(copy)

    erasure = await erase(broker, progress=at_stage("scanning everything", lambda: meanwhile.append(roll)))
    (refused,) = erasure.certificate["not_certified"]
    assert suffix in refused["problems"][0]["file"]


async def test_retention_takes_what_was_begun_since(broker: Broker, meanwhile: list[Callable[[], Any]]) -> None:
    """Segments of another topic go that were not there when the scan began."""
    await create(broker, "clicks", policy="delete")
    await create_with_key(broker, others=5)

    rounds = iter(range(6))

    def produce() -> None:
        log = broker.node.topics.log("clicks", 0)
        for _ in range(3):
            write(broker, (b"visitor", b"x" * 300), topic="clicks")
            log.roll()
        # Which is looked for every few minutes; each time a checkpoint is replaced, too.
        if next(rounds, None) is not None:
            delete_oldest(log, len(log.segments) - 2)

    meanwhile.append(produce)
    await check_certified(broker)
    assert list((data_of(broker) / "clicks-0").glob("*.deleted"))


async def test_another_topic_is_cleaned_meanwhile(broker: Broker, meanwhile: list[Callable[[], Any]]) -> None:
    """Its segments are replaced while everything is read."""
    await create(broker, "accounts")
    await create_with_key(broker, others=5)
    rounds = iter(range(4))

    async def clean() -> None:
        if next(rounds, None) is not None:
            for number in range(20):
                write(broker, (b"account-%d" % (number % 3), b"x" * 100), topic="accounts")
            await broker.compact("accounts", 0, until="clean")

    meanwhile.append(clean)
    await check_certified(broker)
    assert next(rounds, None) is None
