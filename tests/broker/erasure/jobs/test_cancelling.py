"""Timeouts and cancellations: their texts are true, and a user can end a job that would never end."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.operation_errors import BadArgument, BrokerStopping, NotFound, NotPossible, TimedOut
from diamant.cleaner.evidence.certificates.page import certificate_page
from tests.broker.erasure.brokers import broker_at, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, intents_of, unfinished
from tests.broker.erasure.faulty_env import Held
from tests.broker.erasure.issued import certificates_of, certified_at, verify
from tests.broker.erasure.obstacles import TimeLimit, damage, erase_in_vain, hold_up, told_at_its_limit
from tests.broker.erasure.records import create_with_key, values_left
from tests.cleaner.evidence.scan.naive_scanner import files_with
from tests.waiting import wait_until

# -- timeouts ----------------------------------------------------------------------------------------------------------------


async def test_a_timeout_while_the_intent_is_written_says_that_it_continues(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer and the next start agree that the erasure continues."""
    await create_with_key(broker)
    held, limit = Held(broker.env, "rename", "*.intent.tmp"), TimeLimit(monkeypatch)
    told = await told_at_its_limit(
        erase(broker, timeout=f"{limit.ms}ms"), held, limit, broker.services.erasures().queue
    )
    assert "it continues in the broker" in told
    assert len(intents_of(broker)) == 1
    await certified_at(broker, START_MS + RETRY_MS, "values-gone")
    assert files_with(data_of(broker), PERSON) == []


# -- cancelled by its user ---------------------------------------------------------------------------------------------------


async def waiting_erasure(broker: Broker) -> str:
    """Return the id of an erasure that waits for its horizon."""
    await create_with_key(broker)
    return (await erase(broker)).id


async def held_call(broker: Broker) -> tuple[str, asyncio.Future[Any]]:
    """Return a call that waits for an erasure held by a transaction, and the erasure's id."""
    await create_with_key(broker)
    hold_up(broker)
    call = asyncio.ensure_future(erase(broker))
    await wait_until(lambda: unfinished(broker) != [])
    return unfinished(broker)[0]["id"], call


async def test_an_erasure_that_can_never_be_certified_is_cancelled(broker: Broker) -> None:
    """The last certificate says that it was cancelled and claims nothing; the intent is removed."""
    await create_with_key(broker, 2)
    damage(broker, partition=1)
    erasure = await erase(broker)
    assert (erasure.state, len(unfinished(broker))) == ("not-certified", 1)
    with pytest.raises(BadArgument, match="reason is missing"):
        await broker.cancel(erasure.id, reason=" ")
    ended = await broker.cancel(erasure.id, reason="the disk is replaced")
    certificate = ended.certificate
    assert (ended.id, ended.state, ended.next_due_ms) == (erasure.id, "not-certified", None)
    assert certificate["ended"] == {"what": "cancelled", "reason": "the disk is replaced", "at_ms": START_MS}
    assert certificate["claims"] == []
    assert {one["state"] for one in certificate["not_certified"]} == {"cancelled"}
    assert unfinished(broker) == []
    assert intents_of(broker) == []
    assert await broker.services.certificates().last(erasure.id) == certificate
    verified = await verify(broker, certificate)
    assert (verified.signature, verified.is_valid) == ("trusted", False)
    page = certificate_page(certificate)
    assert "It was cancelled, on " in page
    assert "Nothing was read for this certificate" in page
    move_to(broker, START_MS + DAY_MS)
    assert not broker.services.erasures().table.busy
    with pytest.raises(NotFound):
        await broker.cancel(erasure.id, reason="again")


async def test_one_that_waits_for_its_horizon_is_cancelled(broker: Broker) -> None:
    """The erasure is cancelled at once; the tombstone stays like any other, and the earlier certificate beside the last one."""
    erasure_id = await waiting_erasure(broker)
    async with broker.services.erasures().queue.attempts.lock:
        await asyncio.wait_for(broker.cancel(erasure_id, reason="asked in vain"), 60)
    assert unfinished(broker) == []
    assert len(certificates_of(broker, "values-gone")) == 1
    assert (await broker.services.certificates().last(erasure_id))["ended"]["what"] == "cancelled"
    assert values_left(broker) == [None]
    assert KEY not in b"".join(path.read_bytes() for path in data_of(broker).glob("diamant-*"))


