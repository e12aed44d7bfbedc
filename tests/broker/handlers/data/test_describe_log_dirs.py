"""DescribeLogDirs on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.wire import DESCRIBE_LOG_DIRS, WireClient


async def test_the_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cannot resolve a relative path, so the answer has the absolute one, as in Kafka."""
    monkeypatch.chdir(tmp_path)
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="data")) as broker:
        async with WireClient(broker.bootstrap_servers) as client:
            response = await client.call(DESCRIBE_LOG_DIRS, 4, {"topics": None})
    assert [result.log_dir for result in response.results] == [str(tmp_path / "data")]
