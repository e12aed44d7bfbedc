"""A broker on a file system in memory, with a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.env.env import Env
from tests.broker.wire import WireClient

DEFAULTS: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "data_dir": "/data",
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_num_partitions": 1,
    "diamant_auto_create_topics_answer": "ready",
}


@asynccontextmanager
async def running(env: Env, **config: Any) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker, whose internal topics have one partition each and are there once a request asks, and a connection to it."""
    async with Broker(BrokerConfig(**{**DEFAULTS, **config}), env=env) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            yield broker, wire
