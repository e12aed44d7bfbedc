"""Rounds on a standalone cluster: executors in other processes, with kills and repeated tasks."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.spark.environment.spark_settings import SparkSettings
from diamant.cleaner.spark.runner.runner import DRIVER_PROGRAM, SparkRunner
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from tests.cleaner.engines.test_golden import PASSES, STEPS
from tests.cleaner.runners.rounds import Swapper, leftovers, make_log, plan_of, segment_files
from tests.cleaner.spark.cluster import Cluster
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

ROOT = Path(__file__).resolve().parents[4]
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "1ms",
}
"""Nearly every task is tried a second time when a tenth of its stage is done."""
SOON_SILENT = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "5s",
    "spark.network.timeoutInterval": "1s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
}
"""An executor from which nothing was heard for five seconds is given up."""
WAIT_S = 180.0
ACROSS = ["client_transactions", "codecs", "map_full"]
"""Golden cases that differ in what tasks hand to each other; all of them run on one machine (`test_clean_job`)."""


@pytest.fixture(scope="module")
def cluster(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(java, tmp_path_factory.mktemp("cluster")) as started:
        yield started


async def cleaned_inline(directory: Path, **fields: object) -> dict[str, bytes]:
    """Return the files of a round in a thread of the broker."""
    log = make_log(directory)
    runner = InlineRunner(log.env)
    await runner.run(plan_of(log, **fields), on_output=Swapper(log))
    await runner.close()
    return segment_files(log)


def slow_plan(log: Log) -> CleanPlan:
    """Return a round that takes `DIVIDING` drivers seconds in each step."""
    return replace(plan_of(log), io_max_bytes_per_second=100_000.0)


DIVIDING = DRIVER_PROGRAM.replace(
    "from diamant.cleaner.spark.runner.driver",
    "from functools import partial; from diamant.cleaner.rules.throttle import Throttle; "
    "from diamant.cleaner.spark.clean import in_session; in_session.whole_bytes = lambda *_: -1; "
    "in_session.CleanJob = partial(in_session.CleanJob, new_throttle=partial(Throttle, check_interval_s=0.0)); "
    "from diamant.cleaner.spark.runner.driver",
)
"""The program of drivers that divide every round, and limit the rate from the first byte on: they report a step twice a second
at most, so a shorter one may stay unseen."""
IMPATIENT = DIVIDING.replace(
    "from diamant.cleaner.spark.runner.driver",
    "import diamant.cleaner.spark.session.session as session; watch = session.ExecutorWatch; "
    "session.ExecutorWatch = lambda context, _: watch(context, 3000); from diamant.cleaner.spark.runner.driver",
)
"""That of drivers which also wait as long as ever until executors have come, but 3 s when they are lost."""


async def wait_for_step(runner: SparkRunner, step: str, round_: asyncio.Task[object]) -> None:
    """Wait until the job is at `step`."""
    while runner.progress_stage != step:
        assert not round_.done(), round_.result()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        pytest.param(["--last", "--cases", *ACROSS], [(name, PASSES[name]) for name in ACROSS], id="some"),
        pytest.param([], STEPS, id="all", marks=pytest.mark.long),
    ],
)
def test_golden_passes_have_kafka_s_bytes(cluster: Cluster, options: list[str], steps: list[tuple[str, int]]) -> None:
    """Some, or all, in one application, on both workers, with the shipped code only."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.cleaner.spark.clean.golden_passes", "--master", cluster.master, *options),
            *(f"--conf={name}={value}" for name, value in cluster.conf.items()),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0, "\n".join([*said, done.stderr])
    assert [line for line in said if line.endswith(": equal")] == [
        f"{name}, pass {number}: equal" for name, number in steps
    ]
    assert said[-2].startswith("2 executors, with the code from ")
    assert re.search(r"/diamant-code-\w+\.zip/diamant/__init__\.pyc?$", said[-2])


