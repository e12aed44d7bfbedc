"""A slice of the comparison of all runners; `python -m tests.cleaner.spark.clean.four_way --seeds 0-199` does the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult
from diamant.storage.env.env import Env
from tests.cleaner.random_scenario import Scenario
from tests.cleaner.spark.clean.four_way import FourWay
from tests.cleaner.spark.one_process import OneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICE = range(3)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[FourWay]:
    """All runners, with tasks of Spark in this process."""
    with FourWay(OneProcess(), tmp_path) as engines:
        yield engines


@pytest.mark.slow
def test_every_runner_writes_the_bytes_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    """The naive model, the inline runner, the worker process and a real Spark session give the same files, times and figures."""
    with FourWay(spark.sparkContext, tmp_path) as engines:
        for seed in SLICE:
            assert engines.differences(seed) == []
    assert engines.count.scenarios == len(SLICE)
    assert engines.count.rounds > len(SLICE)


@pytest.mark.slow
def test_a_difference_is_reported(engines: FourWay, tmp_path: Path) -> None:
    """A flipped bit in one of Spark's files, or one more record in the model: the report has scenario, round and file."""
    spark, model = engines.engines["Spark"], engines.model
    turned: list[str] = []

    def one_bit_off(env: Env, plan: CleanPlan, **options: Any) -> CleanResult:
        result = spark(env, plan, **options)
        path = next(Path(plan.directory).glob("*.log.cleaned"))
        modified_ns = path.stat().st_mtime_ns
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
        os.utime(path, ns=(modified_ns, modified_ns))
        turned.append(path.name)
        return result

    engines.engines["Spark"] = one_bit_off
    engines.keep = tmp_path / "kept"
    found = engines.differences(3)
    assert [line.partition(": ")[2] for line in found] == [
        f"Spark: {name} differs from the inline runner's" for name in turned
    ]
    assert found[0].startswith("seed 3, round 1 (")
    assert (tmp_path / "kept" / "3-1" / "topic-0" / f"{0:020d}.log").exists()
    assert (tmp_path / "kept" / "3-1" / "plan.json").exists()
    engines.keep = None
    engines.engines["Spark"] = spark
    engines.model = lambda log, plan: model(log, plan) + b"\0"
    assert {line.partition(": ")[2] for line in engines.differences(3)} == {
        "the inline runner does not write what the model has"
    }


@pytest.mark.slow
def test_scenarios_have_everything_in_them() -> None:
    """The command's first seeds include every feature to compare, and a seed always gives the same log."""
    seen: set[str] = set()
    for seed in range(30):
        scenario = Scenario(seed)
        for plan in scenario.rounds():
            headers = [batch.header for batch in scenario.log.stored()]
            seen |= {f"codec {header.codec}" for header in headers if header.record_count}
            seen |= {
                plan.mode,
                *(["many segments"] if len(plan.segments) > 3 else []),
                *(
                    ["bounded by a transaction"]
                    if plan.first_uncleanable_offset < scenario.log.log.active.base_offset
                    else []
                ),
                *(["clean part"] if plan.first_dirty_offset else []),
                *(["aborted"] if any(segment.aborted for segment in plan.segments) else []),
                *(["header only"] if any(not header.record_count for header in headers) else []),
                *(["horizon"] if any(header.has_delete_horizon for header in headers) else []),
                *(["horizon over"] if any(_is_over(header, plan.now_ms) for header in headers) else []),
                *(["log append time"] if any(header.is_log_append_time for header in headers) else []),
                *(["epoch bumped"] if any(header.producer_epoch > 0 for header in headers) else []),
            }
    assert sorted(seen) == [
        "aborted",
        "bounded by a transaction",
        "clean part",
        *(f"codec {codec}" for codec in range(5)),
        "epoch bumped",
        "header only",
        "horizon",
        "horizon over",
        "kafka",
        "log append time",
        "many segments",
        "prompt",
    ]
    logs = [Scenario(7), Scenario(7)]
    for log in logs:
        list(log.rounds())
    assert logs[0].log.files() == logs[1].log.files()


def _is_over(header: Any, now_ms: int) -> bool:
    return header.has_delete_horizon and header.base_timestamp <= now_ms
