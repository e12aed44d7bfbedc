"""`diamant spark whatif`: its results are those of `diamant log whatif`, and what it refuses."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.commands.log.whatif import whatif as local_whatif
from diamant.broker.commands.spark.whatif import whatif as spark_whatif
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.forecast.forecast import Scenario
from diamant.cleaner.forecast.whatif_on_spark import Trial, TrialOutcome, outcome, run_trials
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.cleaner.spark.environment.shipped_code import Versions
from diamant.cleaner.spark.environment.spark_settings import LOCAL_DIRS
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.log_config import LogConfig
from tests.broker.commands.log.test_log_commands import content
from tests.broker.commands.log.test_log_whatif import NOW, NOW_MS
from tests.cleaner.log_history import History
from tests.cleaner.spark.analyses.test_jobs import write_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with partitions of several sizes: one damaged, two that are not logs, one with retention only."""
    env = RealEnv()
    data = tmp_path / "data"
    for topic, partition, rounds in (("t", 0, 1), ("t", 1, 4), ("t", 10, 2), ("kept", 0, 3), ("damaged", 0, 2)):
        history = History(topic, partition)
        for _ in range(rounds):
            history.batch("a=1", "b=1", "a=2", "c=")
            history.batch("x=1", "b=2", producer_id=7, codec=4)
            history.marker(7, is_commit=partition == 0)
            history.roll()
        history.batch("a=3")
        history.write(env, str(data))
    log = data / "damaged-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:70] + b"\xff" + log.read_bytes()[71:])
    (data / "__transaction_state-0").mkdir()
    (data / "__transaction_state-0" / f"{0:020d}.log").touch()
    (data / "unreadable-0").mkdir()
    (data / "unreadable-0" / f"{0:020d}.log").write_bytes(b"\xff" * 100)
    (data / "unreadable-0" / f"{5:020d}.log").write_bytes(b"\xff" * 100)
    (data / "dangling-0").mkdir()
    (data / "dangling-0" / f"{0:020d}.log").symlink_to("nowhere")
    (data / ".lock").touch()
    write_metadata(data, kept={"cleanup.policy": "delete"})
    (data / "cleaner-offset-checkpoint").write_text("0\n1\nt 1 7\n")
    return data


@pytest.mark.slow
def test_results_are_those_of_the_local_command(spark: SparkSession, directory: Path) -> None:
    """Document, tables, lines on standard error and exit code are the same, for every partition and combination; files stay."""
    before = content(directory)
    common = (directory, *NOW, "--set", "min.cleanable.dirty.ratio=0.1,1", "--set", "segment.bytes=1048576")
    for form in (("--json",), ("--mode", "kafka")):
        expected = run("log", "whatif", *common, *form)
        found = run("spark", "whatif", *common, *form, "--master", "local[2]")
        assert "t-10" in expected.output or '"partition": 10' in expected.output
        assert (found.stdout, found.stderr, found.exit_code) == (expected.stdout, expected.stderr, 1)
    assert content(directory) == before


@pytest.mark.slow
def test_an_executor_with_other_files_is_refused(spark: SparkSession, directory: Path) -> None:
    """As if each machine had its own disk at that path: there is no forecast of these files."""
    with open_log_directory(RealEnv(), str(directory / "t-0")) as opened:
        (partition,) = opened.partitions
    first = replace(partition.segments[0], size=partition.segments[0].size + 1)
    trial = Trial(replace(partition, segments=(first, *partition.segments[1:])), None, ())
    with pytest.raises(Exception, match="every executor needs the same directory at the same path"):
        run_trials(spark, [trial], now_ms=NOW_MS, until_ms=None, key_bytes=1)


def test_an_unreadable_file_is_a_problem_of_its_partition(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a faulty disk, its task reports the problem, and the other tasks their results."""

    class OnBadDisk(Scenario):
        def __getattribute__(self, name: str) -> NoReturn:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "/disk/t-0/0.log")

    monkeypatch.setenv(LOCAL_DIRS, str(tmp_path))
    with open_log_directory(RealEnv(), str(directory / "t-0")) as opened:
        (partition,) = opened.partitions
    trial = Trial(partition, None, (OnBadDisk({}, LogConfig(), CleanerSettings(), 1, is_laid_out_anew=False),))
    found = outcome(trial, driver=Versions.here(), now_ms=NOW_MS, until_ms=None, key_bytes=1)
    problem = Problem("/disk/t-0/0.log", None, "cannot be read: Input/output error")
    assert found == TrialOutcome(partition, (), (problem,))


def test_spark_whatif_has_the_options_of_the_local_command() -> None:
    """Spark's what-if also has the options of a session."""
    local, found = (
        {option for one in command.params for option in one.opts} for command in (local_whatif, spark_whatif)
    )
    assert found - local == {"--master", "--conf"}
    assert local <= found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s3://name:secret@bucket/logs"], "s3://bucket/logs: the cleaner opens segments in place"),
        (["http://somewhere/logs"], "expected a path, file: or s3:, got the scheme http:"),
        (["{data}/nowhere"], "does not exist"),
        (["file://{data}", "--set", "segment.ms=soon"], "soon"),
    ],
)
@pytest.mark.usefixtures("no_spark")
def test_mistakes_are_reported_before_spark_is_started(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Mistakes are usage errors before Spark is started, without secrets."""
    result = run("spark", "whatif", *(one.format(data=tmp_path) for one in arguments))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "secret" not in result.stderr


@pytest.mark.usefixtures("no_spark")
def test_a_directory_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    """The directory is refused before Spark is started, as by `diamant log whatif`."""
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)):
        result = run("spark", "whatif", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "in use" in result.stderr
