"""The scope of an erasure: topics, partitions and offsets at the time of the request, whatever changes afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.topics.deletion import delete_topics
from diamant.broker.topics.growth import add_partitions
from diamant.cleaner.evidence.certificates.page import certificate_page
from tests.broker.erasure.brokers import clock_of, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, START_MS
from tests.broker.erasure.erasing import erase, intents_of, unfinished
from tests.broker.erasure.issued import certificates_of, certified_at, check_claims, only_certificate, verify
from tests.broker.erasure.records import create, create_with_key, fill, values_left, write
from tests.cleaner.evidence.scan.naive_scanner import files_with
from tests.mutants import Mutant, put_in
from tests.waiting import PATIENCE_S, wait_until


async def recreate(broker: Broker, name: str = "users") -> None:
    """Delete a topic and create another one with the same name and the key."""
    await delete_topics(broker.node.topics, [name])
    await create(broker, name)
    write(broker, (KEY, PERSON), topic=name)


# -- offsets -----------------------------------------------------------------------------------------------------------------


def before_tombstones(broker: Broker, act: Callable[[], object]) -> None:
    """Run an action once the key is located, at the second save of the intent."""
    loop = asyncio.get_running_loop()
    env_of(broker).before("rename", "*.intent.tmp", partial(loop.call_soon_threadsafe, act), after=1, times=1)


async def test_a_key_that_was_nowhere_and_is_written_while_it_is_looked_for_is_named(broker: Broker) -> None:
    """The claim ends at the log end during the search; the erasure ends, and later records are listed."""
    await create(broker)
    fill(broker, 5)
    before_tombstones(broker, lambda: write(broker, (KEY, PERSON)))
    erasure = await erase(broker)
    assert (erasure.state, [one["offset"] for one in erasure.written_since]) == ("nothing-matched", [5])
    assert [one["below_offset"] for one in erasure.certificate["claims"]] == [5]
    assert unfinished(broker) == []
    verified = await verify(broker, erasure.certificate)
    assert (verified.outcome, verified.claims[0]["written_since"]) == ("nothing-matched", 1)


async def test_a_record_between_the_search_and_the_tombstone_is_erased_too(broker: Broker) -> None:
    """The record is below the tombstone, which supersedes it; the claim ends after the tombstone."""
    await create_with_key(broker)
    before_tombstones(broker, lambda: write(broker, (KEY, PERSON)))
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    assert [one["below_offset"] for one in erasure.certificate["claims"]] == [3]
    assert files_with(data_of(broker), PERSON) == []
    check_claims(data_of(broker), erasure.certificate, KEY)


# -- partitions --------------------------------------------------------------------------------------------------------------


async def test_a_partition_that_is_added_before_the_horizon_is_no_obstacle(broker: Broker) -> None:
    """The new partition is out of scope; its records of the key are listed, and stay."""
    await create_with_key(broker)
    assert (await erase(broker)).state == "values-gone"
    await add_partitions(broker.node.topics, "users", 2)
    write(broker, (KEY, b"in the new partition"), partition=1)
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert [one["partition"] for one in certificate["claims"]] == [0]
    assert certificate["partitions_added"] == [{"topic": "users", "partition": 1}]
    assert [(one["partition"], one["offset"]) for one in certificate["written_since"]] == [(1, 0)]
    assert (await verify(broker, certificate, KEY)).is_valid
    assert "not part of it: users-1" in certificate_page(certificate)


async def test_a_partition_that_is_opened_later_is_searched_then(broker: Broker) -> None:
    """The partition gets no claim at first; once its log is open, the erasure covers it and keeps the other claims."""
    await create_with_key(broker, 2)
    evidence = broker.services.evidence()
    logs = evidence.logs
    evidence.logs = {one: log for one, log in logs.items() if one != ("users", 1)}
    erasure = await erase(broker)
    evidence.logs = logs
    assert erasure.state == "not-certified"
    assert [(one["partition"], one["state"]) for one in erasure.certificate["not_certified"]] == [(1, "not opened")]
    assert erasure.next_due_ms is not None
    certificate = await certified_at(broker, erasure.next_due_ms, "values-gone")
    assert [(one["partition"], one["below_offset"]) for one in certificate["claims"]] == [(0, 2), (1, 2)]
    assert [one["partition"] for one in certificate["done"]] == [0, 1]
    assert files_with(data_of(broker), PERSON) == []


# -- topics ------------------------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_created_again_is_another_one(broker: Broker) -> None:
    """The new topic is untouched: the erasure ends with a reason, without a certificate about it."""
    await create_with_key(broker)
    first = await erase(broker)
    assert first.state == "values-gone"
    await recreate(broker)
    move_to(broker, START_MS + DAY_MS)
    await wait_until(lambda: not unfinished(broker))
    assert certificates_of(broker, "key-gone") == []
    certificate = only_certificate(broker, "not-certified")
    assert (certificate["ended"]["what"], certificate["claims"]) == ("topics-deleted", [])
    (ended,) = certificate["topics_ended"]
    assert (ended["topic"], ended["what"]) == ("users", "topic-recreated")
    assert await broker.services.certificates().last(first.id) == certificate
    assert values_left(broker) == [PERSON]
    assert intents_of(broker) == []
    assert [(one["topic"], one["what"]) for one in certificate["elsewhere"]] == [("users", "same-key")]
    verified = await verify(broker, certificate)
    assert (verified.signature, verified.coverage_adds_up, verified.is_valid) == ("trusted", True, False)


async def test_a_topic_that_is_deleted_while_segments_are_hashed_leaves_nothing_to_claim(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict follows the hashing, so no certificate claims that data is gone from a deleted topic."""
    await create_with_key(broker)
    begun, go_on = threading.Event(), threading.Event()

    def held(real: Any) -> Any:
        def digests(*arguments: Any) -> Any:
            if certificates_of(broker, "values-gone"):
                begun.set()
                assert go_on.wait(PATIENCE_S)
            return real(*arguments)

        return digests

    put_in(monkeypatch, Mutant(Evidence, "digests", held))
    call = asyncio.ensure_future(erase(broker, now=True))
    await wait_until(begun.is_set)
    await delete_topics(broker.node.topics, ["users"])
    go_on.set()
    erasure = await call
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    assert certificates_of(broker, "key-gone") == []
    monkeypatch.undo()
    assert erasure.next_due_ms is not None
    move_to(broker, erasure.next_due_ms)
    await wait_until(lambda: not unfinished(broker))
    assert only_certificate(broker, "not-certified")["ended"]["what"] == "topics-deleted"


