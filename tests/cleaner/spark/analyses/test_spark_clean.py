"""`diamant spark clean`: cleans a whole log directory by its metadata log, with the bytes of the local command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.cleaner.offline import clean_on_spark
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import write_clean_shutdown
from diamant.storage.env.env import RealEnv
from tests.cleaner.log_history import History
from tests.cleaner.spark.analyses.test_jobs import write_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_800_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two partitions of a compacted topic, and one of a topic that is deleted."""
    root = tmp_path / "logs"
    root.mkdir()
    for topic, partition in (("users", 0), ("users", 1), ("plain", 0)):
        history = History(topic, partition)
        for number in range(6 - partition):
            history.batch(*(f"k{number * at % 5}={number}" for at in range(5)), "gone=", codec=number % 5)
            history.batch(f"k{number}=aborted", producer_id=7)
            history.marker(7, is_commit=number % 2 == 0)
            history.roll()
        history.write(RealEnv(), str(root))
    write_metadata(root, users={"cleanup.policy": "compact"}, plain={})
    write_clean_shutdown(RealEnv(), str(root))
    return root


def run(*arguments: Any, code: int = 0) -> Result:
    """Return the result of a command, on the session of the tests."""
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def files(directory: Path) -> dict[str, bytes]:
    """Every file of the segments, by its path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.glob("*-[0-9]/*"))
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex") and names.METADATA_TOPIC not in str(path)
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["kafka", "prompt"])
def test_a_directory_is_cleaned_as_by_the_local_command(
    spark: SparkSession, directory: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cleans every compacted partition, reported by size, and no other one; the files are equal byte for byte."""
    # However small.
    monkeypatch.setattr(clean_on_spark, "_by_size", lambda engine, _: engine)
    local = Path(shutil.copytree(directory, directory.with_name("local")))
    before = files(directory)
    options = ("--now", NOW_MS, "--mode", mode, "--force")
    told = run("spark", "clean", directory, "--master", "local[2]", *options, "--json").stdout.splitlines()
    assert [json.loads(line)["partition"] for line in told] == ["users-0", "users-1"]
    for partition in ("users-0", "users-1"):
        run("log", "clean", local / partition, *options)
    after = files(directory)
    assert after == files(local)
    changed = {path.partition("/")[0] for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {"users-0", "users-1"}


@pytest.mark.slow
def test_one_partition_that_cannot_be_cleaned_is_reported(spark: SparkSession, directory: Path) -> None:
    """That partition is unchanged, the others are cleaned, and the exit code is 1."""
    segment = sorted((directory / "users-0").glob("*.log"))[1]
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    before = files(directory)
    options = ("--now", NOW_MS, "--force", "--mode", "kafka")
    result = run("spark", "clean", directory, "--master", "local[2]", *options, code=1)
    assert str(segment) in result.stderr
    assert "2 partitions, 1 failed; records removed: " in result.stdout
    after = files(directory)
    assert {path for path in before if "users-0" in path and after.get(path) != before[path]} == set()


def test_without_a_metadata_log_the_compacted_topics_must_be_named(directory: Path) -> None:
    """Without a metadata log the user must name the compacted topics. A directory in use by a broker is refused."""
    lock = RealEnv().lock(f"{directory}/{names.LOCK}")
    result = run("spark", "clean", directory, code=1)
    assert str(directory) in result.stderr
    lock.release()
    shutil.rmtree(directory / f"{names.METADATA_TOPIC}-0")
    result = run("spark", "clean", directory, code=1)
    assert "topics with --set cleanup.policy=compact" in result.stderr
    assert len(result.stderr.splitlines()) == 1
