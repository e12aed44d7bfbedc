"""Redactions that end without completion: refused in a later run, cancelled, or with a deleted topic."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.redact import redact_result
from diamant.broker.erasure.redact.redact_result import Redaction
from diamant.broker.erasure.redact.redactions import Redactions
from diamant.broker.operation_errors import NotFound, NotPossible
from diamant.broker.topics.deletion import delete_topics
from diamant.broker.topics.growth import add_partitions
from diamant.cleaner.evidence.certificates.page import certificate_page
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, RETRY_MS, START_MS
from tests.broker.erasure.erasing import intents_of
from tests.broker.erasure.faulty_env import Held
from tests.broker.erasure.issued import pinned
from tests.broker.erasure.obstacles import TimeLimit, damage, told_at_its_limit
from tests.broker.erasure.records import Producer, create, write
from tests.cleaner.evidence.scan.naive_scanner import log_files, records_in
from tests.waiting import wait_until

WHERE = 'key == "customer-42"'


async def make(broker: Broker, partitions: int = 1, **options: Any) -> None:
    """Create the topic."""
    await create(broker, "orders", partitions, policy="delete", **options)


def write_two(broker: Broker, partition: int = 0) -> None:
    """Write a matching record, and another one."""
    write(broker, (KEY, b"one"), (b"another", b"two"), topic="orders", partition=partition)


def hold_up(broker: Broker) -> Producer:
    """Open a transaction with a matching record."""
    producer = Producer(broker, "orders", 0, 5)
    producer.write((KEY, b"one"))
    return producer


async def redact(broker: Broker, where: str = WHERE, **options: Any) -> Redaction:
    return await broker.redact("orders", where=where, reason="GDPR Art. 17", **options)


def keys(broker: Broker) -> list[bytes | None]:
    """Keys of the records in the topic's files, by file and offset."""
    return [one.key for path in sorted(log_files(data_of(broker), "orders")) for one in records_in(path)]


async def wait_over(broker: Broker) -> None:
    """Continue after the usual pause, and wait for the end."""
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: not broker.services.redactions().queue.unfinished())


# -- everything matches --------------------------------------------------------------------------------------------------------


async def test_a_redaction_that_turns_out_to_match_everything_ends(broker: Broker) -> None:
    """The open transaction hid the last records; once it ends, everything matches, which was not confirmed."""
    await make(broker)
    producer = Producer(broker, "orders", 0, 5)
    producer.write((KEY, b"one"), (KEY, b"two"))
    held = await redact(broker)
    assert (held.state, held.removed) == ("not-certified", 0)
    assert broker.services.redactions().table.held == 1
    producer.end(is_commit=True)
    await wait_over(broker)
    assert keys(broker).count(KEY) == 2
    certificate = await broker.services.certificates().last(held.id)
    assert (certificate["state"], certificate["ended"]["what"]) == ("not-certified", "everything-matches")
    assert "all 2 records of orders match" in certificate["ended"]["reason"]
    assert intents_of(broker) == []
    assert (await redact(broker, yes_all=True)).removed == 2


async def test_a_confirmed_redaction_of_all_records_continues(broker: Broker) -> None:
    """A confirmed redaction also continues if an earlier run left other records: then not everything matched."""
    await make(broker)
    producer = hold_up(broker)
    assert (await redact(broker, yes_all=True)).state == "not-certified"
    producer.end(is_commit=False)
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: list(data_of(broker).glob("*.records-gone.json")) != [])
    assert KEY not in keys(broker)


async def test_a_damaged_segment_does_not_hide_that_everything_else_matches(broker: Broker) -> None:
    """Unreadable records do not count, in the same or another partition."""
    await make(broker, partitions=2)
    for partition in (0, 1):
        write(broker, (KEY, b"one"), (KEY, b"two"), topic="orders", partition=partition)
    damage(broker, "orders", 1)
    with pytest.raises(NotPossible, match="all 2 records of orders that can be read match"):
        await redact(broker)
    assert intents_of(broker) == []
    assert keys(broker).count(KEY) >= 2
    write(broker, (b"somebody else", b"three"), topic="orders")
    assert (await redact(broker)).removed == 2


# -- timeouts --------------------------------------------------------------------------------------------------------------------


async def test_a_timeout_while_the_intent_goes_leaves_nothing_to_be_tried_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate exists, so no attempt follows."""
    await make(broker)
    write_two(broker)
    held, limit = Held(broker.env, "remove", "*.intent"), TimeLimit(monkeypatch)
    told = await told_at_its_limit(
        redact(broker, timeout=f"{limit.ms}ms"), held, limit, broker.services.redactions().queue
    )
    assert "it has ended just now, see its certificate" in told
    assert (broker.services.redactions().queue.unfinished(), intents_of(broker)) == ([], [])
    assert len(list(data_of(broker).glob("*.records-gone.json"))) == 1


async def test_an_intent_that_is_gone_is_not_gone_on_with(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The broker logs the missing intent and does not retry."""
    await make(broker)
    write(broker, (b"another", b"two"), topic="orders")
    hold_up(broker)
    await redact(broker)
    (intent,) = intents_of(broker)
    intent.unlink()
    await wait_over(broker)
    assert "tried again" not in caplog.text


