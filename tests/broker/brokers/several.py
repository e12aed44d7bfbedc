"""Several brokers in one process, on a file system in memory, with a connection to each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.brokers.membership import catch_up, set_down, set_up
from diamant.broker.brokers.table import BrokerTable
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.running import DEFAULTS
from tests.broker.wire import CREATE_TOPICS, METADATA, WireClient
from tests.memory_env import MemoryEnv


def table(broker: Broker) -> BrokerTable:
    """Return the table of the brokers."""
    brokers = broker.node.topics.brokers
    assert brokers is not None
    return brokers


def take_down(broker: Broker, broker_id: int) -> None:
    """Take one of the brokers down: its leaders move, its port is closed, its connections are cut."""
    list(set_down(table(broker), broker_id))
    broker.services.ports.close(broker_id)


def bring_up(broker: Broker, broker_id: int) -> None:
    """Bring it back, in sync."""
    broker.services.ports.open(broker_id)
    list(set_up(table(broker), broker_id))
    list(catch_up(table(broker), broker_id))


@asynccontextmanager
async def several(
    count: int = 3, env: MemoryEnv | None = None, **config: Any
) -> AsyncIterator[tuple[Broker, list[WireClient]]]:
    """Brokers 1 to `count`, and a connection to each that is up."""
    async with AsyncExitStack() as stack:
        config = {**DEFAULTS, "diamant_brokers": count, **config}
        broker = await stack.enter_async_context(Broker(BrokerConfig(**config), env=env or MemoryEnv()))
        live = table(broker).live
        addresses = [one.address for one in broker.addresses.kafka if one.broker + 1 in live]
        yield broker, [await stack.enter_async_context(WireClient(address)) for address in addresses]


async def create(
    wire: WireClient,
    name: str = "t",
    partitions: int = -1,
    factor: int = -1,
    replicas: Sequence[Sequence[int]] = (),
    **configs: str,
) -> Any:
    """Create a topic, by counts or with the replicas of each partition; its result."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    return (await wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 1000})).topics[0]


async def metadata(wire: WireClient, name: str = "t") -> Any:
    """Return a topic's metadata, and the cluster's."""
    return await wire.call(METADATA, 12, {"topics": [{"name": name}], "allow_auto_topic_creation": False})


async def leaders(wire: WireClient, name: str = "t") -> list[tuple[int, int, list[int]]]:
    """Return the leader, its epoch and the in-sync replicas of each partition."""
    topic = (await metadata(wire, name)).topics[0]
    return [(one.leader_id, one.leader_epoch, list(one.isr_nodes)) for one in topic.partitions]
