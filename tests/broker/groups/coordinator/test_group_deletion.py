"""Deletions of groups and topics, and a stop of the broker, leave no partial state."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from diamant.broker.broker import Broker
from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
from diamant.broker.groups.store.offsets import GroupOffsets
from diamant.broker.topics.deletion import delete_topics
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import Subscription
from diamant.storage.log.log import Log
from tests.broker.groups.consumer.consumer_wire import A
from tests.broker.groups.offsets.offset_requests import (
    JOIN_GROUP,
    commit,
    delete_groups,
    fetch,
    find_coordinator,
    join,
    leave,
    list_groups,
    wait_until_loaded,
)
from tests.broker.request_fields import join_group
from tests.broker.running import running
from tests.broker.stored import batches_of
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.memory_env import MemoryEnv
from tests.protocol.internal_topics.subscriptions import encode_subscription

NONE = ErrorCode.NONE


def counts(log: Log, start: int = 0) -> list[int]:
    """Return the number of records in each batch."""
    return [header.record_count for header, _ in batches_of(log, start)]


def log_of(broker: Broker, group_id: str) -> Log:
    """Return the log of the group's records."""
    groups: GroupCoordinator = broker.services.groups()
    return groups.log.log_of(group_id)


@pytest.mark.parametrize("kind", ["simple", "classic"])
async def test_a_group_goes_in_one_batch(groups_broker: Broker, client: WireClient, kind: str) -> None:
    """One batch has the tombstones of the group and its offsets: a crash leaves the whole group, or nothing."""
    if kind == "classic":
        member = await join(client, "g", "t")
        await commit(client, "g", {("t", partition): 1 for partition in range(3)}, member=member)
        await leave(client, member)
    else:
        await commit(client, "g", {("t", partition): 1 for partition in range(3)})
    log = log_of(groups_broker, "g")
    end = log.log_end_offset
    assert await delete_groups(client, "g") == {"g": NONE}
    assert counts(log, end) == [4]
    assert await list_groups(client) == {}


async def test_a_large_group_goes_in_several_batches(make_broker: Callable[..., Broker]) -> None:
    """Tombstones beyond one batch are written in several, also those of offsets alone. The group's is with the last: a group
    left by a crash can be deleted again.
    """
    partition_count = 15
    async with make_broker(offsets_topic_num_partitions=1) as broker, WireClient(broker.bootstrap_servers) as client:
        await client.create("large", partition_count)
        await find_coordinator(client)
        await commit(client, "g", {("large", partition): 1 for partition in range(partition_count)})
        log = log_of(broker, "g")
        log.update_config(
            replace(log.config, max_message_bytes=3_200)
        )  # room for ten, by the longest names that there are
        end = log.log_end_offset
        broker.services.groups().removal.delete("g", [("large", partition) for partition in range(12)])
        assert counts(log, end) == [10, 2]
        await commit(client, "g", {("large", partition): 1 for partition in range(partition_count)})
        end = log.log_end_offset
        assert await delete_groups(client, "g") == {"g": NONE}
        assert counts(log, end) == [5, 10 + 1]
    async with make_broker() as broker, WireClient(broker.bootstrap_servers) as client:
        await wait_until_loaded(broker)
        assert await list_groups(client) == {}


@pytest.mark.slow
async def test_a_group_with_a_very_long_name(groups_broker: Broker, client: WireClient) -> None:
    """Batches are limited by bytes, too: a group with a name of 32,000 characters can be deleted."""
    await client.create("large", 40)
    name = "g" * 32_000
    await commit(client, name, {("large", partition): 1 for partition in range(20)})
    await commit(client, name, {("large", partition): 1 for partition in range(20, 40)})
    assert await delete_groups(client, name) == {name: NONE}
    assert all(header.size <= 1 << 20 for header, _ in batches_of(log_of(groups_broker, name)))
    assert await list_groups(client) == {}


async def test_a_group_that_expires_goes_in_one_batch(groups_broker: Broker, client: WireClient) -> None:
    """An expired group is removed in one batch, as one deleted on request."""
    await commit(client, "g", {("t", 0): 1, ("u", 0): 1})
    log = log_of(groups_broker, "g")
    end = log.log_end_offset
    groups_broker.env.clock.advance_ms(8 * 86_400_000)  # type: ignore[attr-defined]
    await groups_broker.services.groups().expiry.expire()
    assert counts(log, end) == [3]
    assert await list_groups(client) == {}


