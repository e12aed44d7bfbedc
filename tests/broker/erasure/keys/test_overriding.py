"""Overridden horizons, at once or in a later attempt: groups behind are listed and confirmed; explain suggests it."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.explain.explanation import Change
from tests.broker.erasure.brokers import broker_at, clock_of, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, HTTP, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, unfinished, wait_idle
from tests.broker.erasure.issued import certificates_of, certified_at, intent_of, wait_certified
from tests.broker.erasure.obstacles import at_stage
from tests.broker.erasure.records import commit, create, create_with_key, fill, values_left, write
from tests.broker.http_asking import ask
from tests.cleaner.evidence.scan.naive_scanner import log_files, records_in


async def test_the_horizon_can_be_overridden(broker: Broker) -> None:
    """All other records keep their offsets; the certificate lists the groups that were behind."""
    await create(broker)
    write(broker, (KEY, PERSON), (b"other", b"stays"))
    fill(broker)
    erasure = await erase(broker, now=True)
    assert (erasure.state, erasure.next_due_ms) == ("key-gone", None)
    assert erasure.certificate["overrides"][0]["groups_that_had_not_passed_it"] == []
    assert values_left(broker) == []
    kept = [one for path in log_files(data_of(broker), "users") for one in records_in(path)]
    assert (1, b"other", b"stays") in [one[1:] for one in kept]
    assert len(kept) == 11


async def test_over_http_now_is_confirmed_by_a_field(tmp_path: Path) -> None:
    """The first answer names the groups; the second request confirms them for the same erasure."""
    async with broker_at(tmp_path, **HTTP) as broker:
        commit(broker, (1, "billing"))
        await create_with_key(broker)
        fields = {"key": KEY.decode(), "topics": ["users"], "reason": "r", "now": True}
        first = (await ask(broker, "POST", "/v1/erase?wait_ms=20000", fields)).json
        assert (first["state"], first["is_now_refused"]) == ("values-gone", True)
        assert first["groups_behind"] == {"users-0": ["billing"]}
        path = f"/v1/erase/{first['id']}/now?wait_ms=20000"
        unsaid = (await ask(broker, "POST", path, {})).json
        assert (unsaid["certificate"], unsaid["is_now_refused"]) == (first["certificate"], True)
        assert (unsaid["groups_behind"], unsaid["next_due_ms"]) == (first["groups_behind"], first["next_due_ms"])
        second = (await ask(broker, "POST", path, {"confirm_groups_behind": True})).json
        assert (second["id"], second["state"], second["is_now_refused"]) == (first["id"], "key-gone", False)
        listed = (await ask(broker, "GET", "/v1/certificates")).json
        assert [one["id"] for one in listed["certificates"]] == [first["id"]] * 2
        assert listed["unfinished"] == []


def fill_up(broker: Broker) -> None:
    """Make writes of segments without tombstones fail for lack of space."""
    env_of(broker).fail("create_new", "*.cleaned", errno.ENOSPC)


async def test_a_group_that_comes_before_the_next_attempt_is_not_passed_over_unasked(broker: Broker) -> None:
    """No group was behind at the request, so none was confirmed: the tombstone waits for its horizon."""
    await create_with_key(broker)
    with pytest.raises(EraseFailed, match="No space left"):
        await erase(broker, now=True, progress=at_stage("removing tombstones", partial(fill_up, broker)))
    env_of(broker).faults = ()
    commit(broker, (1, "late"))
    move_to(broker, START_MS + RETRY_MS)
    await wait_idle(broker)
    assert certificates_of(broker, "key-gone") == []
    assert values_left(broker) == [None]
    assert [one["due_ms"] for one in unfinished(broker)] == [START_MS + DAY_MS]
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert certificate["overrides"] == []


async def test_groups_that_miss_a_tombstone_are_on_disk_before_it_goes(broker: Broker) -> None:
    """After a stop, the certificate still lists a group that has moved past the tombstone's offset since."""
    commit(broker, (1, "billing"))
    await create_with_key(broker)
    noted: list[tuple[str, ...]] = []

    def note() -> None:
        noted.extend(intent_of(broker).overrides.values())

    def stop_behind() -> None:
        env_of(broker).before("create_new", "*.log.cleaned", note)
        env_of(broker).fail("remove", "*.log.deleted", errno.ENOSPC)

    with pytest.raises(EraseFailed, match="No space left"):
        await erase(broker, now=True, confirm_groups_behind=True, progress=at_stage("removing tombstones", stop_behind))
    env_of(broker).faults = ()
    assert noted == [("billing",)]
    commit(broker, (1, "another"), (2, "billing"))
    certificate = await certified_at(broker, START_MS + RETRY_MS, "key-gone")
    assert [one["groups_that_had_not_passed_it"] for one in certificate["overrides"]] == [["another", "billing"]]
    assert certificate["lost_tombstones"] == []


