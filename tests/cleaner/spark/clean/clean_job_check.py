"""Rounds on Spark against the plain engine: the same files, figures and errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diamant.cleaner.engines import plain_round
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OutputOverflow, never_done
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.cleaner.spark.clean.staged_outputs import take_over
from diamant.cleaner.spark.environment.locations import Location
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import CorruptLog
from tests.cleaner.prompt.segment_history import NOW_MS

TIMES = ("start_s", "map_complete_s", "end_s")


def plain_outcome(env: Env, plan: CleanPlan) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What the plain engine answers, or its error, and the files it leaves; which are removed again."""
    try:
        fields = _fields(asdict(plain_round.clean(env, plan, parsed_bytes=0)))
    except (CorruptLog, OutputOverflow) as error:
        fields = _error(error)
    return fields, _take_cleaned(env, plan.directory)


def runner_outcome(plan: CleanPlan, run: Callable[[CleanPlan], CleanResult]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The same of a runner that works on real files, and swaps nothing in."""
    try:
        fields = _fields(asdict(run(plan)))
    except (CorruptLog, OutputOverflow) as error:
        fields = _error(error)
    return fields, _take_cleaned(RealEnv(), plan.directory)


def spark_outcome(
    context: Any, plan: CleanPlan, place: Path, **options: Any
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The same of a job on Spark, its outputs taken over as a broker does."""
    env = RealEnv(SettableClock(NOW_MS))
    try:
        job = CleanJob(context, plan, source=Location(plan.directory), target=Location(str(place)), **options)
        manifest = job.run()
        outputs = [take_over(env, plan, staged, Location(str(place)), never_done) for staged in manifest.outputs]
        assert outputs == [staged.output for staged in manifest.outputs]
        fields = _fields(asdict(manifest.result()))
    except (CorruptLog, OutputOverflow) as error:
        fields = _error(error)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return fields, _take_cleaned(env, plan.directory)


def copied(env: Env, plan: CleanPlan, directory: Path) -> CleanPlan:
    """A plan over real copies of its files."""
    directory.mkdir(parents=True)
    for name in env.list_dir(plan.directory):
        (directory / name).write_bytes(env.read_bytes(f"{plan.directory}/{name}"))
    return replace(plan, directory=str(directory))


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    for name in TIMES:
        del fields["stats"][name]
    del fields["runner"]
    return fields


def _error(error: CorruptLog | OutputOverflow) -> dict[str, Any]:
    return {"error": type(error)}


def _take_cleaned(env: Env, directory: str) -> dict[str, bytes]:
    found = {}
    for name in env.list_dir(directory):
        if name.endswith(".cleaned"):
            found[name] = env.read_bytes(f"{directory}/{name}")
            if ".txnindex" not in name:
                found[f"{name} time"] = str(env.mtime_ms(f"{directory}/{name}")).encode()
            env.remove(f"{directory}/{name}")
    return found
