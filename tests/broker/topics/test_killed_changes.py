"""A broker that is killed while topics are created or deleted: a start on a copy of the disk made before each change."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from tests import effort
from tests.broker.running import running
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.memory_env import Loss, MemoryEnv
from tests.waiting import PATIENCE_S, wait_until

DATA = "/data"


async def cuts_of(*, deletes: bool) -> list[MemoryEnv]:
    """Create a topic and delete it, with a copy of the disk before every change of one of the two; each takes a millisecond."""
    clock = SettableClock()
    env = MemoryEnv(clock)
    cuts: list[MemoryEnv] = []

    def cut() -> None:
        cuts.append(env.copy())
        clock.advance_ms(1)

    async with running(env, log_segment_delete_delay_ms=0, log_index_interval_bytes=0) as (_, wire):
        env.before_change = None if deletes else cut
        await wire.create("t", 2, flush_messages="1")
        for _number in range(3):
            await wire.produce("t", [b"of t"])
        env.before_change = cut if deletes else None
        await delete(wire)
        env.before_change = None
    return cuts


async def test_a_new_topic_of_the_name_of_one_being_deleted() -> None:
    """After a loss of power either the old topic is there with its records, or the new one, or none."""
    env = MemoryEnv()
    cuts: list[MemoryEnv] = []
    async with running(env) as (broker, wire), WireClient(broker.bootstrap_servers) as other:
        await wire.create("t", 1, flush_messages="1")
        await wire.produce("t", [b"of t"])
        old_id = broker.node.topics.by_name["t"].topic_id
        can_sync = threading.Event()
        env.before("sync", f"{DATA}/{names.METADATA_TOPIC}-0/*.log", lambda: can_sync.wait(PATIENCE_S))
        env.before_change = lambda: cuts.append(env.copy())
        deletion = asyncio.create_task(delete(wire))
        await wait_until(lambda: "t" not in broker.node.topics.by_name)
        creation = asyncio.create_task(other.create("t", 1))
        await wait_until(lambda: "t" in broker.node.topics.in_creation)
        cuts.append(env.copy())
        can_sync.set()
        await asyncio.gather(deletion, creation)
        env.before_change = None
        new_id = broker.node.topics.by_name["t"].topic_id
        assert not broker.node.directory.left
    ends = []
    for cut in cuts:
        cut.crash(Loss(1, 0))
        async with running(cut) as (broker, _):
            ends += [(topic.topic_id, topic.logs[0].log_end_offset) for topic in broker.node.topics.by_name.values()]
    assert set(ends) <= {(old_id, 1), (new_id, 0)}
    assert (old_id, 1) in ends


async def delete(wire: WireClient) -> None:
    """Delete the topic."""
    await wire.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})


@pytest.mark.parametrize("loss", [None, Loss(1, 0), Loss(0.5, 0.5)], ids=["killed", "content lost", "half lost"])
@pytest.mark.parametrize("deletes", [False, True], ids=["created", "deleted"])
async def test_nothing_is_set_aside(deletes: bool, loss: Loss | None) -> None:
    """The topic is there with both partitions or is not, and no directory of it stays behind: it would hold up every
    certificate of a topic of that name. So it is after a loss of power. A topic whose deletion is undone has its records.
    """
    cuts = await cuts_of(deletes=deletes)
    assert len(cuts) > 5
    for env in effort.some(cuts, every=5):
        if loss is not None:
            env.crash(loss)
        async with running(env, log_segment_delete_delay_ms=0) as (broker, _):
            there = [log.partition for log in broker.node.directory.logs.values() if log.topic == "t"]
            assert sorted(there) in ([], [0, 1])
            if deletes and there:
                assert broker.node.directory.logs["t", 0].log_end_offset == 3
            assert [name for name in env.list_dir(DATA) if name.endswith("-stray")] == []


@pytest.mark.parametrize(
    ("deletes", "reason"),
    [
        (True, "/data/t-0: removed: it was left when its topic"),
        (False, "/data/t-0: removed: a crash left it, and it never"),
    ],
)
async def test_a_line_says_what_was_removed(deletes: bool, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """It names the directory and why it is gone."""
    for env in await cuts_of(deletes=deletes):
        if not deletes and env.exists(f"{DATA}/t-0/{names.PARTITION_METADATA}"):
            env.remove(f"{DATA}/t-0/{names.PARTITION_METADATA}")  # a loss of power
        async with running(env):
            pass
    assert reason in caplog.text


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
async def test_a_start_ends_a_deletion_that_the_disk_has_refused(is_clean: bool) -> None:
    """A topic was deleted, and its directory could not be renamed as long as the broker ran: nothing of it stays."""
    env = MemoryEnv()
    async with running(env, log_segment_delete_delay_ms=0) as (_, wire):
        await wire.create("t", 1)
        fault = env.fail("rename", f"{DATA}/t-0", errno.EIO)
        await delete(wire)
        killed = env.copy()
    fault.clear()
    left = env if is_clean else killed
    assert left.is_dir(f"{DATA}/t-0")
    async with running(left, log_segment_delete_delay_ms=0):
        await wait_until(lambda: not [name for name in left.list_dir(DATA) if name.startswith("t-0")])


async def test_a_deletion_that_cannot_be_committed_removes_nothing() -> None:
    """The topic is out of use, but its files stay under their names, and after a loss of power it has its records. Partitions
    that the disk has refused to create are still tried again.
    """
    env = MemoryEnv()
    async with (
        running(env, log_segment_delete_delay_ms=0) as (broker, wire),
        WireClient(broker.bootstrap_servers) as other,
    ):
        await wire.create("t", 1, flush_messages="1")
        await wire.produce("t", [b"of t"])
        refused = env.fail("create", f"{DATA}/new-0/*", errno.ENOSPC)
        await wire.create("new", 1)
        fault = env.fail("sync", f"{DATA}/{names.METADATA_TOPIC}-0/*.log", errno.EIO, times=1)
        with suppress(EOFError, ConnectionError):
            await delete(other)
        assert fault.hits == 1
        assert "t" not in broker.node.topics.by_name
        refused.clear()
        await wait_until(lambda: ("new", 0) in broker.node.directory.logs)
        assert env.is_dir(f"{DATA}/t-0")
        cut = env.copy()
    cut.crash(Loss(1, 0))
    async with running(cut) as (broker, _):
        assert broker.node.topics.log("t", 0).log_end_offset == 1


async def test_a_deletion_that_the_disk_has_refused_is_tried_again() -> None:
    """The directory goes as soon as the disk permits, without a restart and without a new topic of that name."""
    env = MemoryEnv()
    async with running(env, log_segment_delete_delay_ms=0) as (_, wire):
        await wire.create("t", 1)
        env.fail("rename", f"{DATA}/t-0", errno.EIO, times=1)
        await delete(wire)
        await wait_until(lambda: not [name for name in env.list_dir(DATA) if name.startswith("t-0")])


def copied(backup: Path, place: Path) -> None:
    """As `cp -a` does."""
    shutil.copytree(backup, place)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("put", [copied, Path.rename], ids=["copied", "moved"])
async def test_what_a_person_puts_back_is_set_aside(
    put: Callable[[Path, Path], object], is_clean: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory of a deleted topic, from a backup, with the times that its files had: no record is lost."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=data, log_segment_delete_delay_ms=0)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", 1)
        await wire.produce("t", [b"of t"])
        shutil.copytree(data / "t-0", backup)
        await delete(wire)
    if not is_clean:
        (data / names.CLEAN_SHUTDOWN).unlink()
    put(backup, data / "t-0")
    (log,) = (data / "__cluster_metadata-0").glob("*.log")
    while (data / "t-0").stat().st_ctime_ns // 1_000_000 <= log.stat().st_mtime_ns // 1_000_000:
        (data / "t-0").chmod(0o755)  # it comes later than the crash
    async with Broker(config):
        (stray,) = data.glob("t-0.*-stray")
        assert b"of t" in (stray / f"{'0' * 20}.log").read_bytes()
    assert f"{data}/t-0: set aside as {stray}" in caplog.text
    assert "was deleted; it was changed or put back since" in caplog.text
