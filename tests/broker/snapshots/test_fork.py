"""Forks: a second broker on a copy of a running broker's data, which is removed at its end."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys
import threading
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.operation_errors import NotPossible, OperationError
from tests.broker.erasure.brokers import config as certifying
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase, traces_of
from tests.broker.erasure.issued import verify
from tests.broker.erasure.records import create_with_key
from tests.broker.snapshots.copied import LARGE, beside, config, digest, fill, produce, values
from tests.broker.wire import WireClient
from tests.cleaner.evidence.scan.naive_scanner import records_of_key
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

FORK = f"*.fork-{'[0-9a-f]' * 12}"


async def test_a_fork_and_its_source_are_independent(tmp_path: Path) -> None:
    """Fork and source have the original data, and neither has the other's later changes. The copy is removed with its broker."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        async with await broker.fork() as fork:
            await produce(broker, b"of the source")
            await produce(fork, b"of the fork")
            assert await values(broker) == [LARGE, b"tail", b"of the source"]
            assert await values(fork) == [LARGE, b"tail", b"of the fork"]
            assert broker.cluster_id == fork.cluster_id
            links = (Path(fork.config.data_dir) / "t-0" / f"{0:020d}.log").stat().st_nlink
            assert links == 2
        assert beside(tmp_path) == []
        assert await values(broker) == [LARGE, b"tail", b"of the source"]


