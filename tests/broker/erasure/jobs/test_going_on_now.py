"""`erase_now` on an erasure that waits for its horizon: it stays the same erasure, with its findings."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.jobs.job_queue import MAX_WAITING
from diamant.broker.metrics import prometheus
from diamant.broker.operation_errors import NotFound, NotPossible, OperationError, TimedOut
from tests.broker.erasure.brokers import broker_at, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, intents_of, unfinished
from tests.broker.erasure.faulty_env import Held
from tests.broker.erasure.issued import certificates_of, certified_at, intent_of, verify, wait_certified
from tests.broker.erasure.obstacles import damage, erase_in_vain
from tests.broker.erasure.records import Producer, commit, create, create_with_key, fill, values_left, write
from tests.waiting import wait_until


async def waiting(broker: Broker) -> str:
    """Return the id of an erasure that waits for its horizon."""
    await create(broker)
    write(broker, (KEY, PERSON), (KEY, b"another value of the same person"))
    fill(broker)
    erasure = await erase(broker, now=True)
    assert (erasure.state, erasure.next_due_ms) == ("values-gone", START_MS + DAY_MS)
    return erasure.id


async def erasures_counted(broker: Broker) -> dict[str, float]:
    """Return the metric's values, by outcome."""
    scrape = await prometheus.take(broker.services)
    return {labels[0]: value for labels, value in scrape.now["diamant_erasures_total"]}


# -- one erasure -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_committed")
async def test_the_certificate_for_the_key_has_what_the_same_erasure_found(broker: Broker) -> None:
    """Earlier values, digests and segments are in the certificate, the values were searched for, and no intent is left."""
    erasure_id = await waiting(broker)
    first = await broker.services.certificates().last(erasure_id)
    done = await broker.erase_now(erasure_id, confirm_groups_behind=True)
    certificate = done.certificate
    assert (done.id, done.state, done.next_due_ms) == (erasure_id, "key-gone", None)
    assert [(one["values"], len(one["value_hmacs"])) for one in certificate["found"]] == [(2, 2)]
    assert certificate["coverage"]["values_searched_for"] == 2
    for name in ("found", "request"):
        assert certificate[name] == first[name]
    assert certificate["segments"]["before"] == first["segments"]["before"]
    assert certificate["overrides"][0]["groups_that_had_not_passed_it"] == ["billing"]
    assert intents_of(broker) == []
    assert unfinished(broker) == []
    assert {one["id"] for one in await broker.services.certificates().list_all()} == {erasure_id}
    assert values_left(broker) == []
    assert (await verify(broker, certificate, KEY)).is_valid
    again = await broker.erase_now(erasure_id)
    assert (again.certificate, again.certificate_path) == (certificate, done.certificate_path)


@pytest.mark.usefixtures("_committed")
async def test_unconfirmed_it_waits_while_groups_are_behind_and_no_longer(broker: Broker) -> None:
    """A refusal changes nothing and names the groups; it proceeds once none is behind."""
    erasure_id = await waiting(broker)
    intent = intents_of(broker)[0].read_bytes()
    refused = await broker.erase_now(erasure_id)
    assert (refused.state, refused.is_now_refused) == ("values-gone", True)
    assert (refused.groups_behind, refused.next_due_ms) == ({"users-0": ["billing"]}, START_MS + DAY_MS)
    assert refused.certificate == await broker.services.certificates().last(erasure_id)
    assert intents_of(broker)[0].read_bytes() == intent
    commit(broker)
    assert (await broker.erase_now(erasure_id)).state == "key-gone"


@pytest.mark.usefixtures("_committed")
async def test_refused_it_ends_at_its_horizon(broker: Broker) -> None:
    """A refused request changes nothing: the erasure resumes at its horizon and overrides nothing."""
    erasure_id = await waiting(broker)
    await broker.erase_now(erasure_id)
    move_to(broker, START_MS + DAY_MS - 1)
    assert not broker.services.erasures().table.busy
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert (certificate["id"], certificate["overrides"]) == (erasure_id, [])


async def test_a_confirmation_outlives_the_broker(tmp_path: Path) -> None:
    """The confirmation is on disk before a tombstone is removed: after a stop, the next start continues without asking."""
    async with broker_at(tmp_path) as broker:
        commit(broker, (1, "billing"))
        erasure_id = await waiting(broker)
        held = Held(broker.env, "create_new", "*.cleaned")
        call = asyncio.ensure_future(broker.erase_now(erasure_id, confirm_groups_behind=True))
        await wait_until(held.begun.is_set)
        intent = intent_of(broker)
        assert (intent.is_now, intent.is_confirmed, intent.due_ms) == (True, True, None)
        assert values_left(broker) == [None]
        stopping = asyncio.ensure_future(broker.stop())
        await wait_until(lambda: any(task.cancelling() for task in broker.services.erasures().queue.attempts.running))
        env_of(broker).fail("create_new", "*", errno.EIO)
        held.go_on.set()
        await asyncio.gather(call, stopping, return_exceptions=True)
    async with broker_at(tmp_path) as broker:
        await wait_certified(broker, "key-gone")
        certificate = await broker.services.certificates().last(erasure_id)
        assert [one["values"] for one in certificate["found"]] == [2]
        assert intents_of(broker) == []


