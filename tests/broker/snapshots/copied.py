"""A broker to be copied, its topic, and what lies beside its data."""

from __future__ import annotations

import hashlib
from pathlib import Path

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.fetching import fetch, values_of
from tests.broker.wire import WireClient

LARGE = b"x" * 100_000


def config(path: Path, **settings: object) -> BrokerConfig:
    """Return a broker's configuration on a free port, in a directory with space beside it."""
    return BrokerConfig(listen="127.0.0.1:0", data_dir=path / "data", **settings)


async def fill(broker: Broker) -> None:
    """A topic with a closed segment and a tail."""
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        await wire.produce("t", [LARGE])
        broker.node.topics.log("t", 0).roll()
        await wire.produce("t", [b"tail"])


async def values(broker: Broker, topic: str = "t") -> list[bytes | None]:
    """Return all values of a topic."""
    found: list[bytes | None] = []
    async with WireClient(broker.bootstrap_servers) as wire:
        while len(found) < broker.node.topics.log(topic, 0).log_end_offset:
            found += values_of((await fetch(wire, topic, len(found))).records)
    return found


async def produce(broker: Broker, value: bytes) -> None:
    """Add a record to the topic."""
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.produce("t", [value])


def beside(path: Path) -> list[str]:
    """Return the directories beside the data directory."""
    return sorted(one.name for one in path.iterdir() if one.name != "data")


def digest(path: Path) -> bytes:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).digest()