async def test_a_fork_of_a_fork(tmp_path: Path) -> None:
    """A fork can be forked, and the second fork outlives the first."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        async with await broker.fork() as first:
            await produce(first, b"1")
            second = await first.fork()
        async with second:
            assert await values(second) == [LARGE, b"tail", b"1"]
    assert beside(tmp_path) == []


async def test_a_fork_needs_no_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fork's directory is in the state of an orderly stop: nothing is scanned, and leader epochs are unchanged."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        async with await broker.fork() as fork:
            assert fork.node.directory.was_clean
            log, source = fork.node.topics.log("t", 0), broker.node.topics.log("t", 0)
            assert log.recovery_point == log.log_end_offset == 2
            assert log.epochs.entries == source.epochs.entries
            assert log.topic_id == source.topic_id
    assert "was not clean" not in caplog.text


async def test_a_long_tail_is_rolled(tmp_path: Path) -> None:
    """A tail that takes long to copy is rolled into a segment, in the source, too."""
    async with Broker(config(tmp_path)) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            await wire.create("t")
            await wire.produce("t", [LARGE])
        async with await broker.fork() as fork:
            assert [segment.base_offset for segment in broker.node.topics.log("t", 0).segments] == [0, 1]
            assert await values(fork) == [LARGE]


async def test_a_disk_too_full_for_a_fork() -> None:
    """The error names the file and the reason. Nothing is left behind, and the source continues."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        env.fail("create", "*.fork-*/t-0/*", errno.ENOSPC)
        with pytest.raises(OperationError, match=r"t-0/.*: No space left on device. Nothing was left there"):
            await broker.fork()
        assert env.list_dir("/") == ["data"]
        await produce(broker, b"continued")
        assert await values(broker) == [LARGE, b"tail", b"continued"]


async def test_a_partition_that_could_not_be_opened_keeps_the_data_from_being_copied(tmp_path: Path) -> None:
    """In no fork or snapshot is such a partition empty: both are refused, name it, and leave nothing behind."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
    epochs = Path(broker.config.data_dir) / "t-0" / "leader-epoch-checkpoint"
    aside = epochs.rename(epochs.with_name("aside"))
    epochs.mkdir()
    async with Broker(config(tmp_path)) as broker:
        for copy in (broker.fork, broker.snapshot):
            with pytest.raises(
                NotPossible, match=r"t-0 could not be opened and its records would be missing: .*directory"
            ):
                await copy()
        assert beside(tmp_path) == []
    epochs.rmdir()
    aside.rename(epochs)
    async with Broker(config(tmp_path)) as broker, await broker.fork() as fork:
        assert await values(fork) == [LARGE, b"tail"]


async def test_a_disk_that_does_not_release_a_fork(caplog: pytest.LogCaptureFixture) -> None:
    """Its end succeeds and says so; the copy goes as soon as the disk permits, with its snapshots."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        async with await broker.fork() as fork:
            await fork.snapshot()
            env.fail("remove", FORK, errno.EMFILE, times=1)
            env.fail("remove", f"{FORK}.snapshots", errno.EMFILE, times=1)
        await wait_until(lambda: env.list_dir("/") == ["data"])
    assert caplog.text.count("a copy of the data could not be removed yet: [Errno 24] Too many open files") == 2


async def test_a_disk_that_does_not_release_a_failed_copy() -> None:
    """The error says that something is left, and the broker removes it; it has given its lock back."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        env.fail("create", f"{FORK}/t-0/*", errno.EMFILE, times=1)
        env.fail("remove", FORK, errno.EMFILE, times=1)
        with pytest.raises(OperationError, match="What was left there is removed as soon as the disk permits"):
            await broker.fork()
        await wait_until(lambda: env.list_dir("/") == ["data"])


async def test_a_disk_that_does_not_release_a_snapshot() -> None:
    """The deletion succeeds, and what is left goes as soon as the disk permits: it would keep erasures waiting."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        made = await broker.snapshot()
        env.fail("remove", "*.trash", errno.EMFILE, times=1)
        await broker.delete_snapshot(made.id)
        await wait_until(lambda: broker.services.snapshots().files.there() == [])


async def test_a_disk_that_does_not_release_the_fork_of_a_killed_process() -> None:
    """The start goes on, and the copy goes as soon as the disk permits."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env):
        pass
    env.make_dirs("/data.fork-0123456789ab/t-0")
    env.fail("remove", FORK, errno.EIO, times=1)
    async with Broker(config(Path("/")), env=env):
        await wait_until(lambda: env.list_dir("/") == ["data"])


class WithoutDescriptors(MemoryEnv):
    """Does not list the directory of a fork for its unfinished erasures, which is the last step of a start."""

    def list_dir(self, path: str) -> list[str]:
        """OSError if it is asked by `Services.resume_jobs`."""
        if ".fork-" in path and sys._getframe(1).f_code.co_name == "resume_jobs":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().list_dir(path)


async def test_a_fork_whose_start_fails_at_its_end() -> None:
    """The error says that it cannot start, and nothing of it runs or stays."""
    env = WithoutDescriptors()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        fork, before = await broker.fork(), asyncio.all_tasks()
        with pytest.raises(CannotStart, match=r"data.fork-.*: Too many open files"):
            await fork.start()
        assert asyncio.all_tasks() <= before
        assert env.list_dir("/") == ["data"]


def test_a_fork_that_is_not_entered_leaves_nothing(tmp_path: Path) -> None:
    """Its directory is removed with the object."""
    with Broker(config(tmp_path)) as broker:
        fork = broker.fork()
        assert len(beside(tmp_path)) == 1
        del fork
        # The loop's thread may hold the object for a moment longer.
        asyncio.run(wait_until(lambda: beside(tmp_path) == []))


def test_forks_leave_nothing(tmp_path: Path) -> None:
    """After many nested forks and snapshots, in plain code, a process has as many descriptors and directories as before."""

    def held() -> tuple[int, list[str]]:
        return len(os.listdir("/proc/self/fd")), beside(tmp_path)

    with Broker(config(tmp_path)) as broker:
        broker.call(fill(broker.awaited))

        def use_one() -> None:
            with broker.fork() as fork:
                assert fork.cluster_id == broker.cluster_id
                fork.snapshot()
                with fork.fork() as second:
                    second.produce("t", "x")

        use_one()
        gc.collect()  # what other tests of this process have left open
        before, threads = held(), threading.active_count()
        for _ in range(10):
            use_one()
        assert held() == before
        assert threading.active_count() < threads + 10  # the broker's own pool may have grown


async def test_a_fork_with_wrong_settings_is_not_made(tmp_path: Path) -> None:
    """The error is raised before the copy."""
    async with Broker(config(tmp_path)) as broker:
        with pytest.raises(TypeError, match="no_such_setting"):
            await broker.fork(no_such_setting=1)
        assert beside(tmp_path) == []


async def test_a_start_removes_the_forks_of_a_killed_process(tmp_path: Path) -> None:
    """Forks that are running or not entered yet hold their locks and are kept."""
    left = ["data.fork-0123456789ab", "data.fork-0123456789ab.snapshots", "data.fork-0123456789ab.fork-0123456789ab"]
    others = ["data.fork-mine", "other.fork-0123456789ab"]
    async with Broker(config(tmp_path)) as broker:
        running, entered_later = await broker.fork(), await broker.fork()
    for name in [*left, *others]:
        (tmp_path / name / "t-0").mkdir(parents=True)
    async with running:
        live = [os.path.basename(fork.config.data_dir) for fork in (running, entered_later)]
        async with Broker(config(tmp_path)):
            assert beside(tmp_path) == sorted([*others, *live])
        async with entered_later:
            pass
    assert beside(tmp_path) == others


async def test_an_erasure_in_a_fork(tmp_path: Path) -> None:
    """The certificate is about the fork's files. The source keeps the record and has no certificate."""
    async with Broker(certifying(tmp_path)) as broker:
        await create_with_key(broker, others=30)
        source = data_of(broker)
        before = {path: digest(path) for path in source.glob("users-0/*.log")}
        async with await broker.fork() as fork:
            erasure = await erase(fork, now=True, confirm_groups_behind=True)
            assert erasure.certificate is not None
            certificate = erasure.certificate
            found = await verify(fork, certificate)
            assert found.is_valid, found.notes
            assert not [one for one in records_of_key(data_of(fork), "users", KEY) if one.value is not None]
            found = await verify(broker, certificate)
            assert not found.is_valid
        assert [one.value for one in records_of_key(source, "users", KEY)] == [PERSON]
        assert traces_of(broker) == []
        assert {path: digest(path) for path in before} == before
