"""What the broker's own log says of what a beginner looks for: topics, faults, starts, stops that were none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.topics.creation import ensure_topics
from diamant.broker.topics.deletion import delete_topics
from tests.broker.wire import WireClient


def config(path: Path) -> BrokerConfig:
    return BrokerConfig(listen="127.0.0.1:0", data_dir=path, num_partitions=3)


async def test_topics_and_faults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was created, why, and what was deleted; what a fault is."""
    with caplog.at_level(logging.INFO, "diamant"):
        async with Broker(config(tmp_path)) as broker:
            async with WireClient(broker.bootstrap_servers) as wire:
                assert (await wire.create("orders", partitions=1)).error_code == 0
            await ensure_topics(broker.node.topics, ["clicks"])
            await delete_topics(broker.node.topics, ["orders"])
            broker.faults.add("Produce", topic="clicks", error="NOT_LEADER_OR_FOLLOWER", times=2)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert "topic orders created, 1 partition" in lines
    assert "topic clicks created, 3 partitions (auto.create.topics.enable)" in lines
    assert "topic orders deleted" in lines
    assert "fault 1 added: api=Produce, topic=clicks, times=2, error=NOT_LEADER_OR_FOLLOWER" in lines


@pytest.mark.slow
async def test_a_start_counts_partitions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those of internal topics apart; after an orderly stop there is nothing to warn of, after another there is."""
    async with Broker(config(tmp_path)) as broker:
        await ensure_topics(broker.node.topics, ["clicks"])
        await broker.services.groups().log.topic.ensure()
        await broker.stop()
    with caplog.at_level(logging.INFO, "diamant"):
        async with Broker(config(tmp_path)):
            assert f"started with 3 partitions (and 50 of internal topics) in {tmp_path}" in caplog.messages
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    (tmp_path / ".kafka_cleanshutdown").unlink()
    async with Broker(config(tmp_path)):
        assert "the last stop was not orderly: 53 logs were checked" in caplog.messages
