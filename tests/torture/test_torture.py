"""A short run of the torture program on fixed seeds, and its own parts: what it cannot see, it cannot find."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from diamant import Broker
from tests.broker.wire import WireClient
from tests.builder import make_batch
from tests.torture.checker import unowned, wait_for_log
from tests.torture.draws import pick
from tests.torture.forking_broker import FORK
from tests.torture.history import History, Topic
from tests.torture.operations import Administrator, Operation
from tests.torture.planted import FAULTS, ROOT
from tests.torture.power_loss import chosen_points, lose_power
from tests.torture.producing import Clock, Refused
from tests.torture.program import World, torture
from tests.torture.shim import Entry, Kind, Op, Rule, Shim, can_compile, compiled, entries
from tests.torture.warm import Warm
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library."""
    if not can_compile():
        pytest.skip("the faults are made by a library in C, and there is no gcc")
    return compiled(tmp_path_factory.mktemp("shim"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_answered_is_lost(tmp_path: Path, library: Path, seed: int) -> None:
    """Whatever the disturbances of these seeds: what was acknowledged is kept, once, in order, and what is certified is gone."""
    figures = await torture(seed, tmp_path, library, rounds=4)
    assert sum(figures.rounds.values()) == 4


@pytest.mark.slow
async def test_what_was_synced_survives_a_loss_of_power(tmp_path: Path, library: Path) -> None:
    """At some points of what a broker wrote, its files without what was not synced open, and hold what was answered before."""
    assert await lose_power(1, tmp_path, library, steps=12, points=12) == 12


def test_a_seed_repeats_when_weights_change() -> None:
    """Kinds come as often as their weights say, and a kind that is added changes only what it wins."""
    weights = {"kill": 6, "error": 3, "stop": 1}
    before = [pick(weights, seed, "disturbance") for seed in range(2000)]
    assert 1100 < Counter(before)["kill"] < 1300
    assert 150 < Counter(before)["stop"] < 250
    after = [pick({"new": 2} | weights, seed, "disturbance") for seed in range(2000)]
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {"new"}


@pytest.mark.parametrize("ask", [lambda admin: admin.grow("t"), lambda admin: admin.alter("t", "segment.ms", "60000")])
async def test_a_change_that_is_repeated_after_the_deletion_of_its_topic_is_no_finding(
    tmp_path: Path, ask: Callable[[Administrator], Operation]
) -> None:
    """Both were not answered, and the deletion had come through; without a deletion the topic must be there."""
    admin = Administrator(History(topics={"t": Topic()}), Clock())
    async with Broker(data_dir=tmp_path, listen="127.0.0.1:0") as broker, WireClient(broker.bootstrap_servers) as wire:
        change = ask(admin)
        with pytest.raises(Refused):
            await change(wire)
        admin.delete("t")
        await change(wire)


class Process:
    """What a world sees of the process of its broker; a fork is told of as by `forking_broker`, at the loop's next turn."""

    is_running, log = True, ""

    def __init__(self, world: World, **fork: str) -> None:
        self.told, self._clock, self._fork = world.data.with_name(FORK), world.clock, fork

    def signal(self, number: int) -> None:
        """Fork, or end the fork; while it forks the broker's clock is moved."""
        if number == signal.SIGUSR1:
            self._clock.ahead_ms += 10**9
        fields = self._fork if number == signal.SIGUSR1 else {"ended": True}
        asyncio.get_running_loop().call_soon(self.told.write_text, f"{json.dumps(fields)}\n")

    def kill(self) -> None:
        """There is none."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world without clients, whose broker is not started."""
    with patch("tests.torture.program.ClientProcesses"):
        world = World(1, tmp_path, None)
    with world.broker, closing(world.tls):
        yield world


async def test_a_fork_that_its_client_does_not_reach_has_told_its_end(world: World) -> None:
    """Else the next fork would take that for what is told of itself."""
    process = Process(world, address=world.broker.address, data="")
    with patch.object(world.broker, "_process", process), pytest.raises(ConnectionRefusedError):
        await world.fork()
    assert process.told.read_text() == '{"ended": true}\n'


async def test_a_fork_is_sent_records_by_the_time_at_which_it_was_taken(world: World, tmp_path: Path) -> None:
    """Its clock is not moved with the broker's, and it would refuse records of a time that is far ahead."""
    async with Broker(data_dir=tmp_path / "fork", listen="127.0.0.1:0") as fork:
        await fork.create_topic("events-0", 1)
        world.history.topics["events-0"] = Topic(is_created=True)
        process = Process(world, address=fork.bootstrap_servers, data=str(tmp_path / "fork"))
        with patch.object(world.broker, "_process", process):
            await world.fork()


async def test_a_log_of_metadata_that_has_failed_ends_a_round(world: World) -> None:
    """Changes are then refused by the end of the connection until the next start; another end of connections is none."""
    process = Process(world)
    with patch.object(world.broker, "_process", process), patch.object(world, "wire", side_effect=EOFError):
        with pytest.raises(EOFError):
            await world.finish()
        process.log = "__cluster_metadata-0: refuses records"
        with pytest.raises(Refused, match="its log has failed"):
            await world.finish()


PROGRAM = """
import signal, sys
imported = []
def main():
    imported.append(sys.argv[1])
    print(*imported, flush=True)
    if imported == ["waits"]:
        signal.pause()
    sys.exit(3)
"""


async def test_a_warm_program_runs_as_one_that_was_started(tmp_path: Path) -> None:
    """It has its arguments, its output, its return code and its signals, nothing of another run, and ends with what forked it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    out, errors = tmp_path / "out", tmp_path / "errors"
    with closing(Warm("program", environment={"PYTHONPATH": f"{tmp_path}:{os.getcwd()}"})) as warm:
        for argument, ends, code in (("ends", None, 3), ("waits", signal.SIGKILL, -9), ("waits", signal.SIGTERM, -15)):
            with out.open("wb") as stdout, errors.open("wb") as stderr:
                process = warm.popen([sys.executable, "-m", "program", argument], stdout=stdout, stderr=stderr)
            await wait_until(lambda: out.read_text() != "")
            if ends is not None:
                assert process.poll() is None
                process.send_signal(ends)
            assert process.wait(60) == code
            assert (out.read_text(), errors.read_text()) == (f"{argument}\n", "")
            process.kill()
        with out.open("wb") as stdout, errors.open("wb") as stderr:
            process = warm.popen([sys.executable, "-m", "program", "waits"], stdout=stdout, stderr=stderr)
    assert process.wait(60) == -signal.SIGKILL


def test_an_index_without_its_segment_is_nobodys(tmp_path: Path) -> None:
    """It has to go, unlike what waits to be removed. While a segment is renamed, a listing may show such an index."""
    partition = tmp_path / "orders-0"
    partition.mkdir()
    for name in (
        f"{0:020}.log.deleted",
        f"{0:020}.timeindex",
        f"{7:020}.log",
        f"{7:020}.index",
        "leader-epoch-checkpoint",
    ):
        (partition / name).touch()
    history = History()
    history.topics["orders"] = Topic(is_compacted=True)
    assert unowned(tmp_path, history) == [f"orders-0/{0:020}.timeindex"]
    os.rename(partition / f"{0:020}.timeindex", partition / f"{0:020}.timeindex.deleted")
    assert unowned(tmp_path, history) == []


def test_a_segment_that_is_being_exchanged_is_waited_for(tmp_path: Path) -> None:
    """Between the renames of the old files and those of the new ones, a listing has neither, and no record is gone."""
    segment, batch = tmp_path / f"{0:020}.log", bytes(make_batch((b"a", b"1")))
    Path(f"{segment}.swap").write_bytes(batch)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(wait_for_log, tmp_path)
        with pytest.raises(TimeoutError):
            reading.result(0.1)
        os.rename(f"{segment}.swap", segment)
        assert [record.value for record in reading.result()] == [b"1"]


def test_what_a_planted_fault_replaces_is_there_once() -> None:
    """A change of the product that leaves none of it would otherwise be noticed with the next run of `planted` alone."""
    edits = [(file, text) for fault in FAULTS.values() for file, text, _ in fault.edits]
    assert [one for one in edits if (ROOT / "diamant" / one[0]).read_text().count(one[1]) != 1] == []


def test_power_is_often_lost_where_a_name_was_just_changed() -> None:
    """There the order of renames and syncs matters; in a long record such places are few, and those of some kinds fewer."""
    record = [Entry("r" if index % 100 == 0 else "w", index, 1, 0, "f", b"") for index in range(10_000)]
    chosen = chosen_points(random.Random(1), record, 60)
    assert len(chosen) == 60
    assert sum(index % 100 == 1 for index in chosen) >= 30
    record[6000:6002] = [Entry("r", 6000, 1, 0, f"/d/0{at}.log.cleaned", b"") for at in range(2)]
    for seed in range(5):
        assert {6001, 6002} <= chosen_points(random.Random(seed), record, 60)
    assert chosen_points(random.Random(1), record[:50], 60) == {*range(50)}


def run(program: str, shim: Shim, root: Path) -> str:
    """Run a program under the library, in the directory that it watches."""
    environment = {**os.environ, **shim.environment()}
    done = subprocess.run(
        [sys.executable, "-c", program, root], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else f"{done.returncode}"


WRITES = """
import os, sys
fd = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT)
try:
    print([os.pwrite(fd, b"12345678", 8 * n) for n in range(3)])
except OSError as error:
    print(error.errno)
"""


def test_a_rule_meets_the_call_that_it_names(tmp_path: Path, library: Path) -> None:
    """The second write fails, is shortened, or is the last that its process does, halfway."""
    root = tmp_path / "data"
    root.mkdir()
    shim = Shim(library, tmp_path / "control", root=root)
    outcomes = {Kind.FAIL: str(errno.EIO), Kind.SHORT: "[8, 4, 8]", Kind.TORN: "-9"}
    for kind, outcome in outcomes.items():
        shim.arm(Rule(Op.WRITE, kind, errno.EIO if kind is Kind.FAIL else 0, skip=1, part="/f"))
        assert run(WRITES, shim, root) == outcome
        assert shim.fired() == 1
    shim.disarm()
    shim.set_quota(12)
    assert run(WRITES, shim, root) == str(errno.ENOSPC)
    shim.close()


def test_the_record_has_every_change(tmp_path: Path, library: Path) -> None:
    """In their order, with the bytes that were written."""
    root = tmp_path / "data"
    root.mkdir()
    shim = Shim(library, tmp_path / "control", root=root, record=tmp_path / "record")
    program = """
import os, sys
os.chdir(sys.argv[1])
with open("a", "wb") as file:
    file.write(b"first")
    file.flush()
    os.fsync(file.fileno())
os.rename("a", "b")
os.mkdir("d")
at = os.open(".", os.O_RDONLY)
os.fsync(at)
os.unlink("b", dir_fd=at)
"""
    assert run(program, shim, root) == ""
    seen = [
        (entry.op, entry.name.removeprefix(f"{root}/"), entry.data)
        for entry in entries((tmp_path / "record").read_bytes())
    ]
    assert seen == [
        ("c", "a", b""), ("w", "a", b"first"), ("s", "a", b""), ("r", "a", f"{root}/b".encode()), ("m", "d", b""),
        ("S", str(root), b""), ("u", "b", b""),
    ]  # fmt: skip
    shim.close()
