"""Counts of the records of each segment, for those who do not wait long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diamant.broker.broker import Broker


async def test_a_count_that_takes_long_is_shared_and_known_later(tmp_path: Path) -> None:
    """Those who do not wait get what is known; one count serves them all."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0"}
    async with Broker(data_dir=str(tmp_path / "data"), **settings) as broker:
        await broker.create_topic("users", compact=True)
        await broker.produce("users", "v", key="k")
        log = broker.node.topics.by_name["users"].logs[0]
        figures = broker.services.segment_figures()
        async with figures._lock:  # another partition is being counted
            assert await figures.soon(log, 0) is None
            [counting] = figures._counting.values()
            assert await figures.soon(log, 0) is None
            assert [*figures._counting.values()] == [counting]
        found = await counting
        assert found is not None
        assert figures.known(log) is found
        assert found.is_current
        assert await figures.soon(log, 60) is found
        assert figures._counting == {}
