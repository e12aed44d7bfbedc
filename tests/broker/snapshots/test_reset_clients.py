"""Resets and forks with real clients: committed offsets, open transactions, and persistent or renewed connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from diamant.broker.broker import BlockingBroker, Broker
from tests.broker.snapshots.copied import config

TIMEOUT_S = 60


def send(producer: Producer, value: str) -> None:
    """Send a record and wait for its acknowledgement."""
    errors: list[object] = []
    producer.produce("t", value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None]


def committed(broker: BlockingBroker) -> int:
    """Return the committed offset of the group."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    try:
        offset: int = consumer.committed([TopicPartition("t", 0)], TIMEOUT_S)[0].offset
        return offset
    finally:
        consumer.close()


def commit(broker: BlockingBroker, offset: int) -> None:
    """Commit an offset of the group."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("seamless", [False, True])
def test_a_reset_with_clients_connected(tmp_path: Path, seamless: bool) -> None:
    """Committed offsets and an open transaction are restored. A connected producer continues at the old offset."""
    with Broker(config(tmp_path)) as broker:
        broker.create_topic("t")
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        producer = Producer(servers)
        send(producer, "before")
        commit(broker, 1)
        open_one = Producer({**servers, "transactional.id": "x"})
        open_one.init_transactions(TIMEOUT_S)
        open_one.begin_transaction()
        send(open_one, "open")
        log = broker.node.topics.log("t", 0)
        before = (log.log_end_offset, log.last_stable_offset)
        assert before == (2, 1)
        snapshot = broker.snapshot()

        open_one.commit_transaction(TIMEOUT_S)
        send(producer, "later")
        commit(broker, 3)
        broker.reset(snapshot, seamless=seamless)
        log = broker.node.topics.log("t", 0)
        assert (log.log_end_offset, log.last_stable_offset) == before
        assert committed(broker) == 1
        send(producer, "again")
        assert log.log_end_offset == 3
        # Who begins again under this id ends the transaction that was open.
        again = Producer({**servers, "transactional.id": "x"})
        again.init_transactions(TIMEOUT_S)
        assert [record.value for _, record in broker.records("t")] == [b"before", b"again"]


@pytest.mark.slow
def test_a_fork_has_groups_and_transactions(tmp_path: Path) -> None:
    """A commit and a transaction in the fork do not change those of the source."""
    with Broker(config(tmp_path)) as broker:
        broker.create_topic("t")
        send(Producer({"bootstrap.servers": broker.bootstrap_servers}), "before")
        commit(broker, 1)
        with broker.fork() as fork:
            assert committed(fork) == 1
            commit(fork, 0)
            assert committed(fork) == 0
        assert committed(broker) == 1
