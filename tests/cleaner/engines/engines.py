"""All engines of a round behind one signature, and the outcome of a plan.

    ENGINES["compiled"](env, plan, on_output)
    outcome(ENGINES["Spark"], env, plan) == outcome(one_by_one, env, plan)

The fixture `engine` (conftest.py) is each of them in turn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diamant.cleaner.engines import compiled, plain_round
from diamant.cleaner.parallel import parallel_engine
from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OnOutput, OutputOverflow, OutputSegment, never_done, no_output
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import CorruptLog
from tests.cleaner.spark.one_process import OneProcess

Engine = Callable[..., CleanResult]
Outcome = tuple[dict[str, Any], dict[str, bytes]]


def inline(env: Env, plan: CleanPlan, on_output: OnOutput = no_output, **options: Any) -> CleanResult:
    """Return the plain engine."""
    return plain_round.clean(env, plan, on_output=on_output, **options)


def one_by_one(
    env: Env, plan: CleanPlan, on_output: OnOutput = no_output, *, limits: EngineLimits = ENGINE_LIMITS, **options: Any
) -> CleanResult:
    """Return the plain engine without its fast path for plain batches: the reference."""
    return plain_round.clean(env, plan, on_output=on_output, limits=replace(limits, parsed_bytes=0), **options)


def compiled_(env: Env, plan: CleanPlan, on_output: OnOutput = no_output, **options: Any) -> CleanResult:
    """Return the compiled engine."""
    return compiled.clean(env, plan, on_output=on_output, **options)


def on_spark(
    env: Env,
    plan: CleanPlan,
    on_output: OnOutput = no_output,
    *,
    limits: EngineLimits = ENGINE_LIMITS,
    task_limits: Any = None,
    context: Any = None,
    **options: Any,
) -> CleanResult:
    """A divided round on Spark, over copies of the files on disk. Its tasks run in this process unless a `context` is given."""
    from diamant.cleaner.spark.clean.job import CleanJob

    return _by_job(CleanJob, env, plan, on_output, limits, task_limits, context, **options)


def whole_on_spark(
    env: Env, plan: CleanPlan, on_output: OnOutput = no_output, *, limits: EngineLimits = ENGINE_LIMITS, **_: Any
) -> CleanResult:
    """Return a round on Spark that is one task, in the same way."""
    from diamant.cleaner.spark.clean.whole_round import WholeRound

    return _by_job(WholeRound, env, plan, on_output, limits)


def _by_job(
    new_job: Callable[..., Any],
    env: Env,
    plan: CleanPlan,
    on_output: OnOutput,
    limits: EngineLimits,
    task_limits: Any = None,
    context: Any = None,
    **options: Any,
) -> CleanResult:
    from diamant.cleaner.spark.clean.staged_outputs import take_over
    from diamant.cleaner.spark.clean.task_limits import TaskLimits
    from diamant.cleaner.spark.environment.locations import Location

    real = RealEnv(SettableClock(plan.now_ms))
    with tempfile.TemporaryDirectory() as place:
        here = copied(env, plan, Path(place, "t-0"))
        target = Location(f"{place}/staging")
        try:
            manifest = new_job(
                context or OneProcess(),
                here,
                source=Location(here.directory),
                target=target,
                limits=task_limits or TaskLimits(limits),
                **options,
            ).run()
        except (CorruptLog, OutputOverflow) as error:
            error.path = error.path.replace(here.directory, plan.directory)
            raise
        for staged in manifest.outputs:
            assert take_over(real, here, staged, target, never_done) == staged.output
            bring_back(env, plan, Path(here.directory))
            on_output(staged.output)
        return manifest.result()


def in_parts(
    env: Env, plan: CleanPlan, on_output: OnOutput = no_output, *, processes: int = 2, **options: Any
) -> CleanResult:
    """Return the compiled engine in several processes, over copies of the files on disk."""
    with tempfile.TemporaryDirectory() as place:
        here = copied(env, plan, Path(place, "t-0"))

        def give(output: OutputSegment) -> None:
            bring_back(env, plan, Path(here.directory), output.base_offset)
            on_output(output)

        try:
            real = RealEnv(SettableClock(plan.now_ms))
            return parallel_engine.engine_for(processes)(real, here, on_output=give, **options)
        except (CorruptLog, OutputOverflow) as error:
            error.path = error.path.replace(here.directory, plan.directory)
            raise
        finally:
            assert not list(Path(here.directory).glob(f"*{names.CLEANED_SUFFIX}"))


ENGINES: dict[str, Engine] = {
    "inline": inline,
    "one by one": one_by_one,
    "compiled": compiled_,
    "in parts": in_parts,
    "Spark": on_spark,
    "Spark, whole": whole_on_spark,
}

LOCAL = ("inline", "one by one", "compiled")
"""Those that are told when to stop and how fast they may be by the caller's own functions."""


def copied(env: Env, plan: CleanPlan, directory: Path) -> CleanPlan:
    """Return a plan over copies of its files on disk."""
    directory.mkdir(parents=True)
    for name in env.list_dir(plan.directory):
        (directory / name).write_bytes(env.read_bytes(f"{plan.directory}/{name}"))
    return replace(plan, directory=str(directory))


def bring_back(env: Env, plan: CleanPlan, directory: Path, base_offset: int | None = None) -> None:
    """Move the files written in the copy to the original directory, for one output or for all."""
    for path in directory.glob(f"{'*' if base_offset is None else f'{base_offset:020d}.*'}{names.CLEANED_SUFFIX}"):
        file = env.create_new(f"{plan.directory}/{path.name}")
        file.append(path.read_bytes())
        file.close()
        env.set_mtime_ms(f"{plan.directory}/{path.name}", path.stat().st_mtime_ns // 1_000_000)
        path.unlink()


def outcome(engine: Engine, env: Env, plan: CleanPlan) -> Outcome:
    """Return an engine's result or error, and the content of its files, which are then removed."""
    try:
        fields = asdict(engine(env, plan))
        for time_of in ("start_s", "map_complete_s", "end_s"):
            del fields["stats"][time_of]
        del fields["runner"]
    except (CorruptLog, OutputOverflow) as error:
        fields = {
            "error": CorruptLog if isinstance(error, CorruptLog) else OutputOverflow,
            "path": error.path,
            "position": getattr(error, "position", None),
        }
    files = {}
    for name in env.list_dir(plan.directory):
        if name.endswith(names.CLEANED_SUFFIX):
            path = f"{plan.directory}/{name}"
            files[name] = env.read_bytes(path)
            if names.TXN_INDEX_SUFFIX not in name:
                files[f"{name} time"] = str(env.mtime_ms(path)).encode()
            env.remove(path)
    return fields, files