async def test_a_caller_of_a_cancelled_erasure_gets_an_error_after_its_end(broker: Broker) -> None:
    """The waiting call gets an error that says so, after the last certificate is written; then other jobs run."""
    erasure_id, call = await held_call(broker)
    held = Held(broker.env, "write_atomically", "*.pending")
    cancelling = asyncio.ensure_future(broker.cancel(erasure_id, reason="enough"))
    await wait_until(held.begun.is_set)
    await turns()
    assert not call.done()
    held.go_on.set()
    with pytest.raises(NotPossible, match="was cancelled, it is not certified"):
        await call
    ended = await cancelling
    assert (ended.id, ended.certificate["ended"]["what"]) == (erasure_id, "cancelled")
    assert not broker.services.erasures().queue.attempts.lock.locked()
    assert broker.services.erasures().table.failed == 1


async def test_a_cancellation_that_fails_is_reported_as_such(broker: Broker) -> None:
    """On a full disk the erasure continues, and both the canceller and the waiting caller learn that."""
    erasure_id, call = await held_call(broker)
    env_of(broker).fail("write_atomically", "*.pending", errno.ENOSPC)
    with pytest.raises(EraseFailed, match="could not be cancelled, it continues"):
        await broker.cancel(erasure_id, reason="enough")
    env_of(broker).faults = ()
    with pytest.raises(EraseFailed, match=r"is being cancelled.*it continues in the broker"):
        await call
    assert [one["id"] for one in unfinished(broker)] == [erasure_id]
    assert (await broker.cancel(erasure_id, reason="enough")).certificate["ended"]["what"] == "cancelled"


@pytest.mark.parametrize("where", [("remove", "*.log.deleted"), ("write_atomically", "*.not-certified.json")])
async def test_no_thread_of_a_cancelled_attempt_touches_its_certificate(broker: Broker, where: tuple[str, str]) -> None:
    """No thread left by the attempt replaces the last certificate."""
    held = Held(broker.env, *where)
    await create_with_key(broker, 2)
    damage(broker, partition=1)
    call = asyncio.ensure_future(erase(broker))
    await wait_until(held.begun.is_set)
    (one,) = unfinished(broker)
    cancelling = asyncio.ensure_future(broker.cancel(one["id"], reason="enough"))
    await wait_until(lambda: any(task.cancelling() for task in broker.services.erasures().queue.attempts.running))
    await turns()
    assert broker.services.erasures().queue.attempts.running
    held.go_on.set()
    ended = await cancelling
    with pytest.raises(NotPossible, match="was cancelled, it is not certified"):
        await call
    assert await broker.services.certificates().last(one["id"]) == ended.certificate


async def test_a_broker_stops_behind_a_cancellation(broker: Broker) -> None:
    """A stop waits for a cancellation from any interface before it releases the data directory."""
    erasure_id = await waiting_erasure(broker)
    held = Held(broker.env, "write_atomically", "*.pending")
    cancelling = asyncio.ensure_future(broker.cancel(erasure_id, reason="enough"))
    await wait_until(held.begun.is_set)
    stopping = asyncio.ensure_future(broker.services.erasures().queue.stop())
    await turns()
    assert not stopping.done()
    held.go_on.set()
    await stopping
    assert (await cancelling).certificate["ended"]["what"] == "cancelled"
    with pytest.raises(BrokerStopping):
        await broker.cancel(erasure_id, reason="again")


async def turns() -> None:
    """Run other tasks that do not wait for threads."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_that_continues_by_itself_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a restart has resumed is cancelled during its attempt; a later start finds nothing to resume."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        hold_up(broker)
        with pytest.raises(TimedOut):
            await erase_in_vain(broker, monkeypatch)
    async with broker_at(tmp_path) as broker:
        (one,) = unfinished(broker)
        await broker.cancel(one["id"], reason="enough")
        assert unfinished(broker) == []
    async with broker_at(tmp_path) as broker:
        assert not broker.services.erasures.made is not None


async def test_an_intent_that_cannot_be_read_is_not_cancelled_blindly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A start logs it; it is listed and never resumed; the error says what to do. A missing one is not found."""
    unread = "ab" * 16
    async with broker_at(tmp_path) as broker:
        await broker.services.evidence().keys.key()
        (data_of(broker) / f"diamant-erasure-{unread}.intent").write_bytes(b"x" * 50)
    async with broker_at(tmp_path) as broker:
        assert await broker.services.erasures().queue.unfinished_on_disk() == [
            {"id": unread, "kind": "erasure", "due_ms": None, "waits_for": None}
        ]
        assert f"erasure {unread} is unfinished" in caplog.text
        with pytest.raises(NotPossible, match=f"erasure {unread} cannot be read"):
            await broker.cancel(unread, reason="r")
        with pytest.raises(NotFound):
            await broker.cancel("../abc", reason="r")
