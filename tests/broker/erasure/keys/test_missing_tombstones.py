"""Missing tombstones: one in another log does not count, and a missing one is written later."""

from __future__ import annotations

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.erasure_state import locate
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certified_at
from tests.broker.erasure.records import create, create_with_key, fill, values_left, write
from tests.mutants import Mutant, put_in

STRAY = "users-0.0123456789abcdef0123456789abcdef-stray"


async def test_a_tombstone_of_the_topic_before_is_none_of_this_one(broker: Broker) -> None:
    """The deleted topic's directory still exists: its records supersede nothing in the new topic."""
    await create(broker)
    fill(broker, 20)
    write(broker, (KEY, None))
    await delete_topics(broker.node.topics, ["users"])
    await create_with_key(broker)
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    (step,) = erasure.certificate["done"]
    assert step["tombstone_offset"] == 1
    assert values_left(broker) == [None]


async def test_a_tombstone_in_a_directory_that_is_set_aside_supersedes_nothing(broker: Broker) -> None:
    """Whatever its offset, it belongs to another log."""
    await create_with_key(broker)
    batch = bytearray(build_batch([Record(0, START_MS, KEY, None)]))
    batch[:8] = (500).to_bytes(8, "big")
    (data_of(broker) / STRAY).mkdir()
    (data_of(broker) / STRAY / "00000000000000000500.log").write_bytes(batch)
    (step,) = (await erase(broker)).certificate["done"]
    assert step["tombstone_offset"] == 1


def hide(broker: Broker, patched: pytest.MonkeyPatch, partition: int) -> None:
    """Skip a partition as if its filters ruled out the key, while filters are used."""
    (data_of(broker) / "diamant-hash-key").write_bytes(b"k" * 16)

    def cannot_hold(_env: object, path: str, *_: object) -> bool:
        return f"/users-{partition}/" in path

    put_in(patched, Mutant(locate, "cannot_hold", lambda _real: cannot_hold))


async def test_a_value_that_a_filter_has_hidden_is_erased_by_the_next_attempt(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan finds it: its partition is located again, without filters."""
    await create_with_key(broker, 2)
    hide(broker, monkeypatch, 1)
    erasure = await erase(broker)
    assert erasure.state == "not-certified"
    assert [one["partition"] for one in erasure.certificate["not_certified"]] == [1]
    certificate = await certified_at(broker, START_MS + RETRY_MS, "values-gone")
    assert {one["partition"]: one["below_offset"] for one in certificate["claims"]} == {0: 2, 1: 2}
    assert [one["tombstone_offset"] for one in certificate["done"]] == [1, 1]
    assert [one["values"] for one in certificate["found"]] == [1, 1]
    assert values_left(broker) == [None, None]


async def test_a_later_write_is_not_erased_by_the_next_attempt(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later write of the key supersedes the value like a tombstone: the claim keeps its end."""
    await create_with_key(broker)
    hide(broker, monkeypatch, 0)
    assert (await erase(broker)).state == "not-certified"
    write(broker, (KEY, b"a new customer of that number"))
    certificate = await certified_at(broker, START_MS + RETRY_MS, "key-gone")
    assert [one["below_offset"] for one in certificate["claims"]] == [1]
    assert [one["offset"] for one in certificate["written_since"]] == [1]
    assert values_left(broker) == [b"a new customer of that number"]
