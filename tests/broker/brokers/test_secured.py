"""Several brokers with TLS and users: one set-up for all, and a certificate that is valid at each port."""

from __future__ import annotations

import asyncio

import pytest

from diamant.broker.broker import Broker
from tests.broker.brokers.several import bring_up, take_down

pytestmark = pytest.mark.slow


def produce_to_all(config: dict[str, object], partitions: int) -> list[int]:
    """Create a topic and send a record to each partition; the leaders."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(config)
    admin.create_topics([NewTopic("t", partitions, 3)])["t"].result(60)
    producer = Producer(config)
    for partition in range(partitions):
        producer.produce("t", b"v", partition=partition)
    assert producer.flush(60) == 0
    topic = admin.list_topics("t", timeout=60).topics["t"]
    return [topic.partitions[partition].leader for partition in range(partitions)]


async def test_every_port_has_the_same_security() -> None:
    """A client with the CA and a login reaches all three, also one that was down in the meantime."""
    async with Broker(brokers=3, users={"alice": "a-password"}, tls=True) as broker:
        take_down(broker, 3)
        bring_up(broker, 3)
        config = broker.client_config("alice").confluent()
        assert await asyncio.to_thread(produce_to_all, config, 3) == [1, 2, 3]
        assert [log.log_end_offset for log in broker.node.topics.by_name["t"].logs.values()] == [1, 1, 1]
