"""Compaction in a whole broker: records as written, and as read during and after cleaning, stops and restarts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import NewTopic
from diamant.cleaner.service.metrics import CleanerStatus
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.uuid_text import random_id
from tests.broker.compacted import SMALL, START_MS, checkpoint, config, fill, keyed, produce, read
from tests.broker.configurations import BROKER, TOPIC, alter
from tests.broker.held_rounds import Gate, gate
from tests.broker.request_fields import SET
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.waiting import wait_until

__all__ = ["gate"]

HOUR_MS = 3_600_000


def closed(broker: Broker, topic: str, found: list[tuple[int, str, str]]) -> list[str]:
    """Return the keys of the records in closed segments."""
    active = broker.node.topics.log(topic, 0).active.base_offset
    return [key for offset, key, _ in found if offset < active]


def files(path: Path, suffix: str) -> list[Path]:
    """Return the files of topic t with a suffix."""
    return list(path.glob(f"t-0/*{suffix}"))


# -- what clients see --------------------------------------------------------------------------------------------------


async def test_only_the_last_values_remain(tmp_path: Path) -> None:
    """The broker compacts automatically and soon; a consumer in the middle reads on, and a new one reads the last values."""
    properties = {"log.cleaner.backoff.ms": "20"}
    async with Broker(config(tmp_path, properties=properties)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL)
        last = await fill(wire, "t", 100)
        before = await read(wire, "t")
        middle = before[len(before) // 2][0]
        log = broker.node.topics.log("t", 0)
        active = log.active.base_offset

        cleaner = await broker.services.cleaning.service()

        def is_clean() -> bool:
            return cleaner.states.checkpoint(("t", 0)) == active

        await wait_until(is_clean)
        after = await read(wire, "t")
        assert len(closed(broker, "t", after)) == len(set(closed(broker, "t", after)))
        assert len(after) < 30
        assert {key: value for _, key, value in after} == last
        assert set(after) <= set(before)
        assert [one for one in after if one[0] >= middle] == await read(wire, "t", middle)
        await fill(wire, "t", 10, start=100)
        assert (await read(wire, "t"))[-1][0] == 109


@pytest.mark.slow
async def test_a_larger_log_is_cleaned_by_a_worker(tmp_path: Path) -> None:
    """The worker is a separate process, which ends with the broker, and leaves the first processor to it."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", min_cleanable_dirty_ratio="1", retention_ms="-1")
        for batch in range(90):
            await produce(wire, "t", *(f"k{index}=" + f"{batch}" * 5000 for index in range(10)))
        await alter(wire, TOPIC, "t", ("cleanup.policy", SET, "compact"))
        broker.node.topics.log("t", 0).roll()
        cleaner = await broker.services.cleaning.service()
        report = await cleaner.request(("t", 0))
        assert report.error is None
        assert report.result is not None
        assert report.result.runner == "process"
        (pid,) = (runner.worker_pid for runner in cleaner.slots.process_runners)
        assert pid is not None
        allowed = sorted(os.sched_getaffinity(0))
        assert sorted(os.sched_getaffinity(pid)) == (allowed[1:] or allowed)
        assert [(key, value[:2]) for _, key, value in await read(wire, "t")] == [
            (f"k{index}", "89") for index in range(10)
        ]
    assert not files(tmp_path, ".cleaned")


async def test_internal_topics_are_cleaned_and_the_metadata_log_is_not(tmp_path: Path) -> None:
    """Internal topics do not grow beyond their live records."""
    async with Broker(config(tmp_path)) as broker:
        topic = NewTopic(
            "__consumer_offsets",
            random_id(),
            1,
            {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "1000"},
            [(1,)],
        )
        await create_topics(broker.node.topics, [topic])
        log = broker.node.topics.log("__consumer_offsets", 0)
        for index in range(100):
            log.append_internal(bytearray(keyed([f"group={index}"], START_MS)))
        metadata = sorted((tmp_path / "__cluster_metadata-0").iterdir())
        await (await broker.services.cleaning.service()).settled()
        assert log.size < 3000
        assert broker.services.cleaning.status().partitions[0].records_removed["superseded"] > 80
        assert sorted((tmp_path / "__cluster_metadata-0").iterdir()) == metadata
        assert list(checkpoint(tmp_path)) == [("__consumer_offsets", 0)]


async def test_the_cleaner_deletes_old_segments_too(tmp_path: Path) -> None:
    """With both policies the broker is told that the log has changed, and removes the files after their delay."""
    clock = SettableClock()  # begins now: a segment that was emptied is as old as its file
    policies = {"cleanup_policy": "compact,delete", "retention_ms": str(HOUR_MS), "file_delete_delay_ms": "5000"}
    async with Broker(config(tmp_path), env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL | policies)
        await fill(wire, "t", 100, timestamp=clock.now_ms())
        await (await broker.services.cleaning.service()).settled()
        await broker.services.housekeeping.write_checkpoints()
        assert not broker.services.housekeeping.has_changes
        clock.advance_ms(2 * HOUR_MS)
        await (await broker.services.cleaning.service()).settled()
        log = broker.node.topics.log("t", 0)
        assert log.log_start_offset == log.log_end_offset == 100
        assert broker.services.housekeeping.has_changes
        assert files(tmp_path, ".deleted")
        clock.advance_ms(5001)
        await wait_until(lambda: not files(tmp_path, ".deleted"))


