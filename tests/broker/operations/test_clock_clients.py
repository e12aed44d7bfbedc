"""Real clients while their broker's clock moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.pytest_plugin import diamant_manual_broker

__all__ = ["diamant_manual_broker"]

TIMEOUT_S = 60


def wait_until(poll: Callable[[], object], condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        poll()


@pytest.mark.slow
def test_a_consumer_does_not_notice_eight_days(diamant_manual_broker: Broker) -> None:
    """confluent-kafka keeps its assignment and its offsets, and reads on; nothing in use expires."""
    from confluent_kafka import Consumer, Producer

    broker = diamant_manual_broker
    address = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer(address)
    events: list[str] = []
    values: list[bytes | None] = []
    consumer = Consumer({**address, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(
        ["t"],
        on_assign=lambda *_: events.append("assigned"),
        on_revoke=lambda *_: events.append("revoked"),
        on_lost=lambda *_: events.append("lost"),
    )

    def poll() -> Any:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())

    try:
        producer.produce("t", b"before", timestamp=broker.clock.now_ms())
        producer.flush(TIMEOUT_S)
        wait_until(poll, lambda: values == [b"before"])
        consumer.commit(asynchronous=False)
        broker.call(broker.clock.advance("8d"), timeout=TIMEOUT_S)
        producer.produce("t", b"after", timestamp=broker.clock.now_ms())
        producer.flush(TIMEOUT_S)
        wait_until(poll, lambda: values == [b"before", b"after"])
        consumer.commit(asynchronous=False)
        assert events == ["assigned"]
        assert broker.services.groups().groups["g"].offsets
    finally:
        consumer.close()
