"""`Broker.produce`: what the other parts of the broker hear of it."""

from __future__ import annotations

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_tombstones import write_tombstone


async def test_listeners_are_told_once_of_a_produced_record(broker: Broker) -> None:
    """A record, and each batch of a seed, tells the log's listeners once; a tombstone of an erasure, too."""
    await broker.create_topic("users", compact=True)
    told: list[str] = []
    broker.node.log_events.subscribe(lambda log: told.append(log.topic))
    await broker.produce("users", "value", key="42")
    assert told == ["users"]
    told.clear()
    log = broker.node.topics.log("users", 0)
    write_tombstone(broker.node, log, b"42")
    assert told == ["users"]
