"""Log lines about topics, faults, starts and stops, and all reports of a damaged segment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.rules.modes import MODES
from tests.broker.operations.explain.explained import DAY_MS, stage
from tests.broker.operations.explain.test_explain import flip
from tests.broker.operations.explain.test_explain_asking import HTTP, ask, scrape
from tests.broker.operations.test_compact_config import figures
from tests.broker.wire import WireClient
from tests.storage.kraft.metadata_directory import golden_directory


def config(path: Path) -> BrokerConfig:
    return BrokerConfig(listen="127.0.0.1:0", data_dir=path, num_partitions=3)


async def test_topics_and_faults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has lines for created topics with the reason, deleted topics, and faults."""
    with caplog.at_level(logging.INFO, "diamant"):
        async with Broker(config(tmp_path)) as broker:
            async with WireClient(broker.bootstrap_servers) as wire:
                assert (await wire.create("orders", partitions=1)).error_code == 0
            await broker.services.creation.ensure(["clicks"])
            await delete_topics(broker.node.topics, ["orders"])
            broker.faults.add("Produce", topic="clicks", error="NOT_LEADER_OR_FOLLOWER", times=2)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert "topic orders created, 1 partition" in lines
    assert "topic clicks created, 3 partitions (auto.create.topics.enable)" in lines
    assert "topic orders deleted" in lines
    assert "fault 1 added: api=Produce, topic=clicks, times=2, error=NOT_LEADER_OR_FOLLOWER" in lines


async def test_a_start_on_kafkas_directory_says_whose_rules_apply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything is cleaned, and only once: then Diamant was the last one."""
    path = Path(golden_directory(tmp_path))
    words = f"the last broker on {path} was not Diamant's: its logs are now cleaned by the rules of diamant.cleaner.mode=kafka"
    for count in (1, 0):
        caplog.clear()
        with caplog.at_level(logging.INFO, "diamant"):
            async with Broker(
                BrokerConfig(listen="127.0.0.1:0", data_dir=path, node_id=1, diamant_cleaner_mode="kafka")
            ):
                pass
        assert sum(message.startswith(words) for message in caplog.messages) == count


@pytest.mark.slow
async def test_a_start_counts_partitions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Internal topics are counted separately; only an unclean stop is a warning."""
    async with Broker(config(tmp_path)) as broker:
        await broker.services.creation.ensure(["clicks"])
        await broker.services.groups().log.topic.ensure()
        await broker.stop()
    with caplog.at_level(logging.INFO, "diamant"):
        async with Broker(config(tmp_path)):
            assert f"started with 3 partitions (and 50 of internal topics) in {tmp_path}" in caplog.messages
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    (tmp_path / ".kafka_cleanshutdown").unlink()
    async with Broker(config(tmp_path)):
        assert "the last shutdown was not clean: 53 logs were checked" in caplog.messages


@pytest.mark.parametrize("mode", MODES)
async def test_a_damaged_segment_is_reported_everywhere(tmp_path: Path, mode: str) -> None:
    """Metrics, DescribeConfigs and status name the file and the position of the damage, and past the deadline the probe fails;
    the repair of the segment ends all of these.
    """
    broker = {"diamant_cleaner_mode": mode, "diamant_erasure_deadline_ms": str(30 * DAY_MS), **HTTP}
    async with stage(tmp_path, broker, max_compaction_lag_ms=str(DAY_MS)) as at:
        await at.put("k=1")
        await at.roll()
        await at.put("k=2")
        damaged = at.log.active.path
        await at.roll()
        await at.put("z=1")
        await at.roll()
        flip(damaged, 1000)
        await at.settle()
        await at.put("z=2")
        at.clock.advance_ms(2 * DAY_MS)
        await at.settle()
        name = Path(damaged).name

        found = await scrape(at)
        directory = f'{{logDirectory="{at.broker.config.data_dir}"}}'
        assert found["kafka_log_logcleanermanager_uncleanable_partitions_count" + directory] == 1
        assert found["kafka_log_logcleanermanager_uncleanable_bytes" + directory] >= at.log.segments[1].size
        (info,) = (one for one in found if one.startswith("diamant_cleaner_uncleanable_info"))
        assert name in info
        assert f"{name} at 0: " in info
        assert found['diamant_cleaner_overdue_seconds{partition="0",topic="t"}'] * 1000 == pytest.approx(DAY_MS, abs=10)
        assert found['diamant_oldest_superseded_age_seconds{topic="t"}'] * 1000 == 2 * DAY_MS
        described = (await figures(at.wire))["diamant.uncleanable.partitions"]
        assert described.startswith("1: partition 0: ")
        assert name in described
        assert f"{name} at 0: " in described
        cleaner = (await ask(at, "/v1/status"))[1]["cleaner"]
        assert cleaner["uncleanable_partitions"] == 1, "so `diamant status` exits with 3"
        assert name in str(cleaner["partitions"][0])
        assert (await ask(at, "/healthz?erasure"))[0] == 200
        at.clock.advance_ms(29 * DAY_MS)
        await at.settle()
        status, fields = await ask(at, "/healthz?erasure")
        assert (status, [one["topic"] for one in fields["topics"]]) == (503, ["t"])
        if mode == "prompt":
            flip(damaged, 2000)
            await at.settle()
            found = await scrape(at)
            assert found["kafka_log_logcleanermanager_uncleanable_partitions_count" + directory] == 0
            assert not [one for one in found if one.startswith("diamant_cleaner_uncleanable_info")]
            assert (await figures(at.wire))["diamant.uncleanable.partitions"] == "0"
            assert (await ask(at, "/healthz?erasure"))[0] == 200
