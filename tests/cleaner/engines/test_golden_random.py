"""Random histories with the output of each pass of Kafka's cleaner. Together they exercise every rule.

See tests/golden/cleaner/random/README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from diamant.cleaner.offline.offline_clean import OfflineReport
from diamant.cleaner.rules.modes import KAFKA_4_3, KAFKA_4_4
from diamant.cleaner.rules.result import OutputOverflow
from tests.cleaner.engines.engines import Engine
from tests.cleaner.golden_pass import (
    GOLDEN,
    HAS_ORDINARY_ZLIB,
    Case,
    StoredFile,
    as_in,
    check_pass,
    read_cases,
    run,
)
from tests.effort import some

RunPass = Callable[[Case, dict[str, Any]], tuple[OfflineReport, dict[str, StoredFile]]]

ARCHIVES = sorted((GOLDEN / "random").glob("*.tar.xz"))

SEEDS = (
    1006, 1015, 1021, 1037, 1046, 1051, 1052, 1053, 1057, 1064, 1073, 1074, 1076, 1079,
    1081, 1086, 1096, 1097, 1104, 1107, 1111, 1112, 1113, 1117, 1129, 1131, 1144, 1153,
    1161, 1162, 1167, 1173, 1182, 1187, 1198, 1200, 1206, 1213, 1215, 1227, 1241, 1242,
)  # fmt: skip

DIFFERS = (1021, 1241)
"""Histories of which Kafka 4.3 and 4.4 leave different bytes."""

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


def check(seed: int, run_pass: RunPass, version: str = KAFKA_4_4) -> None:
    """Each pass of a history, with Kafka's input, gives Kafka's output, or fails as Kafka does because an index is too small."""
    case = as_in(version, cases()[f"random-{seed}"])
    for number, step in enumerate(case.steps, 1):
        if "failed" in step["report"]:
            assert step["report"]["failed"] == "java.lang.IllegalArgumentException"
            with pytest.raises(OutputOverflow, match="the index is full"):
                run_pass(case, step)
            continue
        report, got = run_pass(case, step)
        has_equal_bytes = (seed, number) not in RECORDS_ONLY and (case.fields["byte_equal"] or HAS_ORDINARY_ZLIB)
        # What retention removed afterwards may have been compressed, too.
        has_equal_sizes = case.fields["byte_equal"]
        want = case.directory(step["output"])
        check_pass(step, want, got, report, has_equal_bytes=has_equal_bytes, has_equal_sizes=has_equal_sizes)


@pytest.mark.parametrize("seed", some(SEEDS, every=3))
def test_a_history_becomes_what_kafka_makes_of_it(seed: int, engine: Engine) -> None:
    """Each pass gives the same files, times and figures."""
    check(seed, lambda case, step: run(case, step, engine))


@pytest.mark.parametrize("seed", DIFFERS)
def test_a_history_becomes_what_kafka_4_3_makes_of_it(seed: int, engine: Engine) -> None:
    """Histories in which Kafka 4.3 leaves one empty batch more than later versions become what 4.3 makes of them."""
    check(seed, lambda case, step: run(case, step, engine), KAFKA_4_3)
