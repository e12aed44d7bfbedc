"""`compact --engine spark` in a broker: the same report, another runner; progress is visible."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant import Broker, BrokerConfig
from diamant.broker.commands.log import clean as log_clean
from diamant.broker.handlers.configs.described_broker import describe_broker
from diamant.broker.operation_errors import BadArgument
from diamant.broker.operations.broker_state.broker_status import broker_status
from diamant.cleaner.offline.offline_clean import Engine, inline_engine
from diamant.cleaner.spark.clean import staging
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_settings import SparkSettings
from diamant.cleaner.spark.runner import runner, staging_sweep
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.config_key import ConfigType
from tests.cleaner.runners.rounds import make_log
from tests.cleaner.spark.clean.test_staging import age
from tests.cleaner.spark.fake_driver import FAKE, MISCHIEF
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers without Spark."""
    monkeypatch.setattr(runner, "SparkRunner", partial(runner.SparkRunner, program=FAKE))


@pytest.mark.slow
async def test_a_topic_is_compacted_by_the_runner_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs the round if it works, else the fallback; status and report name the runner, settings reach it."""
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
        await broker.create_topic("users", 1, compact=True)
        log = broker.node.topics.log("users", 0)
        for number in range(20):
            log.append_as_leader(memoryview(build_batch([Record(0, 1, b"k%d" % (number % 3), b"v" * 100)])))
        call = asyncio.create_task(broker.compact("users", engine="spark"))

        def under_way() -> list[dict[str, Any]]:
            status = broker_status(
                broker.node,
                broker.services.cleaning.status(),
                broker.clock.state(),
                broker.services.transactions,
                broker.services.groups,
            )
            return status.to_fields()["cleaner"]["in_progress"]  # type: ignore[no-any-return]

        await wait_until(lambda: call.done() or bool(under_way()))
        (seen,) = under_way()
        report = await call
        assert report.partitions[0].runners == ("spark",)
        assert report.removed == {"superseded": 17}
        assert (seen["topic"], seen["partition"], seen["runner"]) == ("users", 0, "spark")
        assert not under_way()
        monkeypatch.setenv(MISCHIEF, "die")
        log.append_as_leader(memoryview(build_batch([Record(0, 1, b"k0", b"new")])))
        report = await broker.compact("users", engine="spark")
        assert report.partitions[0].runners in (("process",), ("inline",))
        assert report.is_clean
        with pytest.raises(BadArgument, match="expected one of inline, process, spark, got 'abacus'"):
            await broker.compact("users", engine="abacus")


async def test_the_staging_uri_is_shown_to_nobody(tmp_path: Path) -> None:
    """The URI may hold credentials: neither DescribeConfigs nor the log shows it, as with Kafka's passwords."""
    name, uri = "diamant.cleaner.spark.staging", "s3://user:s3cr3t@bucket/x"
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties={name: uri})
    assert config.diamant_cleaner_spark_staging == uri
    assert f"{name}=[hidden]" in repr(config)
    found = describe_broker(config, {}, "")
    [described] = [one for one in found if one.name == name]
    assert (described.value, described.is_sensitive, described.type) == (None, True, ConfigType.PASSWORD)
    assert [synonym.value for synonym in described.synonyms] == [None, None]
    assert "s3cr3t" not in repr(config) + repr(found)


async def test_a_start_removes_what_a_killed_run_has_left_at_the_staging_place(tmp_path: Path) -> None:
    """A start removes leftovers without any compaction: they may hold values of topics deleted since."""
    properties = {"diamant.cleaner.spark.staging": (tmp_path / "staging").as_uri()}
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", properties=properties)
    async with Broker(config) as broker:
        owner = staging.owner_of(broker.env, broker.node.directory.path)
    left = tmp_path / "staging" / staging.new_name(owner, "users-0", "00000000") / "segments" / "0.log"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of somebody")
    age(Location(str(left.parent.parent)))
    async with Broker(config):
        await wait_until(lambda: not list((tmp_path / "staging").iterdir()))


async def test_a_broker_does_not_wait_at_its_end_for_a_staging_place_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The child that sweeps an object store is ended silently."""
    begun = tmp_path / "begun"
    monkeypatch.setattr(
        staging_sweep,
        "_PROGRAM",
        f"import threading, pathlib; pathlib.Path({str(begun)!r}).touch(); threading.Event().wait()",
    )
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path / "data",
        properties={"diamant.cleaner.spark.staging": "s3://bucket/x"},
    )
    async with Broker(config):
        await wait_until(begun.exists)
    assert "staging location" not in caplog.text


def test_log_clean_hands_its_settings_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark gets master, configuration and staging location, as from `diamant spark clean`; a configuration without a name is
    refused.
    """
    log = make_log(tmp_path)
    log.close()
    seen = []

    def engine_of(settings: SparkSettings) -> Engine:
        seen.append(settings)
        return inline_engine

    monkeypatch.setattr(log_clean, "spark_engine_of", engine_of)
    command = [log.path, "--engine", "spark", "--force", "--set", "cleanup.policy=compact", "--master", "spark://h:1"]
    command += ["--staging", "file:///mnt", "--conf", "spark.cores.max=4"]
    done = CliRunner().invoke(log_clean.clean, command)
    assert done.exit_code == 0, done.output
    assert seen == [SparkSettings("spark://h:1", "file:///mnt", conf={"spark.cores.max": "4"})]
    refused = CliRunner().invoke(log_clean.clean, [*command, "--conf", "=x"])
    assert refused.exit_code == 2
    assert "'=x': expected NAME=VALUE" in refused.output