# -- topics and partitions that change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_topic_that_is_deleted_ends_its_redaction(broker: Broker, *, is_recreated: bool) -> None:
    """The redaction waited for a transaction and ends with a reason; from a new topic of that name it removes nothing."""
    await make(broker)
    hold_up(broker)
    redaction = await redact(broker)
    assert redaction.state == "not-certified"
    await delete_topics(broker.node.topics, ["orders"])
    if is_recreated:
        await make(broker)
        write_two(broker)
    await wait_over(broker)
    assert keys(broker) == [KEY, b"another"] * is_recreated
    certificate = await broker.services.certificates().last(redaction.id)
    assert certificate["ended"]["what"] == ("topic-recreated" if is_recreated else "topic-deleted")
    assert certificate["claims"] == []
    assert [one["topic"] for one in certificate["topics_ended"]] == ["orders"]
    verified = await check_certificate(broker, certificate, public_key=pinned(certificate), where=WHERE)
    assert (verified.signature, verified.coverage_adds_up, verified.is_valid) == ("trusted", True, False)
    assert intents_of(broker) == []


async def test_a_partition_that_is_added_meanwhile_is_named(broker: Broker) -> None:
    """The new partition is out of scope; its matching records were written after the request."""
    await make(broker)
    write(broker, (b"another", b"two"), topic="orders")
    producer = hold_up(broker)
    redaction = await redact(broker)
    await add_partitions(broker.node.topics, "orders", 2)
    write(broker, (KEY, b"new"), topic="orders", partition=1)
    producer.end(is_commit=True)
    await wait_over(broker)
    certificate = await broker.services.certificates().last(redaction.id)
    assert (certificate["state"], certificate["partitions_added"]) == (
        "records-gone",
        [{"topic": "orders", "partition": 1}],
    )
    assert [(one["partition"], one["offset"]) for one in certificate["written_since"]] == [(1, 0)]


async def test_a_partition_that_could_not_be_opened_is_judged_once_it_is(broker: Broker) -> None:
    """Nothing is certified before."""
    await make(broker, partitions=2)
    for partition in (0, 1):
        write_two(broker, partition)
    evidence = broker.services.evidence()
    logs = evidence.logs
    evidence.logs = {one: log for one, log in logs.items() if one != ("orders", 1)}
    redaction = await redact(broker)
    evidence.logs = logs
    assert (redaction.state, redaction.removed) == ("not-certified", 1)
    await wait_over(broker)
    certificate = await broker.services.certificates().last(redaction.id)
    assert [one["partition"] for one in certificate["claims"]] == [0, 1]
    assert KEY not in keys(broker)


# -- cancelled by its user -------------------------------------------------------------------------------------------------------


async def test_a_redaction_that_can_never_be_certified_is_cancelled(broker: Broker) -> None:
    """Removed records stay removed; the last certificate claims nothing, and the metrics count it."""
    await make(broker, partitions=2)
    for partition in (0, 1):
        write_two(broker, partition)
    damage(broker, "orders", 1)
    redaction = await redact(broker)
    assert (redaction.state, redaction.removed) == ("not-certified", 1)
    ended = await broker.cancel(redaction.id, reason="the disk is replaced")
    certificate = ended.certificate
    assert (ended.state, certificate["claims"], ended.next_due_ms) == ("not-certified", [], None)
    assert (certificate["ended"]["what"], certificate["ended"]["reason"]) == ("cancelled", "the disk is replaced")
    assert [one["records"] for one in certificate["found"]] == [1]
    assert {one["state"] for one in certificate["not_certified"]} == {"cancelled"}
    assert "cancelled" in certificate_page(certificate)
    assert (intents_of(broker), broker.services.redactions().queue.unfinished()) == ([], [])
    assert (
        broker.services.redactions().table.done,
        broker.services.redactions().table.failed,
        broker.services.redactions().table.held,
    ) == (0, 1, 1)
    move_to(broker, START_MS + DAY_MS)
    assert not broker.services.redactions().table.busy
    with pytest.raises(NotFound, match=r"no erasure or redaction .* in progress, so nothing was cancelled"):
        await broker.cancel(redaction.id, reason="again")


