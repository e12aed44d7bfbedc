"""Cleaning jobs in a real Spark session: golden passes of Kafka's cleaner, and histories with everything in them."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from diamant.cleaner.offline.clean_on_spark import clean_directory, partitions_by_size, total_removed
from diamant.cleaner.offline.offline_clean import Engine, PartitionSettings
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.spark.clean.in_session import session_engine
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.cleaner.engines import test_golden_random as golden_random
from tests.cleaner.engines.engines import copied
from tests.cleaner.engines.test_golden import STEPS, case_of, check
from tests.cleaner.engines.test_golden_random import SEEDS
from tests.cleaner.facts.segment_history import SegmentHistory
from tests.cleaner.golden_pass import Case, run
from tests.cleaner.runners.rounds import CONFIG, START_MS, make_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SLICE = [
    ("basic_dups", 1),
    ("codecs", 2),
    ("legacy_mixed_sets", 1),
    ("map_full", 2),
    ("stale_abort_entry", 2),
    ("tombstone_horizon", 3),
    ("txn_markers", 4),
]
"""Golden passes for every run; the others with --long."""

SEED_SLICE = (1021, 1074)
"""And random histories of some passes each."""


@pytest.fixture
def engine(spark: SparkSession) -> Engine:
    return session_engine(spark.sparkContext)


@pytest.mark.parametrize(
    ("name", "number"), [step if step in SLICE else pytest.param(*step, marks=pytest.mark.long) for step in STEPS]
)
def test_a_pass_does_what_kafka_does(name: str, number: int, engine: Engine, tmp_path: Path) -> None:
    """The same bytes, records, checkpoints, snapshots, times and figures, and nothing is left at the staging location."""
    case = case_of(name)
    step = case.steps[number - 1]
    env = RealEnv(SettableClock(step["now"]))
    report, files = run(case, step, engine, env, str(tmp_path / "logs"))
    check(case, number, report, files)
    assert [path for path in (tmp_path / "logs" / "cases-0").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "seed", [seed if seed in SEED_SLICE else pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS]
)
def test_a_history_becomes_what_kafka_makes_of_it(seed: int, engine: Engine, tmp_path: Path) -> None:
    """Random histories give the output of each pass of Kafka's cleaner, byte for byte unless codecs differ."""
    numbers = count()

    def run_pass(case: Case, step: dict[str, Any]) -> Any:
        return run(case, step, engine, RealEnv(SettableClock(step["now"])), str(tmp_path / str(next(numbers))))

    golden_random.check(seed, run_pass)


def test_a_staging_place_that_cannot_be_written_fails_the_job_alone(spark: SparkSession, tmp_path: Path) -> None:
    """The error has the place and the reason; the log is unchanged."""
    (tmp_path / "file").write_text("not a directory")
    history = SegmentHistory()
    history.batch([(b"k", b"v")])
    memory, plan = history.stored()
    here = copied(memory, plan, tmp_path / "t-0")
    before = sorted(path.name for path in (tmp_path / "t-0").iterdir())
    failing = session_engine(spark.sparkContext, (tmp_path / "file").as_uri())
    with pytest.raises((SparkError, OSError), match=r"[Nn]ot a directory|Cannot create directory"):
        failing(RealEnv(), here, lambda _: None)
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == before


@pytest.mark.parametrize(("whole_bytes", "at_once"), [(-1, 1), (1 << 30, 3)], ids=["divided", "whole"])
def test_a_whole_directory_is_cleaned_largest_first(
    spark: SparkSession, tmp_path: Path, whole_bytes: int, at_once: int
) -> None:
    """Spark cleans each partition, or this process small ones, one or several at a time. A failure does not stop the
    others, and the logs can be opened afterwards.
    """
    logs = []
    for number, batches in enumerate((40, 150, 90)):
        log = make_log(tmp_path / f"one-{number}", batches)
        log.close()
        Path(log.path).rename(tmp_path / f"t-{number}")
        logs.append(str(tmp_path / f"t-{number}"))
    bad = tmp_path / "bad-0"
    bad.mkdir()
    (bad / "00000000000000000000.log").write_bytes(bytes(range(100)))
    env = RealEnv(SettableClock(START_MS))
    found = [path for path, _ in partitions_by_size(env, str(tmp_path))]
    assert found == [logs[1], logs[2], logs[0], str(bad)]
    settings = PartitionSettings(CONFIG, CleanerSettings(), 86_400_000)
    outcomes = list(
        clean_directory(
            env,
            found,
            lambda topic: settings,
            session_engine(spark.sparkContext, whole_bytes=whole_bytes, at_once=at_once),
            force=True,
            is_clean=True,
            small_bytes=Path(logs[0]).stat().st_size + 60_000,
            at_once=at_once,
        )
    )
    assert [(one.partition, one.report is not None) for one in outcomes[:3]] == [
        ("t-1", True),
        ("t-2", True),
        ("t-0", True),
    ]
    runners = [one.report.result.runner for one in outcomes if one.report is not None and one.report.result is not None]
    assert "spark" in runners
    assert total_removed(outcomes)["superseded"] > 0
    assert all(not list(Path(path).glob("*.cleaned")) for path in logs)
