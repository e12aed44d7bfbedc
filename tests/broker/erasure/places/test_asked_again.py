"""Requests after an earlier one: what that is or was looking for belongs to the later one, until it has ended and all is gone."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import OperationError
from diamant.broker.topics.deletion import delete_topics
from tests.broker.erasure.brokers import broker_at, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, intents_of, wait_idle
from tests.broker.erasure.records import Producer, create, fill, write
from tests.waiting import wait_until

MAIL = b"anna.schmidt@example.com"
VALUE = b'{"email": "' + MAIL + b'", "city": "Bern"}'
LONG_KEY = b"customer-000044"
BOBS_KEY, BOBS_VALUE = b"customer-77", b'{"email": "bob.mueller@example.com", "city": "Thun"}'
WHERE = f'value.email == "{MAIL.decode()}"'

Ask = Callable[[Broker], Awaitable[Any]]


async def ask_erase(broker: Broker) -> Any:
    """Erase the key."""
    return await erase(broker)


async def ask_erase_now(broker: Broker) -> Any:
    """Erase the key without waiting for the tombstone's horizon."""
    return await erase(broker, now=True, confirm_groups_behind=True)


async def ask_redact(broker: Broker) -> Any:
    """Redact the value."""
    return await broker.redact("users", where=WHERE, reason="GDPR Art. 17")


async def ask_redact_otherwise(broker: Broker) -> Any:
    """Redact the value by another of its fields."""
    return await broker.redact("users", where='value.city == "Bern"', reason="GDPR Art. 17")


ASKS = [ask_erase, ask_erase_now, ask_redact, ask_redact_otherwise]
ALL = pytest.mark.parametrize("ask", ASKS)
FIRST = pytest.mark.parametrize("first", [ask_erase, ask_redact])


async def with_copy(broker: Broker, name: str = "dump.csv") -> Path:
    """Write the key's value and those of others; return a file beside the logs that holds a copy of it."""
    await create(broker)
    write(broker, (KEY, VALUE), (BOBS_KEY, BOBS_VALUE))
    fill(broker)
    copy = data_of(broker) / name
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(b"42;" + VALUE + b"\n")
    return copy


def files_that_refuse(asked: Any) -> set[str]:
    """Return the files named as reasons against the claims of a certificate."""
    assert asked.state == "not-certified"
    return {problem["file"] for one in asked.certificate["not_certified"] for problem in one["problems"]}


@ALL
@FIRST
async def test_asking_again_does_not_certify(broker: Broker, first: Ask, ask: Ask) -> None:
    """The value of a request that is not certified is looked for by every later one that may mean it, and so is its copy."""
    await with_copy(broker)
    assert files_that_refuse(await first(broker)) == {"dump.csv"}
    assert files_that_refuse(await ask(broker)) == {"dump.csv"}


@ALL
@FIRST
async def test_asking_again_after_a_cancellation_does_not_certify(broker: Broker, first: Ask, ask: Ask) -> None:
    """A cancellation ends a request, but does not make its values be forgotten."""
    await with_copy(broker)
    await broker.cancel((await first(broker)).id, reason="asked in vain")
    assert intents_of(broker) == []
    assert files_that_refuse(await ask(broker)) == {"dump.csv"}


@pytest.mark.parametrize("is_cancelled", [False, True])
@ALL
@FIRST
async def test_asking_again_after_a_restart_does_not_certify(
    tmp_path: Path, first: Ask, ask: Ask, is_cancelled: bool
) -> None:
    """What was looked for is on disk."""
    async with broker_at(tmp_path) as broker:
        await with_copy(broker)
        asked = await first(broker)
        if is_cancelled:
            await broker.cancel(asked.id, reason="asked in vain")
    async with broker_at(tmp_path) as broker:
        assert files_that_refuse(await ask(broker)) == {"dump.csv"}


@FIRST
async def test_two_at_the_same_time_are_both_refused(broker: Broker, first: Ask) -> None:
    """The one that comes second finds no value any more, and is not certified either."""
    await with_copy(broker)
    for asked in await asyncio.gather(first(broker), first(broker)):
        assert files_that_refuse(asked) == {"dump.csv"}


@ALL
@FIRST
async def test_one_after_many_that_were_cancelled_is_refused(broker: Broker, first: Ask, ask: Ask) -> None:
    """Each inherits what the one before it was looking for, in one file on disk; beyond the limit the next is refused."""
    await with_copy(broker)
    for _ in range(3):
        await broker.cancel((await first(broker)).id, reason="asked in vain")
    assert len([*data_of(broker).glob("*.remains")]) == 1
    assert files_that_refuse(await ask(broker)) == {"dump.csv"}


@ALL
@FIRST
async def test_an_erasure_is_certified_once_the_copy_is_gone(broker: Broker, first: Ask, ask: Ask) -> None:
    """Nothing of an earlier request is kept once a scan has looked for all of it and found none."""
    copy = await with_copy(broker)
    await broker.cancel((await first(broker)).id, reason="asked in vain")
    copy.unlink()
    asked = await ask(broker)
    if asked.state == "values-gone":
        move_to(broker, START_MS + 2 * DAY_MS)
        await wait_until(lambda: intents_of(broker) == [])
        await wait_idle(broker)
    else:
        assert asked.state in ("key-gone", "records-gone", "nothing-matched")
    assert [*data_of(broker).glob("*.remains")] == []