@pytest.mark.parametrize(("offset", "is_refused"), [(1, True), (2, False)])
async def test_behind_a_tombstone_that_was_there_already_is_who_has_not_passed_it(
    broker: Broker, offset: int, is_refused: bool
) -> None:
    """A group is behind if it has not passed the tombstone; the log end, where the claim ends, does not matter."""
    commit(broker, (offset, "reader"))
    await create_with_key(broker)
    write(broker, (KEY, None))
    fill(broker)
    erasure = await erase(broker, now=True)
    assert (erasure.is_now_refused, erasure.state) == (is_refused, "values-gone" if is_refused else "key-gone")
    assert erasure.groups_behind == ({"users-0": ["reader"]} if is_refused else {})
    assert [one["below_offset"] for one in erasure.certificate["claims"]] == [32]
    assert [one["tombstone_found_at"] for one in erasure.certificate["done"]] == [1]


async def advice(broker: Broker, topic: str = "users", **what: Any) -> list[tuple[int, str | None]]:
    """For each explained record: its offset, and the suggested command."""
    what = what or {"key": KEY}
    found = (await broker.explain(topic, **what)).partitions[0].records
    changes = [(one.offset, one.change or Change("")) for one in found if not one.segment.endswith(".deleted")]
    return [(offset, change.command) for offset, change in changes]


@pytest.mark.parametrize("key", [KEY, b"\x00\xff"])
async def test_the_explanation_names_the_erasure_of_the_record(broker: Broker, key: bytes) -> None:
    """The erasure is named for a key, for an offset, and for one of the tombstones."""
    await create(broker)
    write(broker, (key, PERSON))
    erasure = await erase(broker, key)
    assert erasure.state == "values-gone"
    told = [(1, f"erase-now {erasure.id}")]
    assert await advice(broker, key=key) == told
    assert await advice(broker, partition=0, offset=1) == told
    assert await advice(broker, tombstones=True) == told
    done = await broker.erase_now(erasure.id)
    assert (done.state, await advice(broker, key=key)) == ("key-gone", [])


async def test_after_a_restart_too(tmp_path: Path) -> None:
    """The keys are read from the intents."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
    async with broker_at(tmp_path) as broker:
        assert await advice(broker) == [(1, f"erase-now {erasure.id}")]


async def test_only_tombstones_of_the_key_below_the_claim_count(broker: Broker) -> None:
    """Tombstones of other keys, of other topics, and of the same key after the claim do not count; intents of other keys are
    not even read.
    """
    await create(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), (b"other", b"v"), (b"third", b"v"))
    write(broker, (b"other", None))
    write(broker, (KEY, None), topic="orders")
    erasure = await erase(broker)
    third = await erase(broker, b"third")
    tombstones = await advice(broker, tombstones=True)
    assert tombstones[1:] == [(4, f"erase-now {erasure.id}"), (5, f"erase-now {third.id}")]
    read: list[str] = []
    for one in (erasure.id, third.id):
        env_of(broker).before("read_bytes", f"*{one}.intent", partial(read.append, one))
    new_erasure = "erase {} --key {} --reason REASON --now"
    assert tombstones[:1] == [(3, new_erasure.format("users", "KEY"))]
    assert await advice(broker, key=b"other") == [(3, new_erasure.format("users", "other"))]
    assert read == []
    await broker.compact("orders")
    assert await advice(broker, "orders") == [(0, new_erasure.format("orders", "customer-42"))]
    write(broker, (KEY, None))
    await broker.compact("users")
    assert await advice(broker) == [(6, new_erasure.format("users", "customer-42"))]
    assert set(read) == {erasure.id}


async def test_of_two_erasures_the_one_that_is_about_the_record(broker: Broker) -> None:
    """The first one's claim ends below the second one's tombstone."""
    await create_with_key(broker)
    first = await erase(broker)
    write(broker, (KEY, b"a customer again"))
    second = await erase(broker)
    assert first.id != second.id
    assert await advice(broker) == [(3, f"erase-now {second.id}")]


async def test_a_topic_of_the_same_name_is_another_one(broker: Broker) -> None:
    """An erasure continues for its other topic, and does not concern the new one."""
    await create_with_key(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), topic="orders")
    erasure = await erase(broker, topics=["users", "orders"])
    assert erasure.state == "values-gone"
    await delete_topics(broker.node.topics, ["users"])
    await create(broker)
    write(broker, (KEY, None))
    await broker.compact("users")
    assert await advice(broker) == [(0, "erase users --key customer-42 --reason REASON --now")]
    assert await advice(broker, "orders") == [(1, f"erase-now {erasure.id}")]


async def test_once_it_is_over_nothing_is_kept_of_its_key(broker: Broker) -> None:
    """An erasure that is cancelled or done leaves neither digest nor suggestion."""
    await create_with_key(broker)
    erasure = await erase(broker)
    assert broker.services.erasures().pending("users") is not None
    await broker.cancel(erasure.id, reason="a test")
    assert broker.services.erasures().pending("users") is None
    assert await advice(broker) == [(1, "erase users --key customer-42 --reason REASON --now")]
    await erase(broker)
    assert broker.services.erasures().pending("users") is not None
    move_to(broker, clock_of(broker).now_ms() + DAY_MS)
    await wait_certified(broker, "key-gone")
    assert broker.services.erasures().pending("users") is None
