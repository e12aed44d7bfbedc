"""`compact --engine spark` in a broker: the same report, another runner; what is under way can be seen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant import Broker, BrokerConfig
from diamant.broker.topics import NewTopic
from diamant.broker.verbs.broker_status import broker_status
from diamant.broker.verbs.errors import BadArgument
from diamant.cleaner.spark import spark_runner
from diamant.protocol.records import Record, build_batch
from diamant.storage.uuid_text import random_id
from tests.cleaner.spark.fake_driver import MISCHIEF

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers without Spark."""
    before, _, after = spark_runner._DRIVER_BOOTSTRAP.partition("from diamant.cleaner.spark.clean_driver")
    text = f"{before}sys.path.insert(0, {str(ROOT)!r}); from tests.cleaner.spark.fake_driver{after}"
    monkeypatch.setattr(spark_runner, "_DRIVER_BOOTSTRAP", text)


async def test_a_topic_is_compacted_by_the_runner_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Spark if it works, else by who takes over; status and report name the runner, settings reach it."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path / "data",
        properties={"diamant.cleaner.spark.master": "local[3]", "diamant.cleaner.spark.conf.spark.x.secret": "hidden"},
    )
    assert config.spark_conf == {"spark.x.secret": "hidden"}
    assert config.with_dynamic({}, {}).spark_conf == config.spark_conf
    assert "hidden" not in repr(config)
    assert not [warning for warning in config.warnings if "spark" in warning]
    async with Broker(config) as broker:
        await broker.topics.create([NewTopic("users", random_id(), 1, {"cleanup.policy": "compact"})])
        log = broker.topics.log("users", 0)
        for number in range(20):
            log.append_as_leader(memoryview(build_batch([Record(0, 1, b"k%d" % (number % 3), b"v" * 100)])))
        call = asyncio.create_task(broker.compact("users", engine="spark"))
        seen = None
        while not call.done():
            if under_way := broker_status(broker).to_fields()["cleaner"]["under_way"]:
                seen = under_way[0]
            await asyncio.sleep(0)
        report = await call
        assert report.partitions[0].runners == ("spark",)
        assert report.removed == {"superseded": 17}
        assert seen is not None
        assert (seen["topic"], seen["partition"], seen["runner"]) == ("users", 0, "spark")
        assert not broker_status(broker).to_fields()["cleaner"]["under_way"]
        monkeypatch.setenv(MISCHIEF, "die")
        log.append_as_leader(memoryview(build_batch([Record(0, 1, b"k0", b"new")])))
        report = await broker.compact("users", engine="spark")
        assert report.partitions[0].runners in (("process",), ("inline",))
        assert report.is_clean
        with pytest.raises(BadArgument, match="engine is 'abacus'"):
            await broker.compact("users", engine="abacus")