async def test_another_key_is_erased_all_the_same(broker: Broker) -> None:
    """Values of other customers that an earlier request was looking for are none of its business."""
    await with_copy(broker)
    await broker.cancel((await ask_erase(broker)).id, reason="asked in vain")
    assert (await erase(broker, BOBS_KEY)).state == "values-gone"


async def test_another_key_than_the_redacted_ones_is_erased_all_the_same(broker: Broker) -> None:
    """A redaction keeps the digests of its records' keys, and concerns erasures of these only."""
    await with_copy(broker)
    await broker.cancel((await ask_redact(broker)).id, reason="asked in vain")
    assert (await erase(broker, BOBS_KEY)).state == "values-gone"


async def test_another_topic_is_redacted_all_the_same(broker: Broker) -> None:
    """A redaction inherits from requests about its own topic."""
    await with_copy(broker)
    await broker.cancel((await ask_redact(broker)).id, reason="asked in vain")
    await create(broker, "orders", policy="delete")
    write(broker, (BOBS_KEY, VALUE), topic="orders")
    (data_of(broker) / "dump.csv").write_bytes(b"42;" + VALUE.replace(b"Bern", b"Biel") + b"\n")
    write(broker, (BOBS_KEY, VALUE.replace(b"Bern", b"Biel")), topic="users")
    assert (await ask_redact(broker)).state == "not-certified"
    asked = await broker.redact("orders", where=WHERE, reason="GDPR Art. 17", yes_all=True)
    assert asked.state == "records-gone"


async def test_a_copy_seen_elsewhere_prevents_the_other_topics_erasure(broker: Broker) -> None:
    """The certificate lists the copy as seen elsewhere; an erasure from that other topic is not certified beside it."""
    await create(broker, "orders")
    await with_copy(broker, "orders-0/notes.txt")
    asked = await ask_erase_now(broker)
    assert asked.state == "key-gone"
    assert {one["file"] for one in asked.certificate["elsewhere"]} == {"orders-0/notes.txt"}
    assert files_that_refuse(await erase(broker, topics=["orders"])) == {"orders-0/notes.txt"}


async def test_a_deleted_topics_values_are_looked_for(broker: Broker) -> None:
    """An erasure that ended with its topic leaves its values to the next one of the key, from a topic of that name or another."""
    await with_copy(broker)
    await create(broker, "orders")
    asked = await ask_erase(broker)
    await delete_topics(broker.node.topics, ["users"])
    move_to(broker, START_MS + DAY_MS)
    await wait_until(lambda: intents_of(broker) == [])
    await wait_idle(broker)
    assert asked.state == "not-certified"
    assert files_that_refuse(await erase(broker, topics=["orders"])) == {"dump.csv"}


async def test_an_unreadable_intent_prevents_a_claim(broker: Broker) -> None:
    """An unreadable intent lets nothing be certified, and the reason names the file."""
    await create(broker)
    write(broker, (KEY, VALUE))
    await broker.services.evidence().keys.key()
    intent = data_of(broker) / f"diamant-erasure-{'ab' * 16}.intent"
    intent.write_bytes(b"x" * 50)
    asked = await ask_erase(broker)
    assert files_that_refuse(asked) == {intent.name}
    intent.unlink()
    (data_of(broker) / f"diamant-redaction-{'ab' * 16}.remains").write_bytes(b"x" * 50)
    assert files_that_refuse(await ask_erase(broker)) == {f"diamant-redaction-{'ab' * 16}.remains"}


@pytest.mark.parametrize("is_cancelled", [False, True])
@ALL
async def test_a_copy_made_while_an_erasure_waits_stops_later_requests(
    broker: Broker, ask: Ask, is_cancelled: bool
) -> None:
    """The first scan saw the values gone, but a scan does not speak for the time after it."""
    copy = await with_copy(broker)
    copied = copy.read_bytes()
    copy.unlink()
    first = await ask_erase(broker)
    assert first.state == "values-gone"
    copy.write_bytes(copied)
    if is_cancelled:
        await broker.cancel(first.id, reason="asked in vain")
    assert files_that_refuse(await ask(broker)) == {"dump.csv"}
    if not is_cancelled:
        assert files_that_refuse(await broker.erase_now(first.id, confirm_groups_behind=True)) == {"dump.csv"}


@pytest.mark.parametrize("is_cancelled", [False, True])
@ALL
async def test_a_copy_made_while_a_redaction_is_held_stops_later_requests(
    broker: Broker, ask: Ask, is_cancelled: bool
) -> None:
    """A redaction that waits for an open transaction has seen its values gone once."""
    copy = await with_copy(broker)
    copied = copy.read_bytes()
    copy.unlink()
    producer = Producer(broker, "users", 0, 7)
    producer.write((b"customer-78", VALUE.replace(b"Bern", b"Biel")))
    first = await ask_redact(broker)
    assert first.state == "not-certified"
    producer.end(is_commit=True)
    copy.write_bytes(copied)
    if is_cancelled:
        await broker.cancel(first.id, reason="asked in vain")
    assert files_that_refuse(await ask(broker)) == {"dump.csv"}


