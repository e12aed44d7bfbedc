"""Erasures during normal traffic, over many partitions, and queued with other calls."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import TimedOut
from diamant.broker.operations.compactions.compactions import PARTITIONS_PER_TURN
from diamant.progress import Progress
from tests.broker.erasure.brokers import data_of, env_of, move_to
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase, unfinished, wait_idle
from tests.broker.erasure.issued import verify
from tests.broker.erasure.obstacles import TimeLimit, erase_in_vain, hold_up
from tests.broker.erasure.records import create, create_with_key, values_left, write
from tests.waiting import wait_until


@pytest.fixture
async def meanwhile(broker: Broker) -> list[Callable[[], Any]]:
    """Actions to run on the loop before a thread lists the directory: to locate a key, to scan, for each census."""
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
    """Erase with `now`, and verify."""
    erasure = await erase(broker, now=True)
    assert (erasure.state, erasure.certificate["coverage"]["not_read"]) == ("key-gone", [])
    assert values_left(broker) == []
    found = await verify(broker, erasure.certificate)
    assert (found.outcome, found.coverage_adds_up) == ("valid", True)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("busy", ["clicks", "users"])
async def test_a_producer_that_never_rests(
    broker: Broker, meanwhile: list[Callable[[], Any]], policy: str, busy: str
) -> None:
    """While a producer writes to this or another topic, a segment is rolled before each listing of the directory."""
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


async def test_another_topic_is_cleaned_meanwhile(broker: Broker, meanwhile: list[Callable[[], Any]]) -> None:
    """The segments of another topic are replaced during the scan."""
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


async def test_one_that_is_held_up_does_not_have_the_others_compacted_again(broker: Broker) -> None:
    """Clean partitions are not compacted again while an open transaction holds another one."""
    await create_with_key(broker, 3)
    producer = hold_up(broker, partition=2)
    rounds = 0

    def count(progress: Progress) -> None:
        nonlocal rounds
        rounds += progress.stage == "compacting" and progress.done == progress.total

    progress = Progress(count)
    call = asyncio.ensure_future(erase(broker, progress=progress))
    await wait_until(lambda: rounds >= 3)
    await wait_until(lambda: progress.stage.startswith("waiting for a transaction of producer 5, open since offset "))
    (listed,) = unfinished(broker)
    assert listed["waits_for"].startswith("a transaction of producer 5, open since 2023-11-14 ")
    assert "keeps offsets 0 to 2 of users-2" in listed["waits_for"]
    assert "abort --topic users --partition 2 --start-offset 1" in listed["waits_for"]
    producer.end(is_commit=True)
    erasure = await call
    assert (erasure.state, [one["waits_for"] for one in unfinished(broker)]) == ("values-gone", [None])
    assert [one["compactions"] for one in erasure.certificate["done"]] == [1, 1, rounds]


async def test_a_certificate_names_the_transaction_that_keeps_the_values(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction is named by producer and offset, since its id may contain what is erased. Lists show it in place of the next
    attempt.
    """
    await create_with_key(broker)
    producer = hold_up(broker)
    with pytest.raises(TimedOut):
        await erase_in_vain(broker, monkeypatch)
    ((erasure_id, due_ms),) = [(one["id"], one["due_ms"]) for one in unfinished(broker)]
    move_to(broker, due_ms)
    await wait_idle(broker)
    certificate = await broker.services.certificates().last(erasure_id)
    (refused,) = certificate["not_certified"]
    reason = "a transaction of producer 5, open since offset 1, keeps records from being removed until it ends"
    assert {"file": "users-0", "reason": reason} in refused["problems"]
    (listed,) = unfinished(broker)
    assert listed["waits_for"].startswith("a transaction of producer 5, open since 2023-")
    producer.end(is_commit=True)
    move_to(broker, listed["due_ms"])
    await wait_idle(broker)
    assert [one["waits_for"] for one in unfinished(broker)] == [None]


async def test_segments_are_closed_a_few_at_a_time(broker: Broker) -> None:
    """Closing a segment blocks the loop for a millisecond or two, so few are closed at a time."""
    await create_with_key(broker, 12)
    loop, is_over = asyncio.get_running_loop(), False
    closed: list[int] = []
    """After each turn: the segments that are closed, or were."""

    def count() -> None:
        logs = [broker.node.topics.log("users", partition) for partition in range(12)]
        closed.append(sum(log.active.base_offset > 0 for log in logs))
        if not is_over:
            loop.call_soon(count)

    count()
    erasure = await erase(broker)
    is_over = True
    assert erasure.state == "values-gone"
    assert closed[-1] == 12
    assert max(after - before for before, after in pairwise(closed)) <= 2 * PARTITIONS_PER_TURN


async def said_at_its_limit(call: Awaitable[object], limit: TimeLimit, is_there: Callable[[], object]) -> str:
    """Return the error of a call that times out once it reaches its wait."""
    waiting = asyncio.ensure_future(call)
    await wait_until(lambda: waiting.done() or bool(is_there()))
    limit.end()
    with pytest.raises(TimedOut) as caught:
        await waiting
    return str(caught.value)


@pytest.mark.slow
async def test_a_call_whose_turn_does_not_come_says_whose_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the job that holds the lock. Cancelling that job lets others run."""
    await create_with_key(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), topic="orders")

    hanging: list[bool] = []

    async def hang(*_arguments: object, **_options: object) -> None:
        hanging.append(True)
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(broker.services.compactions(), "compact", hang)
        limit = TimeLimit(patched)
        own = await said_at_its_limit(erase(broker, timeout=f"{limit.ms}ms"), limit, lambda: hanging)
        ((erasure_id, due_ms),) = [(one["id"], one["due_ms"]) for one in unfinished(broker)]
        assert "turn" not in own
        move_to(broker, due_ms)
        await wait_until(lambda: broker.services.erasures().queue.attempts.lock.holder == f"erasure {erasure_id}")
        said = rf"because it waits for erasure {erasure_id}, .*cancel that one if it hangs.*; nothing was"
        other = erase(broker, topics=["orders"], timeout=f"{limit.ms}ms")
        assert re.search(
            said, await said_at_its_limit(other, limit, lambda: broker.services.erasures().queue.attempts.waiting)
        )
        redaction = broker.redact(
            "orders", where='key == "a"', reason="ticket 4711", yes_all=True, timeout=f"{limit.ms}ms"
        )
        assert re.search(
            said, await said_at_its_limit(redaction, limit, lambda: broker.services.redactions().queue.attempts.waiting)
        )
    await broker.cancel(erasure_id, reason="it hangs")
    assert (await erase(broker, topics=["orders"])).state == "values-gone"
