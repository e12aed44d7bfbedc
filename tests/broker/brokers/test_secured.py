"""Several brokers with TLS and users: one set-up for all, and a certificate that is valid at each port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.brokers.several import bring_up, take_down
from tests.broker.security import altering
from tests.broker.security.tls.certificates import authority
from tests.broker.security.tls.test_new_stores import HOSTS, LOCATION, shown, write

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


async def test_a_new_certificate_is_shown_at_every_port(tmp_path: Path) -> None:
    """Set at one broker, it is that of all: also of a broker that is down in the meantime. Clients verify it at each."""
    file = tmp_path / "key.pem"
    first = write(file, authority().issue("broker", hosts=HOSTS))
    properties = {"ssl.keystore.location": str(file)}
    config = BrokerConfig(listen="SSL://127.0.0.1:0", data_dir=tmp_path / "data", brokers=3, properties=properties)
    async with Broker(config) as broker:
        addresses = [one.address for one in broker.addresses.kafka]
        assert [await shown(broker, address) for address in addresses] == [first] * 3
        take_down(broker, 3)
        second = write(file, authority().issue("broker", hosts=[*HOSTS, "more"]))
        client = {"security_protocol": "SSL", "ssl_ca_pem": authority().certificate}
        await altering.alter(addresses[0], LOCATION, str(file), **client)
        bring_up(broker, 3)
        assert [await shown(broker, address) for address in addresses] == [second] * 3
        found = {"bootstrap.servers": addresses[2], "security.protocol": "SSL", "ssl.ca.pem": authority().certificate}
        assert await asyncio.to_thread(produce_to_all, found, 3) == [1, 2, 3]