async def test_a_copy_that_is_cut_off_from_a_waiting_erasure_by_a_stop_stops_the_next(tmp_path: Path) -> None:
    """An erasure that was stopped during its last scan left its values in a file, since its intent has lost them."""
    async with broker_at(tmp_path) as broker:
        copy = await with_copy(broker)
        copied = copy.read_bytes()
        copy.unlink()
        await ask_erase(broker)
        evidence = broker.services.evidence()
        stopped = asyncio.Event()

        async def stop(*_: object) -> None:
            stopped.set()
            await asyncio.Event().wait()

        evidence.scan = stop  # type: ignore[assignment, method-assign]
        move_to(broker, START_MS + 2 * DAY_MS)
        await stopped.wait()
        copy.write_bytes(copied)
    async with broker_at(tmp_path, START_MS + 2 * DAY_MS) as broker:
        assert files_that_refuse(await ask_erase(broker)) == {"dump.csv"}


async def test_an_erasure_that_found_nothing_but_a_file_with_the_key_is_refused_at_once(broker: Broker) -> None:
    """Only tombstones have a horizon to wait for; `values-gone` would state an erasure that did not happen, so it is refused."""
    await create(broker)
    write(broker, (LONG_KEY, VALUE), (BOBS_KEY, BOBS_VALUE))
    fill(broker)
    assert (await erase(broker, LONG_KEY, now=True)).state == "key-gone"
    copy = data_of(broker) / "exports" / "dump3.csv"
    copy.parent.mkdir()
    copy.write_bytes(b"1;" + LONG_KEY + b"\n")
    asked = await erase(broker, LONG_KEY)
    assert files_that_refuse(asked) == {"exports/dump3.csv"}
    assert asked.certificate["claims"] == []
    copy.unlink()
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: intents_of(broker) == [])
    await wait_idle(broker)
    assert [*data_of(broker).glob(f"*{asked.id}.nothing-matched.json")]


async def test_a_tombstone_copied_beside_the_log_is_nothing_to_wait_for(broker: Broker) -> None:
    """An erasure that found nothing stays refused when a copied segment with a tombstone comes to the partition's directory."""
    await create(broker)
    write(broker, (LONG_KEY, None))
    segment = data_of(broker) / "users-0" / f"{0:020d}.log"
    tombstone = segment.read_bytes()
    fill(broker)
    assert (await erase(broker, LONG_KEY, now=True)).state == "key-gone"
    (data_of(broker) / "dump.csv").write_bytes(b"1;" + LONG_KEY + b"\n")
    asked = await erase(broker, LONG_KEY)
    assert files_that_refuse(asked) == {"dump.csv"}
    copy = segment.with_suffix(".log.bak")
    copy.write_bytes(tombstone)
    assert files_that_refuse(await broker.erase_now(asked.id)) == {"dump.csv", f"users-0/{copy.name}"}


async def test_a_removed_value_that_is_itself_the_text_looked_for_is_in_the_way(broker: Broker) -> None:
    """A copy of such a value is one of a removed record, not only of a text that other records may have as well."""
    await broker.create_topic("mails", 1, cleanup_policy="delete")
    write(broker, (b"1", b'"anna.schmidt@example.com"'), (b"2", b'"bob.mueller@example.com"'), topic="mails")
    (data_of(broker) / "dump.csv").write_bytes(b'1;"anna.schmidt@example.com"\n')
    asked = await broker.redact("mails", where='value == "\\"anna.schmidt@example.com\\""', reason="GDPR Art. 17")
    assert asked.removed == 1
    assert files_that_refuse(asked) == {"dump.csv"}


@FIRST
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_on_a_full_disk_a_request_continues_until_its_remains_are_kept(
    tmp_path: Path, first: Ask, is_restarted: bool
) -> None:
    """A cancellation that cannot write them fails, and the request still counts; later ones look for what it has removed."""
    async with broker_at(tmp_path) as broker:
        copy = await with_copy(broker)
        asked = await first(broker)
        assert files_that_refuse(asked) == {copy.name}
        env_of(broker).fail("rename", "*.remains.tmp", errno.ENOSPC)
        for _ in range(2):
            with pytest.raises(OperationError, match="could not be cancelled, it continues"):
                await broker.cancel(asked.id, reason="enough")
        assert len(intents_of(broker)) == 1
        assert list(data_of(broker).glob("*.remains*")) == []
        if not is_restarted:
            env_of(broker).faults = ()
            assert files_that_refuse(await ask_erase(broker)) == {copy.name}
            assert (await broker.cancel(asked.id, reason="enough")).state == "not-certified"
            assert len(list(data_of(broker).glob("*.remains"))) == 1
            assert files_that_refuse(await ask_erase(broker)) == {copy.name}
    async with broker_at(tmp_path) as broker:
        assert files_that_refuse(await ask_erase(broker)) == {copy.name}
