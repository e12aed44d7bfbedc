"""Topics whose partitions are not all created yet."""

from __future__ import annotations

import asyncio
import threading

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.broker.topics.growth import check_partition_count
from diamant.protocol.errors import ErrorCode, KafkaError
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