async def test_promise_without_traffic_and_across_restarts(tmp_path: Path) -> None:
    """With max.compaction.lag.ms a superseded value leaves the disk in time, without writes and over restarts."""
    clock = SettableClock(START_MS)
    topic_configs = {
        "cleanup_policy": "compact", "max_compaction_lag_ms": str(4 * HOUR_MS), "file_delete_delay_ms": "0",
    }  # fmt: skip

    def on_disk(text: bytes) -> bool:
        for path in (tmp_path / "t-0").iterdir():
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                if text in path.read_bytes():
                    return True
        return False

    async with Broker(config(tmp_path), env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **topic_configs)
        await produce(wire, "t", "person=secret")
        await produce(wire, "t", "person=", "other=1")
    for _ in range(3):
        clock.advance_ms(HOUR_MS)
        async with Broker(config(tmp_path), env=RealEnv(clock)) as broker:
            await (await broker.services.cleaning.service()).settled()
            assert on_disk(b"secret")
    async with Broker(config(tmp_path), env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await (await broker.services.cleaning.service()).settled()
        clock.advance_ms(HOUR_MS + 1)
        await wait_until(lambda: not on_disk(b"secret"))
        assert [(offset, key) for offset, key, _ in await read(wire, "t")] == [(1, "person"), (2, "other")]


# -- what happens while a round is under way ---------------------------------------------------------------------------


async def test_a_topic_deleted_while_it_is_cleaned(tmp_path: Path, gate: Gate) -> None:
    """The deletion does not wait; a new topic with the name is empty, and is cleaned."""
    # No round but those that are asked for: one of the cleaner's own would hold up the first.
    alone = config(tmp_path, log_cleaner_backoff_ms=HOUR_MS)
    async with Broker(alone) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL)
        cleaner = await broker.services.cleaning.service()
        await cleaner.settled()
        await fill(wire, "t", 100)
        first = cleaner.request(("t", 0))
        await wait_until(gate.begun.is_set)
        answer = await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
        assert answer.responses[0].error_code == ErrorCode.NONE
        assert (await wire.create("t", **SMALL)).error_code == ErrorCode.NONE
        report = await first
        assert report.result is None
        assert report.error is not None
        last = await fill(wire, "t", 60)
        gate.opened.set()
        await (await broker.services.cleaning.service()).settled()
        found = await read(wire, "t")
        assert {key: value for _, key, value in found} == last
        assert len(closed(broker, "t", found)) == len(set(closed(broker, "t", found)))
        assert not files(tmp_path, ".cleaned")
        assert checkpoint(tmp_path) == {("t", 0): broker.node.topics.log("t", 0).active.base_offset}


async def test_a_policy_switched_while_the_log_is_cleaned(tmp_path: Path, gate: Gate) -> None:
    """If `compact` is taken away, the round ends without changes; once it is back, the log is cleaned at once."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL)
        await fill(wire, "t", 100)
        before = await read(wire, "t")
        request = (await broker.services.cleaning.service()).request(("t", 0))
        await wait_until(gate.begun.is_set)
        await alter(wire, TOPIC, "t", ("cleanup.policy", SET, "delete"), ("retention.ms", SET, "-1"))
        assert (await request).result is None
        assert await read(wire, "t") == before
        gate.opened.set()
        await alter(wire, TOPIC, "t", ("cleanup.policy", SET, "compact"))
        await wait_until(lambda: ("t", 0) in checkpoint(tmp_path))
        assert len(await read(wire, "t")) < 30


# -- configuration -----------------------------------------------------------------------------------------------------


async def test_the_cleaner_is_reconfigured_over_the_wire(tmp_path: Path) -> None:
    """Threads are at most halved or doubled at a time, with enough memory for each; the mode is set at the start."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:

        async def change(name: str, value: str) -> Any:
            return await alter(wire, BROKER, "", (name, SET, value))

        refused = await change("log.cleaner.threads", "3")
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "between 1 and 2" in refused.error_message
        refused = await change("log.cleaner.threads", "0")
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert all(word in refused.error_message for word in ("log.cleaner.threads", "0", "1"))
        assert (await change("log.cleaner.dedupe.buffer.size", "1048576")).error_code == ErrorCode.INVALID_REQUEST
        assert (await change("diamant.cleaner.mode", "kafka")).error_code == ErrorCode.INVALID_REQUEST
        for name, value in (
            ("log.cleaner.threads", "2"),
            ("log.cleaner.backoff.ms", "7"),
            ("log.cleaner.io.max.bytes.per.second", "1000"),
        ):
            assert (await change(name, value)).error_code == ErrorCode.NONE
        settings = (await broker.services.cleaning.service()).settings
        assert (settings.threads, settings.backoff_ms, settings.io_max_bytes_per_second) == (2, 7, 1000.0)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"log.cleaner.threads": "0"}, r"0 for configuration log\.cleaner\.threads: Value must be at least 1"),
        (
            {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"},
            r"log\.cleaner\.dedupe\.buffer\.size is 2097152 for 2 log\.cleaner\.threads",
        ),
    ],
    ids=["no threads", "too little memory"],
)
def test_a_start_is_refused(tmp_path: Path, properties: dict[str, str], message: str) -> None:
    """The error has the names and the limit; without threads Kafka fails with a division by zero."""
    with pytest.raises(ValueError, match=message):
        config(tmp_path, properties=properties)


async def test_the_cleaner_is_loaded_with_the_first_compacted_topic(tmp_path: Path) -> None:
    """The cleaner is loaded by a compacted topic's creation, by a change of policy, and again by the next start."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("plain")
        assert broker.services.cleaning.status() == CleanerStatus()
        assert not broker.services.cleaning.is_loaded
        await alter(wire, TOPIC, "plain", ("cleanup.policy", SET, "compact"))
        await wait_until(lambda: broker.services.cleaning.is_loaded)
    async with Broker(config(tmp_path)) as broker:
        assert broker.services.cleaning.is_loaded