@pytest.mark.long
async def test_the_work_of_a_hanging_executor_is_repeated(cluster: Cluster, tmp_path: Path) -> None:
    """Spark drops it after a silence, with its shuffle files. When it continues later, it leaves nothing behind."""
    log = make_log(tmp_path)
    staging = tmp_path / "staging"
    staging.mkdir()
    settings = SparkSettings(cluster.master, staging.as_uri(), conf=cluster.conf | SOON_SILENT)
    runner = SparkRunner(log.env, settings, program=DIVIDING)
    round_ = asyncio.create_task(runner.run(slow_plan(log), on_output=Swapper(log)))
    await wait_for_step(runner, "rewrite", round_)
    hung = cluster.executors()[:1]
    with cluster.hung(hung):
        assert (await round_).runner == "spark"
    await wait_until(lambda: not set(hung) & set(cluster.executors()), WAIT_S)
    assert segment_files(log) == await cleaned_inline(tmp_path / "inline")
    assert not leftovers(log)
    assert not os.listdir(staging)
    await runner.close()


@pytest.mark.long
async def test_a_cluster_all_of_which_hangs_is_given_up(cluster: Cluster, tmp_path: Path) -> None:
    """Like one without executors: a local runner runs the round. Executors that continue later do no harm."""
    log = make_log(tmp_path)
    staging = tmp_path / "staging"
    staging.mkdir()
    inline = InlineRunner(log.env)
    settings = SparkSettings(cluster.master, staging.as_uri(), conf=cluster.conf | SOON_SILENT)
    runner = SparkRunner(log.env, settings, inline, program=IMPATIENT)
    round_ = asyncio.create_task(runner.run(slow_plan(log), on_output=Swapper(log)))
    await wait_for_step(runner, "map", round_)
    hung = cluster.executors()
    with cluster.hung([*cluster.workers(), *hung]):
        assert (await round_).runner == "inline"
        assert f"there was no executor for 3 s on {cluster.master}" in str(runner.last_failure)
        assert set(cluster.executors()) >= set(hung)
    await wait_until(lambda: not set(hung) & set(cluster.executors()), WAIT_S)
    assert segment_files(log) == await cleaned_inline(tmp_path / "inline")
    assert not leftovers(log)
    assert not os.listdir(staging)
    await runner.close()
    await inline.close()


async def test_executors_that_are_lost_are_made_up_for(cluster: Cluster, tmp_path: Path) -> None:
    """One is killed, and tasks run twice: each attempt has its own directory, only one counts, and lost work is repeated
    elsewhere. Then all are killed, in the same session: it waits for new ones, then a local runner runs the round.

    This must be the last test: the cluster is unusable afterwards.
    """
    staging = tmp_path / "staging"
    staging.mkdir()
    settings = SparkSettings(
        cluster.master, staging.as_uri(), conf=cluster.conf | SPECULATION, driver_max_idle_ms=600_000
    )
    expected = await cleaned_inline(tmp_path / "inline")
    runner = SparkRunner(RealEnv(), settings, InlineRunner(RealEnv()), program=IMPATIENT)

    log = make_log(tmp_path / "one")
    round_ = asyncio.create_task(runner.run(slow_plan(log), on_output=Swapper(log)))
    await wait_for_step(runner, "rewrite", round_)
    cluster.kill_an_executor()
    assert (await round_).runner == "spark", runner.last_failure
    assert segment_files(log) == expected
    assert not leftovers(log)
    assert not os.listdir(staging)

    log = make_log(tmp_path / "all")
    round_ = asyncio.create_task(runner.run(slow_plan(log), on_output=Swapper(log)))
    await wait_for_step(runner, "map", round_)
    await wait_until(lambda: runner.progress_bytes > 0 or round_.done(), WAIT_S)
    cluster.stop_workers()
    assert (await round_).runner == "inline"
    assert f"there was no executor for 3 s on {cluster.master}" in str(runner.last_failure)
    assert segment_files(log) == expected
    assert not leftovers(log)
    assert not os.listdir(staging)
    await runner.close()
