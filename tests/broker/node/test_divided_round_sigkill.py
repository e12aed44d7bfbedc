"""A round on two processors, ended by SIGKILL of the broker, of the worker, or of a child forked by the worker.

Strategy: a broker process begins to clean a log that is large enough to be divided; one of its processes is killed at a point of
that round (`kill_point`). If it was the broker, all others must exit. Otherwise the broker completes the round. Then the
directory is opened, first without a cleaner.

Invariants: each group of segments is old or new, new ones come first, no temporary file is left, and a repeated round makes
all of them new.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from diamant.broker.broker import Broker
from diamant.cleaner.parallel.parallel_engine import WORTH_BYTES
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.env.env import RealEnv
from tests import files_in_memory
from tests.broker.broker_process import BrokerProcess
from tests.broker.node import kill_point
from tests.broker.node.kill_point import KillPoint
from tests.broker.wire import PRODUCE, WireClient, produce_fields
from tests.cleaner.parallel.test_fork import is_running
from tests.effort import some
from tests.waiting import wait_until

SEGMENTS, GROUPS = 8, 4
VALUE = bytes(1_000_000)
VALUES_PER_SEGMENT = WORTH_BYTES // len(VALUE) // SEGMENTS + 1
SMALL_KEYS = 20_000
"""Distinct ones in each of two segments: more than the least map holds, which then spills."""
DIVIDED = ("log.cleaner.threads=2", "log.cleaner.backoff.ms=20", "diamant.http.listen=127.0.0.1:0")
SPILLING = ("log.cleaner.dedupe.buffer.size=2200000",)
"""For each of two threads hardly more than the least map, 1 MiB."""

MAPS = [
    KillPoint("child", "open", ".log", 1, "child"),
    KillPoint("child", "open", ".log", 1, "worker"),
    KillPoint("child", "open", ".log", 1, "broker"),
]
REWRITES = [
    KillPoint("child", "open", ".log.cleaned", 1, "child"),
    KillPoint("child", "open", ".log.cleaned", 1, "broker"),
    KillPoint("worker", "open", ".log.cleaned", 1, "worker"),
    KillPoint("worker", "open", ".log.cleaned", 1, "broker"),
]
SWAPS = [
    KillPoint("worker", "os.rename", ".cleaned", 1, "broker"),
    KillPoint("worker", "os.rename", ".cleaned", 5, "worker"),
    KillPoint("worker", "os.rename", ".swap", 2, "worker"),
    KillPoint("worker", "os.rename", ".swap", 7, "broker"),
]
SPILLS = [
    KillPoint("child", "os.remove", "offset-map-", 2, "child"),
    KillPoint("worker", "os.remove", "offset-map-", 2, "worker"),
    KillPoint("worker", "os.remove", "offset-map-", 2, "broker"),
]
"""Between the creation of a spill file and its removal, a moment later."""
POINTS = [*MAPS, *REWRITES, *SWAPS, *SPILLS]

Content = dict[str, bytes]


class Filled(NamedTuple):
    """A directory to copy, and its groups before and after a round."""

    directory: Path
    old: Content
    new: Content
    groups: list[str]
    """The first file of each."""


def content(directory: Path) -> Content:
    """Return the closed segments of the topic."""
    files = sorted((directory / "t-0").glob("*.log"))
    return {file.name: file.read_bytes() for file in files[:-1]}


def leftovers(directory: Path) -> list[str]:
    """Return temporary files of a round that must not remain."""
    wanted = (".cleaned", ".swap", ".deleted")
    return [path.name for path in (directory / "t-0").iterdir() if path.name.endswith(wanted)]


def is_clean(directory: Path) -> bool:
    """Return whether a round has ended and is recorded."""
    checkpoint = read_offset_checkpoint(RealEnv(), f"{directory}/cleaner-offset-checkpoint")
    return checkpoint.get(("t", 0), 0) > 0


def copied(source: Path, target: Path) -> None:
    """Copy a data directory; closed segments, which never change, are linked."""
    active = max((source / "t-0").glob("*.log"))

    def copy(path: str, new: str) -> None:
        is_closed = path.endswith(".log") and Path(path).parent.name == "t-0" and path != str(active)
        (os.link if is_closed else shutil.copyfile)(path, new)

    shutil.copytree(source, target, copy_function=copy)


async def fill(directory: Path) -> None:
    """Write segments to divide among processes: large values under few keys, and many keys in the first and the last one."""
    async with Broker(data_dir=directory, properties={"log.cleaner.enable": "false"}) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            created = await wire.create(
                "t", cleanup_policy="compact", min_cleanable_dirty_ratio="0", segment_bytes=str(20 * len(VALUE)),
                max_message_bytes=str(2 * len(VALUE)),
            )  # fmt: skip
            assert created.error_code == ErrorCode.NONE
            for segment in range(SEGMENTS):
                batches = [[(b"large-%d" % (segment + index & 3), VALUE)] for index in range(VALUES_PER_SEGMENT)]
                if segment in (1, 2, SEGMENTS - 2, SEGMENTS - 1):
                    batches.append([(b"%d-%d" % (segment, key), b"v") for key in range(SMALL_KEYS)])
                for batch in batches:
                    records = [Record(offset, 1, key, value) for offset, (key, value) in enumerate(batch)]
                    blob = bytes(build_batch(records, base_offset=0))
                    answer = await wire.call(PRODUCE, 12, produce_fields("t", 0, blob))
                    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
                broker.node.topics.log("t", 0).roll()


async def clean(directory: Path) -> None:
    """Open a directory and clean the topic in parts."""
    properties = dict(setting.split("=") for setting in DIVIDED)
    async with Broker(data_dir=directory, properties=properties) as broker:
        await broker.compact("t")


@pytest.fixture(scope="module")
def filled() -> Iterator[Filled]:
    """A log without any cleaning; on the disk, where copies of it are linked."""
    with tempfile.TemporaryDirectory(prefix="diamant-test-", dir=files_in_memory.DISK) as directory:
        yield filled_in(Path(directory))


def filled_in(place: Path) -> Filled:
    """See above."""
    asyncio.run(fill(place / "old"))
    old = content(place / "old")
    assert sum(map(len, old.values())) >= WORTH_BYTES
    copied(place / "old", place / "new")
    asyncio.run(clean(place / "new"))
    new = content(place / "new")
    assert (len(old), len(new)) == (SEGMENTS, GROUPS)
    return Filled(place / "old", old, new, sorted(new))


@pytest.mark.slow
@pytest.mark.parametrize("point", some(POINTS, every=5), ids=str)
async def test_a_divided_round_killed_at_any_point(filled: Filled, tmp_path: Path, point: KillPoint) -> None:
    """Each group is old or new, no process or file remains, and a repeated round completes it."""
    data = tmp_path / "data"
    copied(filled.directory, data)
    settings = [*DIVIDED, *(SPILLING if point in SPILLS else ())]
    process = BrokerProcess(
        data, tmp_path / "said", settings=settings, environment=kill_point.environment(tmp_path, point)
    )
    try:
        await wait_until(lambda: bool(kill_point.told(tmp_path)))
        pids = kill_point.told(tmp_path)
        if point.victim == "broker":
            assert len(pids) >= 2
            process.wait_for_end(60)
        else:
            assert process.is_running
            await wait_until(lambda: is_clean(data))
    finally:
        process.kill()
    await wait_until(lambda: not any(map(is_running, pids)))

    async with Broker(data_dir=data, properties={"log.cleaner.enable": "false"}):
        assert not leftovers(data)
    if point.victim == "broker":
        check(filled, content(data))
        await clean(data)
    # A second round groups what the first one has left: other segments of the same bytes.
    assert b"".join(content(data).values()) == b"".join(filled.new.values())


def check(filled: Filled, found: Content) -> None:
    """Check that each group is old or new, and that new ones come first."""
    is_new = []
    for first, end in zip(filled.groups, [*filled.groups[1:], "9"], strict=True):
        old, new, here = (
            {name: data for name, data in one.items() if first <= name < end} for one in (filled.old, filled.new, found)
        )
        assert here in (old, new), first
        is_new.append(here == new)
    assert is_new == sorted(is_new, reverse=True)