async def test_a_redaction_that_somebody_waits_for_is_cancelled(broker: Broker) -> None:
    """A segment in progress is completed, the call gets an error, and cleaning continues."""
    await make(broker)
    write_two(broker)
    held = Held(broker.env, "create_new", "*.cleaned")
    call = asyncio.ensure_future(redact(broker))
    await wait_until(held.begun.is_set)
    (one,) = broker.services.redactions().queue.unfinished()
    cancelling = asyncio.ensure_future(broker.cancel(one["id"], reason="enough"))
    await wait_until(lambda: any(task.cancelling() for task in broker.services.redactions().queue.attempts.running))
    held.go_on.set()
    assert (await cancelling).certificate["ended"]["what"] == "cancelled"
    with pytest.raises(NotPossible, match="was cancelled, it is not certified"):
        await call
    service = await broker.services.cleaning.service()
    assert service.states.state(("orders", 0)) == "none"
    assert intents_of(broker) == []


async def test_a_cancellation_that_stops_halfway_is_not_called_one(broker: Broker) -> None:
    """While its intent exists the redaction continues, and no certificate says otherwise."""
    await make(broker)
    write(broker, (b"another", b"two"), topic="orders")
    producer = hold_up(broker)
    held = await redact(broker)

    env_of(broker).fail("remove", "*.intent", errno.EIO)
    with pytest.raises(redact_result.RedactFailed):
        await broker.cancel(held.id, reason="enough")
    env_of(broker).faults = ()
    assert (await broker.services.certificates().last(held.id))["ended"] is None
    producer.end(is_commit=True)
    await wait_over(broker)
    assert (await broker.services.certificates().last(held.id))["state"] == "records-gone"


async def test_undecided_records_in_files_of_no_partition_are_kept_like_others(broker: Broker) -> None:
    """With `keep` they refuse nothing, and the certificate lists them; otherwise they refuse all claims."""
    where = 'value.email == "ada@example.com"'
    await make(broker)
    write(broker, (b"1", b'{"email": "ada@example.com"}'), (b"2", b"no json: email ada@example.com"), topic="orders")
    segment = next(iter(data_of(broker).glob("orders-0/*.log")))
    write(broker, (b"3", b'{"email": "bob@example.com"}'), topic="orders")
    stray = data_of(broker) / "stray" / "00000000000000000000.log"
    stray.parent.mkdir()
    kept = await redact(broker, where, undecided="keep")
    assert kept.state == "records-gone"
    stray.write_bytes(segment.read_bytes())
    kept = await redact(broker, where, undecided="keep")
    assert (kept.state, kept.next_due_ms) == ("nothing-matched", None), str(kept.certificate["not_certified"])
    assert [one["file"] for one in kept.certificate["overrides"] if "file" in one] == [f"stray/{stray.name}"]
    assert "stray/" in certificate_page(kept.certificate)
    verified = await check_certificate(broker, kept.certificate, public_key=pinned(kept.certificate), where=where)
    assert verified.outcome == "nothing-matched", verified.notes


# -- bounds ----------------------------------------------------------------------------------------------------------------------


def limit(broker: Broker, limits: redact_result.RedactLimits) -> None:
    """Run redactions with other limits."""
    services = broker.services
    lock = services.erasures().queue.attempts.lock
    services.redactions.made = Redactions(broker.node, services.evidence(), services.cleaning, lock, limits)


async def test_remembered_offsets_are_bounded_over_all_partitions(broker: Broker) -> None:
    """Each partition fits alone, but not both, so nothing is changed."""
    await make(broker, partitions=2)
    for partition in (0, 1):
        write_two(broker, partition)
    limit(broker, redact_result.RedactLimits(offset_bytes=300))
    with pytest.raises(NotPossible, match="more than fits into memory; nothing was changed"):
        await redact(broker)
    assert (intents_of(broker), keys(broker).count(KEY)) == ([], 2)
    limit(broker, redact_result.RedactLimits(offset_bytes=600))
    assert (await redact(broker)).removed == 2


async def test_runs_of_offsets_are_listed_up_to_a_bound_and_counted(broker: Broker) -> None:
    """Ranges over all segments and partitions are listed up to a bound and counted; single offsets per partition."""
    limit(broker, redact_result.RedactLimits(ranges=6, offsets=3))
    await make(broker, partitions=2)
    for partition in (0, 1):
        for _ in range(5):
            write(broker, (KEY, b"v"), (b"another", b"two"), topic="orders", partition=partition)
            write(broker, (b"another", b"x" * 700), topic="orders", partition=partition)
    first, second = (await redact(broker)).certificate["found"]
    assert first["offset_ranges"] == [[one, one] for one in (0, 3, 6, 9, 12)]
    assert (second["offset_ranges"], second["offset_ranges_not_listed"]) == ([[0, 0]], 4)
    assert (first["offset_ranges_not_listed"], first["offsets"], second["offsets"]) == (0, [0, 3, 6], [0, 3, 6])
    assert (first["records"], second["records"]) == (5, 5)
