"""Every golden pass of the cleaners of Kafka 4.4 and 4.3, run in mode kafka by each engine: the same files, byte for byte.

See tests/golden/cleaner/README.md for what the archives hold.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from diamant.cleaner.offline.offline_clean import OfflineReport
from diamant.cleaner.rules.modes import KAFKA_4_3, KAFKA_4_4
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OnOutput, OutputSegment
from diamant.cleaner.runners.process import ProcessRunner
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv
from tests.cleaner.engines.engines import ENGINES, Engine
from tests.cleaner.golden_pass import (
    GOLDEN,
    HAS_ORDINARY_ZLIB,
    Case,
    StoredFile,
    as_in,
    check_pass,
    logical,
    read_cases,
    run,
)

PASSES = {
    "basic_dups": 1,
    "client_offsets": 4,
    "client_transactions": 4,
    "codecs": 2,
    "compact_delete": 2,
    "compaction_lag": 5,
    "ends_of_rounds": 9,
    "grouping": 2,
    "idempotent_producers": 4,
    "index_limits": 1,
    "keyless_and_policy": 3,
    "large_batches": 1,
    "legacy_formats": 2,
    "legacy_mixed_sets": 2,
    "legacy_tombstones": 1,
    "log_append_time": 2,
    "map_full": 5,
    "replicated_gaps": 3,
    "stale_abort_entry": 2,
    "tombstone_horizon": 4,
    "txn_epoch_bump": 4,
    "txn_markers": 5,
}

RECOMPRESSED = ("codecs", "legacy_formats", "legacy_mixed_sets")
"""Cases with rebuilt compressed batches. With the compressors of requirements.txt and an ordinary zlib even these have
Kafka's bytes, in all of their passes; another zlib may well write others."""

DIFFERS = ("ends_of_rounds", "keyless_and_policy")
"""Cases of which Kafka 4.3 and 4.4 leave different bytes."""

STEPS = [(name, number) for name, count in PASSES.items() for number in range(1, count + 1)]


def case_of(name: str, version: str = KAFKA_4_4) -> Case:
    """Return a case by its name."""
    return as_in(version, read_cases(GOLDEN / f"{name}.tar.gz")[name])


@pytest.mark.slow
def test_there_are_all_cases() -> None:
    """Each archive is run, each pass of it."""
    assert {path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("*.tar.gz")} == set(PASSES)
    for name, count in PASSES.items():
        assert len(case_of(name).steps) == count


def check(case: Case, number: int, report: OfflineReport, got: dict[str, StoredFile]) -> None:
    """Compare the files of a pass with those of Kafka's cleaner; rebuilt compressed batches by their records, too."""
    step = case.steps[number - 1]
    is_recompressed = case.name in RECOMPRESSED
    has_equal_bytes = not is_recompressed or HAS_ORDINARY_ZLIB
    want = case.directory(step["output"])
    check_pass(step, want, got, report, has_equal_bytes=has_equal_bytes, has_equal_sizes=not is_recompressed)
    if is_recompressed:
        lines = [json.loads(line) for line in case.files[f"after-{number}.logical.jsonl"].splitlines()]
        assert list(logical(got)) == [line for line in lines if line["t"] in ("segment", "batch", "record", "txnindex")]


@pytest.mark.parametrize(("name", "number"), STEPS)
def test_a_pass_does_what_kafka_does(name: str, number: int, engine: Engine) -> None:
    """Bytes, records, checkpoints, snapshots, times and figures equal Kafka's."""
    case = case_of(name)
    check(case, number, *run(case, case.steps[number - 1], engine))


@pytest.mark.parametrize(("name", "number"), [step for step in STEPS if step[0] in DIFFERS])
def test_a_pass_does_what_kafka_4_3_does(name: str, number: int, engine: Engine) -> None:
    """The last batch of each round stays, at least as a header."""
    case = case_of(name, KAFKA_4_3)
    check(case, number, *run(case, case.steps[number - 1], engine))


@pytest.mark.parametrize("name", sorted(PASSES.keys() - set(DIFFERS)))
def test_other_passes_are_the_same_in_kafka_4_3(name: str) -> None:
    """One engine is enough for the comparison, since all take the plan's offset from the same place."""
    case = case_of(name, KAFKA_4_3)
    for number, step in enumerate(case.steps, 1):
        check(case, number, *run(case, step, ENGINES["compiled"]))


@pytest.mark.slow
async def test_a_worker_process_does_what_kafka_does(tmp_path: Path) -> None:
    """All passes, one after the other, by a worker, with files on the disk."""
    loop = asyncio.get_running_loop()

    def engine(_env: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        async def swap(output: OutputSegment) -> None:
            on_output(output)

        return asyncio.run_coroutine_threadsafe(runner.run(plan, on_output=swap), loop).result()

    runner = ProcessRunner(RealEnv())
    try:
        for name, number in STEPS:
            case = case_of(name)
            step = case.steps[number - 1]
            env = RealEnv(SettableClock(step["now"]))
            check(
                case, number, *await asyncio.to_thread(run, case, step, engine, env, str(tmp_path / f"{name}-{number}"))
            )
    finally:
        await runner.close()
