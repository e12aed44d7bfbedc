"""Topics that are created because a client asked for them."""

from __future__ import annotations

import threading

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.running import running
from tests.broker.wire import DESCRIBE_CONFIGS, FIND_COORDINATOR, METADATA, WireClient
from tests.memory_env import MemoryEnv


async def test_metadata_answers_ready_where_that_is_set() -> None:
    """With diamant.auto.create.topics.answer=ready, the first answer has the topic, and FindCoordinator the coordinator."""
    async with running(MemoryEnv(), diamant_auto_create_topics_answer="ready") as (_, wire):
        topics = (await wire.call(METADATA, 12, {"topics": [{"name": "a"}, {"name": "__consumer_offsets"}]})).topics
        assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in topics] == [
            ("a", ErrorCode.NONE, 1),
            ("__consumer_offsets", ErrorCode.NONE, 1),
        ]
        response = await wire.call(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["x"]})
        assert response.coordinators[0].error_code == ErrorCode.NONE


async def test_metadata_creates_the_internal_topics_that_are_kept_here(wire: WireClient) -> None:
    """Asked for by name, they are created with their own settings, as in Kafka."""
    asked = {
        "topics": [{"name": name} for name in ("__consumer_offsets", "__transaction_state", "__share_group_state")]
    }
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, True)
    for expected in ([unknown] * 3, [(ErrorCode.NONE, 50, True)] * 3):
        topics = (await wire.call(METADATA, 12, asked)).topics
        assert [(one.error_code, len(one.partitions), one.is_internal) for one in topics] == expected
    (policy,) = (
        (
            await wire.call(
                DESCRIBE_CONFIGS,
                4,
                {
                    "resources": [
                        {
                            "resource_type": 2,
                            "resource_name": "__consumer_offsets",
                            "configuration_keys": ["cleanup.policy"],
                        }
                    ]
                },
            )
        )
        .results[0]
        .configs
    )
    assert policy.value == "compact"


async def test_a_first_metadata_is_answered_before_the_disk_is() -> None:
    """The first answer waits for no file; the second, in the same packet or from another client, waits until the topic can be
    used.
    """
    env = MemoryEnv()
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data"), env=env) as broker:
        may_go_on = threading.Event()
        env.before("sync", "/data/t-0/*", lambda: may_go_on.wait(60))
        asked = {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}
        async with WireClient(broker.bootstrap_servers) as first, WireClient(broker.bootstrap_servers) as second:
            numbers = [first.send(METADATA, 12, asked) for _ in range(2)]
            answer = await first.receive(METADATA, 12, numbers[0])
            assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            late = second.send(METADATA, 12, asked)
            may_go_on.set()
            for client, number in ((first, numbers[1]), (second, late)):
                assert (await client.receive(METADATA, 12, number)).topics[0].error_code == ErrorCode.NONE


async def test_a_colliding_name_stays_unknown(wire: WireClient, caplog: pytest.LogCaptureFixture) -> None:
    """A name that is valid and cannot be created is unknown each time, as in Kafka; the broker's log has the reason."""
    await wire.create("a.b")
    for _ in range(2):
        response = await wire.call(METADATA, 12, {"topics": [{"name": "a_b"}], "allow_auto_topic_creation": True})
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await wire.call(METADATA, 12, {"topics": [{"name": "a.b"}], "allow_auto_topic_creation": True})
    assert (
        "topic a_b was requested but could not be created: Topic 'a_b' collides with existing topic: a.b" in caplog.text
    )