async def test_other_topics_are_certified_all_the_same(broker: Broker) -> None:
    """The deleted topic gets no claim, and the certificate names it."""
    for name in ("users", "visitors"):
        await create(broker, name)
        write(broker, (KEY, PERSON), topic=name)
    await erase(broker, topics=("users", "visitors"))
    await recreate(broker)
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert [one["topic"] for one in certificate["claims"]] == ["visitors"]
    assert [one["topic"] for one in certificate["topics_ended"]] == ["users"]
    assert "users was deleted" in certificate_page(certificate)
    assert certificate["ended"] is None
    assert (await verify(broker, certificate, KEY)).is_valid
    assert values_left(broker) == [PERSON]


async def test_a_waiting_erasure_applies_to_the_topic_of_its_request(broker: Broker) -> None:
    """The topic id is taken at the request, not at the start of the erasure: another topic gets no tombstone."""
    await create_with_key(broker)
    async with broker.services.erasures().queue.attempts.lock:
        erasing_ = asyncio.ensure_future(erase(broker))
        await wait_until(lambda: broker.services.erasures().queue.calls == 1)
        await recreate(broker)
    erasure = await erasing_
    assert (erasure.state, erasure.certificate["ended"]["what"]) == ("not-certified", "topics-deleted")
    assert values_left(broker) == [PERSON]
    assert clock_of(broker).now_ms() == START_MS
