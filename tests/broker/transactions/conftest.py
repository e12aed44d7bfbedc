"""A broker on a file system in memory, with a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.env.memory import MemoryEnv
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import WireClient

ONE_PARTITION_EACH = {"transaction_state_log_num_partitions": 1, "offsets_topic_num_partitions": 1}


@asynccontextmanager
async def running(env: MemoryEnv, **config: Any) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker, and a connection to it."""
    settings = {**ONE_PARTITION_EACH, **config}
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data", **settings), env=env) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            yield broker, wire


async def started(
    wire: WireClient, *, topic: str = "t", partitions: int = 3, transactional_id: str = "id", **init: Any
) -> TxnProducer:
    """An initialized producer, a topic, and the topics of both coordinators."""
    txn = TxnProducer(wire, transactional_id)
    await txn.wait_for_coordinator("g")
    await wire.create(topic, partitions)
    await txn.wait_for_init(**init)
    return txn
