"""Every golden pass of Kafka's cleaner on Spark, in one application: the same files, times and figures, byte for byte.

    python -m tests.cleaner.spark.clean.golden_passes --cluster
    python -m tests.cleaner.spark.clean.golden_passes --master spark://HOST:7077 --conf spark.executor.memory=512m

Segments are divided into parts of a few batches, and keys into four partitions. So even these small logs keep several tasks
busy, and executors read each other's shuffle. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from diamant.cleaner.offline.offline_clean import Engine
from diamant.cleaner.spark.clean import in_session
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.cleaner.engines.test_golden import PASSES, STEPS, case_of, check
from tests.cleaner.golden_pass import run
from tests.cleaner.spark.command_session import add_session_options, chosen_session

PART_BYTES = 2000
PARTITIONS = 4


def difference(engine: Engine, name: str, number: int) -> str | None:
    """Return the first difference between a pass and Kafka's output; None if there is none."""
    case = case_of(name)
    step = case.steps[number - 1]
    with tempfile.TemporaryDirectory(prefix="golden-") as root:
        try:
            check(case, number, *run(case, step, engine, RealEnv(SettableClock(step["now"])), root))
        except Exception as error:
            return f"{traceback.extract_tb(error.__traceback__)[-1].line} ({type(error).__name__}: {error})"
    return None


def whereabouts(context: Any) -> tuple[int, set[str]]:
    """Return the number of executors, and the locations of their code."""
    # Not a function of this module, which executors do not have.
    found = context.parallelize(range(8), 8).map(lambda _: __import__("diamant").__file__).collect()
    return context._jsc.sc().getExecutorMemoryStatus().size() - 1, set(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="golden_passes", description=__doc__.partition("\n")[0])
    add_session_options(parser)
    parser.add_argument("--cases", nargs="+", choices=PASSES, default=list(PASSES), help="default: all of them")
    parser.add_argument("--last", action="store_true", help="the last pass of each case alone")
    chosen = parser.parse_args(arguments)
    steps = [step for step in (PASSES.items() if chosen.last else STEPS) if step[0] in chosen.cases]
    failed = 0
    job = partial(CleanJob, part_bytes=PART_BYTES, partitions=PARTITIONS)
    with chosen_session(chosen, "golden") as session, patch.object(in_session, "CleanJob", job):
        engine = in_session.session_engine(session.sparkContext)
        start_s = time.monotonic()
        for name, number in steps:
            found = difference(engine, name, number)
            failed += found is not None
            print(f"{name}, pass {number}: {found or 'equal'}", flush=True)
        took_s = time.monotonic() - start_s
        executors, code = whereabouts(session.sparkContext)
        print(f"{executors} executors, with the code from {', '.join(sorted(code))}")
    print(f"{len(steps)} passes of {len(chosen.cases)} cases in {took_s:.0f} s: {failed} differ from what Kafka leaves")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
