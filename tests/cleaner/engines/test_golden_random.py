"""Random histories that Kafka's cleaner has worked on, pass for pass, and what it left: every rule is in some of them.

See tests/golden/cleaner/random/README.md.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from diamant.cleaner.rules.result import OutputOverflow
from tests.cleaner.engines.engines import Engine
from tests.cleaner.golden_pass import (
    GOLDEN,
    HAS_ORDINARY_ZLIB,
    Case,
    StoredFile,
    check_figures,
    check_files_left,
    check_times,
    logical,
    read_cases,
    run,
    segment_files,
)
from tests.effort import some

ARCHIVES = sorted((GOLDEN / "random").glob("*.tar.xz"))

SEEDS = (
    1006,
    1015,
    1021,
    1037,
    1046,
    1051,
    1052,
    1053,
    1057,
    1064,
    1073,
    1074,
    1076,
    1079,
    1081,
    1086,
    1096,
    1097,
    1104,
    1107,
    1111,
    1112,
    1113,
    1117,
    1129,
    1131,
    1144,
    1153,
    1161,
    1162,
    1167,
    1173,
    1182,
    1187,
    1198,
    1200,
    1206,
    1213,
    1215,
    1227,
    1241,
    1242,
)

RECORDS_ONLY = {(1081, 2), (1081, 3), (1081, 5), (1227, 1), (1227, 3)}
"""Seed and number of the passes in which a batch was compressed anew by snappy, and not with Kafka's bytes: its records are
equal. All other passes are equal byte for byte."""


@cache
def cases() -> dict[str, Case]:
    """Every case by its name."""
    found: dict[str, Case] = {}
    for archive in ARCHIVES:
        found |= read_cases(archive)
    return found


@pytest.mark.slow
def test_there_are_all_cases() -> None:
    """Each is run."""
    assert sorted(cases()) == sorted(f"random-{seed}" for seed in SEEDS)


@pytest.mark.parametrize("seed", some(SEEDS, every=3))
def test_a_history_becomes_what_kafka_makes_of_it(seed: int, engine: Engine) -> None:
    """Pass for pass the same files, times and figures, or an index that is too small where Kafka finds it so."""
    case = cases()[f"random-{seed}"]
    for number, step in enumerate(case.steps, 1):
        if "failed" in step["report"]:
            assert step["report"]["failed"] == "java.lang.IllegalArgumentException"
            with pytest.raises(OutputOverflow, match="the index is full"):
                run(case, step, engine)
            continue
        has_equal_bytes = (seed, number) not in RECORDS_ONLY and (case.fields["byte_equal"] or HAS_ORDINARY_ZLIB)
        check_pass(case, step, engine, has_equal_bytes=has_equal_bytes)


def check_pass(case: Case, step: dict[str, Any], engine: Engine, *, has_equal_bytes: bool) -> None:
    """One pass, started from Kafka's input."""
    want = case.directory(step["output"])
    report, got = run(case, step, engine)
    if has_equal_bytes:
        want_files, got_files = segment_files(want), segment_files(got)
        assert sorted(got_files) == sorted(want_files)
        assert [path for path in want_files if got_files[path] != want_files[path]] == []
    else:
        assert list(logical(got)) == list(logical(want))
    log_start_offset = report.log_start_offset_after
    check_files_left(above_log_start(want, log_start_offset), above_log_start(got, log_start_offset))
    if has_equal_bytes:
        check_times(step, got)
    # What retention removed afterwards may have been compressed, too.
    check_figures(step, report, has_equal_sizes=case.fields["byte_equal"])


def above_log_start(files: dict[str, StoredFile], log_start_offset: int) -> dict[str, StoredFile]:
    """All but the producer snapshots up to the log start: nobody reads them, and Kafka removes them a bit sooner."""
    return {
        path: content
        for path, content in files.items()
        if not path.endswith(".snapshot") or int(path[8:28]) > log_start_offset
    }
