"""The ends of forks: nothing is left of them, and what they do is theirs alone."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.erasure.cases import KEY, PERSON, create_with_key, data_of, erase, pinned, traces_of
from tests.broker.erasure.cases import config as certifying
from tests.broker.snapshots.test_fork import beside, config, digest, fill
from tests.cleaner.evidence.scan.naive_scanner import records_of_key


def test_forks_leave_nothing(tmp_path: Path) -> None:
    """After many of them, and forks and snapshots of these, a process has the descriptors, threads and directories of before."""

    def held() -> tuple[int, list[str]]:
        return len(os.listdir("/proc/self/fd")), beside(tmp_path)

    with Broker(config(tmp_path)) as broker:
        broker.call(fill(broker.awaited))

        def use_one() -> None:
            with broker.fork() as fork:
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
    """The error comes before the copy."""
    async with Broker(config(tmp_path)) as broker:
        with pytest.raises(TypeError, match="no_such_setting"):
            await broker.fork(no_such_setting=1)
        assert beside(tmp_path) == []


async def test_a_start_removes_the_forks_of_a_killed_process(tmp_path: Path) -> None:
    """Those that run, and those that are still to be entered, stay: their locks are held."""
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
    """Its certificate holds for the fork's files; the source keeps the record, and has no certificate."""
    async with Broker(certifying(tmp_path)) as broker:
        await create_with_key(broker, others=30)
        source = data_of(broker)
        before = {path: digest(path) for path in source.glob("users-0/*.log")}
        async with await broker.fork() as fork:
            erasure = await erase(fork, is_now=True, is_confirmed=True)
            assert erasure.certificate is not None
            certificate = erasure.certificate
            found = await fork.services.certificates().verify(certificate, public_key=pinned(certificate), key=KEY)
            assert found.is_valid, found.notes
            assert not [one for one in records_of_key(data_of(fork), "users", KEY) if one.value is not None]
            found = await broker.services.certificates().verify(certificate, public_key=pinned(certificate), key=KEY)
            assert not found.is_valid
        assert [one.value for one in records_of_key(source, "users", KEY)] == [PERSON]
        assert traces_of(broker) == []
        assert {path: digest(path) for path in before} == before
