"""The history: the values of a sample, the number of samples, and dropped ones."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operations.broker_state import figure_history
from diamant.broker.operations.broker_state.figure_history import KEPT, MAX_ROUNDS, FigureHistory, Rings
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.service.metrics import MAX_FINISHED
from tests.broker.http_asking import ask
from tests.waiting import wait_until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with HTTP."""
    settings: dict[str, Any] = {"diamant_http_listen": "127.0.0.1:0"}
    async with Broker(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", **settings) as running:
        yield running


async def test_rates_between_samples(broker: Broker) -> None:
    """Counters become rates, of the broker and of each topic; a deleted topic has no history."""
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
    [round_] = found["rounds"]
    assert (round_["topic"], round_["partition"], round_["removed"]) == ("users", 0, {"superseded": 36})
    assert round_["bytes_read"] > round_["bytes_written"] > 0
    asked = (await ask(broker, "GET", "/v1/history?topic=users")).json
    assert asked["rounds"] == [round_]
    of_topic = asked["series"]
    assert of_topic["records_removed_per_s"][-1] > 0
    since = (await ask(broker, "GET", f"/v1/history?since_ms={found['times_ms'][-1]}")).json
    assert since["times_ms"] == found["times_ms"][-1:]
    assert {len(values) for values in since["series"].values()} == {1}
    await delete_topics(broker.node.topics, ["users"])
    await kept.sample()
    assert (await ask(broker, "GET", "/v1/history?topic=users")).status == 404


async def test_the_superseded_share_is_known_once_it_was_counted(broker: Broker) -> None:
    """Before that, and without compacted topics, it is null."""
    await broker.create_topic("users", compact=True)
    for number in range(40):
        await broker.produce("users", "v", key=f"k{number % 4}")
    kept = broker.services.history()
    await kept.sample()
    await broker.services.segment_figures().count(broker.node.topics.by_name["users"].logs[0])
    await kept.sample()
    for query in ("", "?topic=users"):
        series = (await ask(broker, "GET", f"/v1/history{query}")).json["series"]
        assert (series["superseded_ratio"][0], series["superseded_ratio"][-1]) == (None, 0.9)


async def test_a_sample_that_fails_does_not_end_the_history(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a descriptor for one sample, the broker's log says so, and the next one is taken at its time."""
    asked: list[str | None] = []

    def refused_once(topic: str | None) -> float | None:
        asked.append(topic)
        if len(asked) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/self/statm")
        return None

    services = broker.services
    kept = FigureHistory(broker.node, services.server, services.cleaning, refused_once)
    with monkeypatch.context() as patch:
        patch.setattr(figure_history, "INTERVAL_S", 0.0)
        kept.start()
        await wait_until(lambda: len(asked) > 2)
        await kept.stop()
    fields = kept.to_fields(None, 0)
    assert fields is not None
    assert fields["series"]["memory_bytes"][-1] > 0
    [told] = [line for line in caplog.messages if "sample" in line]
    assert told.endswith(": [Errno 24] Too many open files: '/proc/self/statm'")


async def test_rounds_are_remembered_up_to_a_bound(broker: Broker) -> None:
    """An answer has the latest of one topic or of all; the cleaner drops the oldest."""
    await broker.create_topic("users", compact=True)
    await broker.create_topic("other", compact=True)
    for number in range(3):
        await broker.produce("users", str(number), key="k")
        await broker.compact("users")
    await broker.produce("other", "1", key="k")
    await broker.compact("other")
    kept = broker.services.history()
    assert [one.topic for one in kept.rounds(None)] == ["users"] * 3 + ["other"]
    assert [one.removed.get("superseded", 0) for one in kept.rounds("users")] == [0, 1, 1]
    finished = (await broker.services.cleaning.service())._metrics._finished
    finished.extend([finished[0]] * MAX_FINISHED)
    assert len(broker.services.cleaning.status().finished) == MAX_FINISHED
    assert len(kept.rounds("users")) == MAX_ROUNDS


def test_the_oldest_sample_gives_way() -> None:
    """The memory of a series is constant."""
    rings = Rings(["a", "b"])
    for at in range(KEPT + 5):
        rings.put(at, {"a": float(at)})
    found = rings.take(range(KEPT + 2, KEPT + 5))
    assert found == {"a": [KEPT + 2.0, KEPT + 3.0, KEPT + 4.0], "b": [None] * 3}
    assert rings.take(range(5, 6))["a"] == [5.0]


def test_samples_before_the_first_are_unknown() -> None:
    """A topic that is new has no values of earlier samples, and takes no memory for later ones."""
    rings = Rings(["a"])
    for at in (7, 8):
        rings.put(at, {"a": float(at)})
    assert rings.take(range(5, 9)) == {"a": [None, None, 7.0, 8.0]}
    assert len(rings) == 2


@pytest.mark.parametrize(("counts", "expected"), [((99, 1), 0.1), ((98, 2), 0.25), ((0, 0), None)])
def test_the_99th_percentile(counts: tuple[int, int], expected: float | None) -> None:
    """The 99th percentile is the upper bound of its bucket, over the requests since the last sample."""
    before = [5] * 17
    now = [5 + counts[0], 5 + counts[1], *before[2:]]
    found = figure_history._p99_ms(before, now)
    assert found == expected or (expected is None and found != found)
