"""The history: what a sample has, how many there are, what is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operations.running import history
from diamant.broker.operations.running.history import KEPT, Rings
from diamant.broker.topics.deletion import delete_topics
from tests.broker.http_asking import ask


async def test_rates_between_samples(tmp_path: Path) -> None:
    """Counters become rates, of the broker and of each topic; a topic that is deleted has no history."""
    settings: dict[str, Any] = {"diamant_http_listen": "127.0.0.1:0"}
    async with Broker(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", **settings) as broker:
        await broker.create_topic("users", compact=True, internal_segment_bytes=1000, min_cleanable_dirty_ratio=1)
        kept = broker.services.history()
        await kept.sample()
        for number in range(40):
            await broker.produce("users", "v", key=f"k{number % 4}")
        await broker.compact("users")
        await kept.sample()
        found = (await ask(broker, "GET", "/v1/history")).json
        assert found["topics"] == ["users"]
        assert len(found["times_ms"]) >= 2
        series = found["series"]
        assert series["bytes"][-1] == sum(log.size for log in broker.node.directory.logs.values())
        assert series["removed_superseded_per_s"][-1] == series["records_removed_per_s"][-1] > 0
        assert series["memory_bytes"][-1] > 10_000_000
        assert series["records_removed_per_s"][0] is None
        of_topic = (await ask(broker, "GET", "/v1/history?topic=users")).json["series"]
        assert of_topic["records_removed_per_s"][-1] > 0
        since = (await ask(broker, "GET", f"/v1/history?since_ms={found['times_ms'][-1]}")).json
        assert since["times_ms"] == found["times_ms"][-1:]
        assert {len(values) for values in since["series"].values()} == {1}
        await delete_topics(broker.node.topics, ["users"])
        await kept.sample()
        assert (await ask(broker, "GET", "/v1/history?topic=users")).status == 404


def test_the_oldest_sample_gives_way() -> None:
    """The memory of a series is what it is at the beginning."""
    rings = Rings(["a", "b"])
    for at in range(KEPT + 5):
        rings.put(at, {"a": float(at)})
    found = rings.take(range(KEPT + 2, KEPT + 5))
    assert found == {"a": [KEPT + 2.0, KEPT + 3.0, KEPT + 4.0], "b": [None] * 3}
    assert rings.take(range(5, 6))["a"] == [5.0]


@pytest.mark.parametrize(("counts", "expected"), [((99, 1), 0.1), ((98, 2), 0.25), ((0, 0), None)])
def test_the_99th_percentile(counts: tuple[int, int], expected: float | None) -> None:
    """It is the end of its bucket, of the answers since the last sample."""
    before = [5] * 17
    now = [5 + counts[0], 5 + counts[1], *before[2:]]
    found = history._p99_ms(before, now)
    assert found == expected or (expected is None and found != found)
