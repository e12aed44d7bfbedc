"""`diamant spark clean` that is interrupted, or killed, with several partitions in progress: the same command continues."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.broker.operation_errors import EXIT_INTERRUPTED
from diamant.storage.checkpoints.checkpoints import write_clean_shutdown
from diamant.storage.env.env import RealEnv
from tests.cleaner.log_history import History
from tests.cleaner.spark.analyses.test_jobs import write_metadata
from tests.cleaner.spark.analyses.test_spark_clean import NOW_MS, files
from tests.cleaner.spark.cluster import JAVA_OPTIONS
from tests.waiting import wait_until

WAIT_S = 180.0
PARTITIONS = 3
PROGRAM = '''
import functools, itertools, os, sys, threading
from diamant.broker.cli import main
from diamant.cleaner.offline import clean_on_spark
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.spark.clean import in_session

place, allowed = sys.argv.pop(1), int(sys.argv.pop(1))

def turn():
    # Two tasks may come at once: only one of them can make a directory.
    for number in itertools.count():
        try:
            os.mkdir(f"{place}/{number}")
        except FileExistsError:
            continue
        return number

def gated(rate):
    throttle, counted = Throttle(rate), []

    def count(size):
        throttle(size)
        counted.append(size)
        if len(counted) == STEPS and turn() >= allowed:
            threading.Event().wait()

    return count

class Gated:
    """Sent by value: workers import neither this program nor the tests."""

    def __reduce__(self):
        from pyspark import cloudpickle

        return cloudpickle.loads, (cloudpickle.dumps(gated),)

clean_on_spark._by_size = lambda engine, _: engine
in_session.WholeRound = functools.partial(in_session.WholeRound, new_throttle=Gated())
main()
'''
"""The command, with Spark for logs of any size, whose tasks wait forever once `allowed` of them have written an output.

Each makes a directory at that point.
"""
STEPS = 8
"""Calls of the throttle until then: six segments are read for their keys, the first is read again and its output written."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three partitions of a compacted topic."""
    root = tmp_path / "logs"
    root.mkdir()
    for partition in range(PARTITIONS):
        history = History("users", partition)
        for number in range(6):
            history.batch(
                *(f"k{number * at % 5}={number}-{'v' * partition}" for at in range(5)), "gone=", codec=number % 5
            )
            history.roll()
        history.write(RealEnv(), str(root))
    write_metadata(root, users={"cleanup.policy": "compact"})
    write_clean_shutdown(RealEnv(), str(root))
    return root


@contextmanager
def cleaning(directory: Path, place: Path, allowed: int) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process group of its own as in a shell."""
    place.mkdir()
    temporary = place.with_name("temporary")
    temporary.mkdir(exist_ok=True)
    command = ("spark", "clean", directory, "--master", "local[2]", "--now", NOW_MS, "--conf")
    options = f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("STEPS", str(STEPS)), place, str(allowed), *map(str, command), options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its JVM, which has the pipes, too
        process.communicate()


def printed(process: subprocess.Popen[str]) -> object:
    """What a command that has ended printed. One in progress is not waited for: its tasks may wait forever."""
    return "in progress" if process.poll() is None else process.communicate()


def staged(directory: Path) -> set[str]:
    """Return the partitions with an output at the staging location."""
    return {path.parents[2].name for path in directory.glob("users-*/diamant-staging-*/*/*.log.cleaned")}


def leftovers(directory: Path) -> list[Path]:
    """What a finished cleaning does not have in a log directory."""
    return [path for path in directory.rglob("*") if path.suffix in (".cleaned", ".swap") or "staging" in path.name]


@pytest.mark.slow
@pytest.mark.usefixtures("java")
async def test_the_same_command_continues_after_ctrl_c_and_a_kill(directory: Path, tmp_path: Path) -> None:
    """Ctrl-C while one partition is done and two are in progress, SIGKILL while two are: in the end every file is that of
    `diamant log clean`, and nothing else is left.
    """
    local = Path(shutil.copytree(directory, tmp_path / "local"))
    with cleaning(directory, tmp_path / "first", 1) as process:
        await wait_until(lambda: len(os.listdir(tmp_path / "first")) == 3 or process.poll() is not None, WAIT_S)
        assert len(staged(directory)) == 2, printed(process)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_INTERRUPTED, told
    assert "interrupted: 1 partition dealt with" in told, told
    assert "the same command continues" in told
    assert leftovers(directory) == []
    assert os.listdir(tmp_path / "temporary") == []

    with cleaning(directory, tmp_path / "second", 0) as process:
        await wait_until(lambda: len(os.listdir(tmp_path / "second")) == 2 or process.poll() is not None, WAIT_S)
        assert len(staged(directory)) == 2, printed(process)
        process.kill()
        process.communicate()

    with cleaning(directory, tmp_path / "third", PARTITIONS) as process:
        said, told = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, told
    assert said.splitlines()[-1].startswith(f"{PARTITIONS} partitions, 0 failed")
    assert leftovers(directory) == []
    assert os.listdir(tmp_path / "temporary") == []
    for partition in range(PARTITIONS):
        result = CliRunner().invoke(main, ["log", "clean", str(local / f"users-{partition}"), "--now", str(NOW_MS)])
        assert result.exit_code == 0, result.output
    assert files(directory) == files(local)
