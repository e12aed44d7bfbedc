"""Four ways to run a round, with the same bytes from all: the naive model, the inline runner, the process runner, Spark.

    python -m tests.cleaner.spark.clean.four_way --seeds 0-199
    python -m tests.cleaner.spark.clean.four_way --seeds 0-19 --cluster

One Spark session, one worker process and one thread run the rounds of all scenarios (`random_scenario`). The model has no
segments: its bytes are compared with all outputs joined. Of the others every file with its time, and the result, are compared.
Spark divides segments into parts of a few batches, and keys into several partitions. Exit code 1 if anything differs; the log
and the plan of such a round are left in `--keep`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OutputSegment
from diamant.cleaner.runners.contract import Runner
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.runners.process import ProcessRunner
from diamant.storage.env.env import RealEnv
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.engines.engines import Engine, Outcome, copied, on_spark, outcome
from tests.cleaner.naive_bytes import naive_bytes
from tests.cleaner.random_scenario import Scenario
from tests.cleaner.spark.command_session import add_session_options, chosen_session

PART_BYTES = (2000, 1 << 20, 5000)
PARTITIONS = (1, 2, 4)
NO_REST_S = 3600.0
"""The worker keeps its compiled engine from scenario to scenario, however long other engines take."""


@dataclass
class Count:
    """Counts of the comparisons."""

    scenarios: int = 0
    rounds: int = 0
    batches: int = 0
    output_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.scenarios} scenarios, {self.batches:,} batches, {self.rounds} rounds, "
            f"{self.output_bytes:,} bytes of cleaned segments"
        )


class FourWay:
    """The engines, for use by `with`. `context`: that of a Spark session; `place`: a directory to work in."""

    def __init__(self, context: Any, place: Path) -> None:
        self.count = Count()
        self.keep: Path | None = None
        self.model = naive_bytes
        self.engines: dict[str, Engine] = {
            "inline": lambda _, plan: self._run(self._inline, plan),
            "process": lambda _, plan: self._run(self._process, plan),
            "Spark": partial(on_spark, context=context),
        }
        self._place = place
        self._loop = asyncio.Runner()
        self._inline: Runner = InlineRunner(RealEnv())
        self._process = ProcessRunner(RealEnv(), niceness=0, idle_s=NO_REST_S)

    def __enter__(self) -> FourWay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._inline.close())
        self._loop.run(self._process.close())
        self._loop.close()

    def differences(self, seed: int) -> list[str]:
        """Return the differences in all rounds of a scenario; empty if there are none."""
        scenario = Scenario(seed)
        found = []
        for number, plan in enumerate(scenario.rounds(), 1):
            place = self._place / f"{seed}-{number}"
            differences = self._compare(scenario.log, plan, place, turn=seed + number)
            if differences and self.keep is not None:
                copied(scenario.log.env, plan, self.keep / place.name / "topic-0")
                (self.keep / place.name / "plan.json").write_text(plan.to_json())
            found += [f"seed {seed}, round {number} ({plan.mode}): {difference}" for difference in differences]
            shutil.rmtree(place)
        self.count.scenarios += 1
        self.count.batches += scenario.batches
        return found

    def _compare(self, log: CleanerLog, plan: CleanPlan, place: Path, turn: int) -> list[str]:
        real = copied(log.env, plan, place)
        expected = outcome(self.engines["inline"], RealEnv(), real)
        outcomes = {
            "process": outcome(self.engines["process"], RealEnv(), real),
            "Spark": outcome(
                partial(
                    self.engines["Spark"],
                    part_bytes=PART_BYTES[turn % len(PART_BYTES)],
                    partitions=PARTITIONS[turn // 2 % len(PARTITIONS)],
                ),
                RealEnv(),
                real,
            ),
        }
        written = b"".join(content for name, content in sorted(expected[1].items()) if name.endswith(".log.cleaned"))
        self.count.rounds += 1
        self.count.output_bytes += len(written)
        found = [] if written == self.model(log, plan) else ["the inline runner does not write what the model has"]
        for name, got in outcomes.items():
            found += [f"{name}: {what} differs from the inline runner's" for what in _differing(expected, got)]
        return found

    def _run(self, runner: Runner, plan: CleanPlan) -> CleanResult:
        return self._loop.run(runner.run(plan, on_output=_leave))


async def _leave(output: OutputSegment) -> None:
    """Leave an output where it is."""


def _differing(expected: Outcome, got: Outcome) -> list[str]:
    """Return the names of files, or fields of the result, that differ."""
    found = []
    for before, after in zip(expected, got, strict=True):
        found += [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return found


def seeds_of(text: str) -> range:
    """Seeds from "7" or "0-199"."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="four_way", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=seeds_of, default=range(200), help="scenarios (default: 0-199)")
    add_session_options(parser)
    parser.add_argument("--keep", type=Path, help="directory for the logs of rounds in which something differs")
    chosen = parser.parse_args(arguments)
    start_s = time.monotonic()
    failed = 0
    with (
        chosen_session(chosen, "four-way") as session,
        tempfile.TemporaryDirectory(prefix="four-way-") as place,
        FourWay(session.sparkContext, Path(place)) as engines,
    ):
        engines.keep = chosen.keep
        for seed in chosen.seeds:
            differences = engines.differences(seed)
            failed += bool(differences)
            print("\n".join(differences) or f"seed {seed}: equal", flush=True)
    print(f"{engines.count} in {time.monotonic() - start_s:.0f} s: ", end="")
    print(f"{failed} scenarios differ" if failed else "naive == inline == process == Spark, byte for byte")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
