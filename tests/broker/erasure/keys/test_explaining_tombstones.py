"""What explain advises where an erasure waits for a tombstone's horizon already: to have that one not wait, and no new one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.explain.explanation import Change
from tests.broker.erasure.cases import (
    DAY_MS,
    KEY,
    PERSON,
    broker_at,
    clock_of,
    create,
    create_with_key,
    env_of,
    erase,
    move_to,
    wait_certified,
    write,
)


async def advice(broker: Broker, topic: str = "users", **what: Any) -> list[tuple[int, str | None]]:
    """Of each record that is asked for: its offset, and the command that would have it go now."""
    what = what or {"key": KEY}
    found = (await broker.explain(topic, **what)).partitions[0].records
    changes = [(one.offset, one.change or Change("")) for one in found if not one.segment.endswith(".deleted")]
    return [(offset, change.command) for offset, change in changes]


@pytest.mark.parametrize("key", [KEY, b"\x00\xff"])
async def test_its_own_erasure_is_named(broker: Broker, key: bytes) -> None:
    """Asked for by key, by offset, or as one of the tombstones."""
    await create(broker)
    write(broker, (key, PERSON))
    erasure = await erase(broker, key)
    assert erasure.state == "values-gone"
    told = [(1, f"erase-now {erasure.id}")]
    assert await advice(broker, key=key) == told
    assert await advice(broker, partition=0, offset=1) == told
    assert await advice(broker, is_tombstones=True) == told
    done = await broker.erase_now(erasure.id)
    assert (done.state, await advice(broker, key=key)) == ("key-gone", [])


async def test_after_a_restart_too(tmp_path: Path) -> None:
    """The keys are known from the intents."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
    async with broker_at(tmp_path) as broker:
        assert await advice(broker) == [(1, f"erase-now {erasure.id}")]


async def test_tombstones_of_others_have_nothing_to_do_with_it(broker: Broker) -> None:
    """Other keys, other topics, the same key behind the claim; and no intent of another key is even read."""
    await create(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), (b"other", b"v"), (b"third", b"v"))
    write(broker, (b"other", None))
    write(broker, (KEY, None), topic="orders")
    erasure = await erase(broker)
    third = await erase(broker, b"third")
    tombstones = await advice(broker, is_tombstones=True)
    assert tombstones[1:] == [(4, f"erase-now {erasure.id}"), (5, f"erase-now {third.id}")]
    read: list[str] = []
    for one in (erasure.id, third.id):
        env_of(broker).before("read_bytes", f"*{one}.intent", partial(read.append, one))
    new_erasure = "erase {} --key KEY --reason REASON --now"
    assert await advice(broker, key=b"other") == tombstones[:1] == [(3, new_erasure.format("users"))]
    assert read == []
    await broker.compact("orders")
    assert await advice(broker, "orders") == [(0, new_erasure.format("orders"))]
    write(broker, (KEY, None))
    await broker.compact("users")
    assert await advice(broker) == [(6, new_erasure.format("users"))]
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
    """An erasure goes on for its other topic, and has nothing to do with the new one."""
    await create_with_key(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), topic="orders")
    erasure = await erase(broker, topics=["users", "orders"])
    assert erasure.state == "values-gone"
    await delete_topics(broker.node.topics, ["users"])
    await create(broker)
    write(broker, (KEY, None))
    await broker.compact("users")
    assert await advice(broker) == [(0, "erase users --key KEY --reason REASON --now")]
    assert await advice(broker, "orders") == [(1, f"erase-now {erasure.id}")]


async def test_once_it_is_over_nothing_is_kept_of_its_key(broker: Broker) -> None:
    """Neither the digest nor advice; cancelled or done."""
    await create_with_key(broker)
    erasure = await erase(broker)
    assert broker.services.erasures().pending("users") is not None
    await broker.cancel(erasure.id, reason="a test")
    assert broker.services.erasures().pending("users") is None
    assert await advice(broker) == [(1, "erase users --key KEY --reason REASON --now")]
    await erase(broker)
    assert broker.services.erasures().pending("users") is not None
    move_to(broker, clock_of(broker).now_ms() + DAY_MS)
    await wait_certified(broker, "key-gone")
    assert broker.services.erasures().pending("users") is None
