"""Topics whose partitions are not all created yet."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.metrics.figures import offline_partitions
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.broker.topics.deletion import delete_topics
from diamant.broker.topics.growth import check_partition_count
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from diamant.broker.topics.topic import TopicListener
from diamant.protocol.errors import ErrorCode, KafkaError
from tests.broker.groups.offsets.offset_requests import commit
from tests.broker.running import running
from tests.broker.wire import FIND_COORDINATOR
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S, wait_until


async def test_a_topic_in_creation_is_neither_made_twice_nor_grown() -> None:
    """The topic's name is reserved at once. It can be used and grown after all of its partitions are created."""
    env = MemoryEnv()
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data"), env=env) as broker:
        topics = broker.node.topics
        may_go_on = threading.Event()
        env.before("sync", "/data/t-0/*", lambda: may_go_on.wait(PATIENCE_S))
        creating = asyncio.create_task(create_topics(topics, [check_new_topic(topics, "t", 2)]))
        await wait_until(lambda: "t" in topics.in_creation)
        with pytest.raises(KafkaError) as taken:
            check_new_topic(topics, "t")
        with pytest.raises(KafkaError) as unknown:
            check_partition_count(topics, "t", 3, None)
        assert (taken.value.code, unknown.value.code) == (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        ensured = asyncio.create_task(broker.services.creation.ensure(["t"]))
        may_go_on.set()
        assert await ensured == {}
        await creating
        assert (sorted(topics.by_name["t"].logs), topics.in_creation) == ([0, 1], {})
        check_partition_count(topics, "t", 3, None)


@pytest.mark.parametrize("name", sorted({GROUP_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC}))
async def test_a_coordinator_is_created_on_the_loop(name: str) -> None:
    """Its modules are imported in a thread, but it belongs to the loop, which in debug mode refuses calls from others."""
    threads: set[int] = set()

    class Listeners(list[TopicListener]):
        def append(self, listener: TopicListener) -> None:
            threads.add(threading.get_ident())
            super().append(listener)

    async with running(MemoryEnv()) as (broker, _):
        asyncio.get_running_loop().set_debug(True)
        broker.node.topics.listeners = Listeners()
        assert await broker.services.creation.ensure([name]) == {}
        assert name in broker.node.topics.by_name
    assert threads == {threading.get_ident()}


async def test_a_partition_that_the_disk_refuses_is_created_later() -> None:
    """The creation fails and the partition is shown as offline; as soon as the disk permits it is there, without a restart."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        topics = broker.node.topics
        fault = env.fail("create", "/data/t-1/*", errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            await create_topics(topics, [check_new_topic(topics, "t", 3), check_new_topic(topics, "u", 1)])
        assert (sorted(topics.by_name["t"].logs), sorted(topics.by_name["u"].logs)) == ([0, 2], [0])
        assert offline_partitions(broker.node) == 1
        fault.clear()
        await wait_until(lambda: 1 in topics.by_name["t"].logs)
        assert offline_partitions(broker.node) == 0
        for partition in range(3):
            await wire.produce("t", [b"x"], partition=partition)


async def test_a_topic_whose_partition_was_never_created_can_be_deleted() -> None:
    """Nothing is tried again for it, and nothing of it stays."""
    env = MemoryEnv()
    async with running(env) as (broker, _):
        topics = broker.node.topics
        fault = env.fail("create", "/data/t-0/*", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            await create_topics(topics, [check_new_topic(topics, "t", 1)])
        await delete_topics(topics, ["t"])
        assert broker.node.directory.failures == []
        fault.clear()
        await wait_until(lambda: not [name for name in env.list_dir("/data") if name.startswith("t-")])


async def test_groups_work_once_there_is_space_for_their_topic() -> None:
    """One full disk while `__consumer_offsets` is made does not keep groups waiting until a restart."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        await wire.create("t")
        fault = env.fail("create", "/data/__consumer_offsets-0/*", errno.ENOSPC)
        await wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
        assert await commit(wire, "g", {("t", 0): 1}) != [ErrorCode.NONE]
        fault.clear()
        await wait_until(lambda: not broker.node.directory.failures)
        assert await commit(wire, "g", {("t", 0): 1}) == [ErrorCode.NONE]
