"""A real share consumer: librdkafka reads, releases and accepts records of a share group."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.commands.running import run

TIMEOUT_S = 60
COUNT = 20
OFFSETS = list(range(COUNT))
PROPERTIES = {
    "group.share.heartbeat.interval.ms": "100",
    "group.share.min.heartbeat.interval.ms": "100",
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """A broker with a topic `t` of 20 records, short intervals, and few partitions of internal topics."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=PROPERTIES)) as broker:
        address = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(TIMEOUT_S)
        producer = Producer(address)
        for number in OFFSETS:
            producer.produce("t", str(number).encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        yield broker


def begin_at_first_record(broker: BlockingBroker, group_id: str) -> None:
    """Let a group begin at the beginning of the log."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})  # outlives its futures
    admin.incremental_alter_configs([group])[group].result(TIMEOUT_S)


def new_member(broker: BlockingBroker) -> Any:
    """Return a member of the group `g`, which acknowledges each record."""
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe(["t"])
    return consumer


def received(consumer: Any, acknowledgement: Any, count: int) -> list[int]:
    """Return the offsets of the next records, each acknowledged so."""
    found: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        for message in consumer.poll(0.1):
            assert message.error() is None, message.error()
            assert message.value() == str(message.offset()).encode()
            found.append(message.offset())
            consumer.acknowledge(message, acknowledgement)
    outcome = consumer.commit_sync(TIMEOUT_S)
    assert all(error is None for error in outcome.values())
    return found


def test_a_share_group_is_described_by_the_command(broker: BlockingBroker) -> None:
    """The command shows members, start offsets and lag, as text and JSON; it does not reset a share group's offsets by a
    commit.
    """
    from confluent_kafka import AcknowledgeType

    begin_at_first_record(broker, "g")
    member = new_member(broker)
    assert received(member, AcknowledgeType.ACCEPT, COUNT) == OFFSETS
    (found,) = json.loads(run(broker, "group", "describe", "g", "--json").output)
    (partition,) = found["partitions"]
    assert (found["type"], [one["partitions"] for one in found["members"]]) == ("share", [{"t": [0]}])
    assert partition == {
        **{"topic": "t", "partition": 0, "start": COUNT, "end": COUNT, "lag": 0},
        "members": [found["members"][0]["member"]],
    }
    member.close()
    text = run(broker, "group", "describe", "g").output
    assert text.startswith("g: share, Empty, 0 members, ")
    assert re.search(r"^TOPIC +PARTITION +START +END +LAG .*\nt +0 +20 +20 +0 +- ", text, re.MULTILINE)
    refused = run(broker, "group", "reset", "g", "-t", "t", "--to", "start")
    assert refused.exit_code == 2
    assert "it is a share group" in refused.stderr
    assert run(broker, "group", "delete", "g").exit_code == 0
    assert json.loads(run(broker, "group", "list", "--json").output) == []


def test_released_records_come_again_and_accepted_ones_never(broker: BlockingBroker) -> None:
    """A member gets each record, and again once released; after it has accepted them, nothing is left for another member."""
    from confluent_kafka import AcknowledgeType

    begin_at_first_record(broker, "g")
    first = new_member(broker)
    assert received(first, AcknowledgeType.RELEASE, COUNT) == OFFSETS
    assert sorted(received(first, AcknowledgeType.ACCEPT, COUNT)) == OFFSETS
    first.close()  # holds nothing
    second = new_member(broker)
    added = produce_one(broker)
    assert received(second, AcknowledgeType.ACCEPT, 1) == [added]
    second.close()


def produce_one(broker: BlockingBroker) -> int:
    """Produce one more record; return its offset."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t", str(COUNT).encode(), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return COUNT