async def test_one_that_is_not_certified_yet_continues_as_far_as_it_can(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held work is retried at once, with all following steps."""
    await create_with_key(broker)
    producer = Producer(broker, "users", 0, 5)
    producer.write((b"somebody", b"else"))
    with pytest.raises(TimedOut, match="it continues in the broker"):
        await erase_in_vain(broker, monkeypatch)
    (one,) = unfinished(broker)
    producer.end(is_commit=True)
    done = await broker.erase_now(one["id"])
    assert (done.id, done.state) == (one["id"], "key-gone")
    assert [found["values"] for found in done.certificate["found"]] == [1]


@pytest.mark.usefixtures("_committed")
async def test_an_erasure_that_is_not_in_progress_is_an_error(broker: Broker) -> None:
    """Unknown, invalid, cancelled and unreadable erasures get their errors."""
    erasure_id = await waiting(broker)
    for unknown in ("0" * 32, "../x", ""):
        with pytest.raises(NotFound, match="there is no erasure"):
            await broker.erase_now(unknown)
    (data_of(broker) / f"diamant-erasure-{'ab' * 16}.intent").write_bytes(b"x" * 50)
    with pytest.raises(NotPossible, match="its intent cannot be read"):
        await broker.erase_now("ab" * 16)
    await broker.cancel(erasure_id, reason="asked in vain")
    with pytest.raises(NotFound, match="it has ended"):
        await broker.erase_now(erasure_id, confirm_groups_behind=True)
    broker.services.erasures().queue.calls = MAX_WAITING
    with pytest.raises(OperationError, match="too many"):
        await broker.erase_now(erasure_id)


# -- another one of the same key ---------------------------------------------------------------------------------------------


async def test_one_with_now_ends_the_others_of_its_key(broker: Broker) -> None:
    """Erasures that waited for the removed tombstone end, so none keeps the key on disk; those of other keys keep waiting."""
    await create(broker)
    write(broker, (KEY, PERSON), (b"customer-7", b"somebody else"))
    earlier, other = await erase(broker), await erase(broker, b"customer-7")
    done = await erase(broker, now=True)
    assert (done.state, done.id != earlier.id) == ("key-gone", True)
    await wait_until(
        lambda: len(certificates_of(broker, "key-gone")) == 2 and not broker.services.erasures().table.busy
    )
    certificate = await broker.services.certificates().last(earlier.id)
    assert (certificate["state"], [one["values"] for one in certificate["found"]]) == ("key-gone", [1])
    # It was another one that did not wait: this one says that consumers may have missed it.
    assert (certificate["overrides"], len(certificate["lost_tombstones"])) == ([], 1)
    assert [one["id"] for one in unfinished(broker)] == [other.id]
    assert [one.name for one in intents_of(broker)] == [f"diamant-erasure-{other.id}.intent"]


# -- the metric --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_committed")
async def test_an_erasure_is_counted_once_at_its_end(broker: Broker) -> None:
    """The metric counts an erasure at its end, as done, or as failed if cancelled; not with the certificate for values, nor on a
    refused `erase_now`.
    """
    erasure_id = await waiting(broker)
    await broker.erase_now(erasure_id)
    assert await erasures_counted(broker) == {"done": 0, "failed": 0, "held": 0}
    await broker.erase_now(erasure_id, confirm_groups_behind=True)
    await broker.erase_now(erasure_id)
    assert await erasures_counted(broker) == {"done": 1, "failed": 0, "held": 0}
    write(broker, (KEY, PERSON))
    await broker.cancel((await erase(broker)).id, reason="asked in vain")
    assert await erasures_counted(broker) == {"done": 1, "failed": 1, "held": 0}


async def test_attempts_at_what_continues_are_held_and_not_failed(broker: Broker) -> None:
    """Uncertified, timed out or on a full disk, each attempt counts as held; a job that never began counts as failed."""
    await create_with_key(broker)
    damage(broker)
    erasure = await erase(broker)
    assert (erasure.state, await erasures_counted(broker)) == ("not-certified", {"done": 0, "failed": 0, "held": 1})
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: broker.services.erasures().table.held == 2 and not broker.services.erasures().table.busy)
    with pytest.raises(TimedOut, match="it continues in the broker"):
        await broker.erase_now(erasure.id, timeout=0)
    assert await erasures_counted(broker) == {"done": 0, "failed": 0, "held": 3}
    env_of(broker).fail("rename", "*.intent.tmp", errno.ENOSPC)
    with pytest.raises(OperationError, match="No space left"):
        await erase(broker, b"another")
    assert await erasures_counted(broker) == {"done": 0, "failed": 1, "held": 3}
    with pytest.raises(OperationError, match="No space left"):
        await broker.erase_now(erasure.id)
    assert await erasures_counted(broker) == {"done": 0, "failed": 1, "held": 4}