@asynccontextmanager
async def restarted(env: MemoryEnv) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker with all groups loaded."""
    async with running(env) as (broker, client):
        await wait_until_loaded(broker)
        yield broker, client


@asynccontextmanager
async def with_commits(env: MemoryEnv) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A new broker with topics "t" and "u", and a group with commits for both."""
    async with restarted(env) as (broker, client):
        await client.create("t", 2)
        await client.create("u", 1)
        await find_coordinator(client)
        await commit(client, "g", {("t", 0): 1, ("t", 1): 2, ("u", 0): 3})
        yield broker, client


@pytest.mark.parametrize(
    ("operation", "path"),
    [("rename", "/data/t-1"), ("sync", "/data/__cluster_metadata-0/*.log")],
    ids=["a directory cannot be renamed", "the metadata log cannot be synced"],
)
async def test_a_deletion_that_fails_half_way(operation: str, path: str) -> None:
    """The client gets the error; the topic is deleted, and so are the groups' offsets for it."""
    env = MemoryEnv()
    async with with_commits(env) as (broker, client):
        env.fail(operation, path, errno.EIO, times=1)  # type: ignore[arg-type]
        answer = await client.call(DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout_ms": 1000})
        assert ErrorCode(answer.responses[0].error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "t" not in broker.node.topics.by_name
        assert await fetch(client, "g") == {("u", 0): 3}


async def test_a_deletion_that_does_not_happen() -> None:
    """If the metadata log refuses the record, the topic stays, with its committed offsets."""
    env = MemoryEnv()
    async with with_commits(env) as (broker, client):
        env.fail("append", "/data/__cluster_metadata-0/*.log", errno.ENOSPC, times=1)
        answer = await client.call(DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout_ms": 1000})
        assert ErrorCode(answer.responses[0].error_code) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "t" in broker.node.topics.by_name
        assert await fetch(client, "g") == {("t", 0): 1, ("t", 1): 2, ("u", 0): 3}


async def test_a_broker_killed_before_groups_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finds the topic deleted or recreated, and removes its offsets."""
    env = MemoryEnv()
    async with with_commits(env) as (broker, client):
        with monkeypatch.context() as patch:
            patch.setattr(broker.services.groups(), "topic_deleted", lambda topic: None)
            await delete_topics(broker.node.topics, ["t", "u"])
            killed = env.copy()
        await client.create("t", 2)
        await commit(client, "g", {("t", 1): 7})
        killed_later = env.copy()
    async with restarted(killed) as (broker, client):
        assert await fetch(client, "g") == {}
        assert counts(log_of(broker, "g")) == [3, 3]
    async with restarted(killed_later) as (_, client):
        assert await fetch(client, "g") == {("t", 1): 7}
    async with restarted(killed_later) as (_, client):
        assert await fetch(client, "g") == {("t", 1): 7}


def test_pending_offsets_equal_a_search_of_all_transactions() -> None:
    """After any commits, ends and removals by any producers, `is_pending` equals a search of all of them."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    offsets = GroupOffsets()
    places = [(topic, partition) for topic in "tu" for partition in range(3)]
    for number in range(2_000):
        topic, partition = chance.choice(places)
        producer_id = chance.randrange(5)
        step = chance.random()
        if step < 0.6:
            offsets.put_pending(producer_id, topic, partition, (b"", number))
        elif step < 0.8:
            offsets.end_transaction(producer_id, is_commit=chance.random() < 0.5)
        else:
            offsets.remove(topic, partition)
        for place in places:
            assert offsets.is_pending(*place) == any(place in some for some in offsets.pending.values())
        assert set(offsets.places()) == {place for place in places if offsets.has(*place)}


HEARTBEAT = 68
JOIN = join_group(
    "g", encode_subscription(Subscription(("t",), None, {})), session_timeout_ms=10_000, rebalance_timeout_ms=60_000
)
BEAT = {
    "group_id": "g",
    "member_id": A,
    "member_epoch": 0,
    "rebalance_timeout_ms": 5_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("key", "version", "request_fields"), [(JOIN_GROUP, 3, JOIN), (HEARTBEAT, 0, BEAT)], ids=["join", "heartbeat"]
)
async def test_requests_that_come_while_the_broker_stops(
    make_broker: Callable[..., Broker], key: int, version: int, request_fields: dict[str, object]
) -> None:
    """A request delayed by a fault until the stop is refused. It is not parked, and sets no timer."""
    async with make_broker() as broker, WireClient(broker.bootstrap_servers) as client:
        await find_coordinator(client)
        groups = broker.services.groups()
        with broker.faults.add(api=key, hold=True) as fault:
            client.send(key, version, request_fields)
            await fault.until_fired()
            async with asyncio.timeout(60):
                await broker.stop()
        # A connection that is busy for too long is closed without one.
        answer = await client.receive(key, version)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert len(groups.classic.timers) == len(groups.consumer.runner.timers) == 0
