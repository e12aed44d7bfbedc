"""What tasks of a cleaning job do, without Spark around them: the bytes of the plain engine for any history."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner import compiled_round
from diamant.cleaner.modes import MODES, PROMPT
from diamant.cleaner.plan import CleanPlan, SegmentPlan
from diamant.cleaner.spark import clean_parts, key_tuples, survivors
from diamant.storage import names
from diamant.storage.env import Env
from diamant.storage.segment import scan_headers
from tests.cleaner.spark.clean_job_check import copied, plain_outcome, spark_outcome
from tests.cleaner.spark.one_process import OneProcess
from tests.cleaner.test_compiled_rewrite import histories, play
from tests.effort import examples


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.sampled_from(MODES), st.data())
def test_any_round_over_any_history_gives_the_bytes_of_the_plain_engine(
    steps: list[Any], mode: str, data: st.DataObject
) -> None:
    """Strategy: every kind of batch, any range, cut into any parts and partitions, tiny tables. Invariant: all is equal."""
    env, plan = play(steps).stored(mode=mode)
    end = plan.first_uncleanable_offset
    plan = replace(
        plan,
        first_dirty_offset=data.draw(st.integers(0, end), "first dirty"),
        log_start_offset=data.draw(st.sampled_from([0, 0, 1, end // 2]), "log start"),
        segment_bytes=data.draw(st.sampled_from([1 << 30, 600, 100]), "segment bytes"),
        map_max_entries=data.draw(st.sampled_from([1, 2, 3, 1000]), "map entries"),
    )
    if mode == PROMPT:
        clean = [one.base_offset for one in plan.segments if one.next_base_offset <= plan.first_dirty_offset]
        plan = replace(
            plan,
            quarantined=data.draw(some_of([segment.base_offset for segment in plan.segments]), "quarantined"),
            untouched=data.draw(some_of(clean), "untouched"),
            horizons_frozen_above=data.draw(st.sampled_from([None, None, end // 2]), "frozen above"),
        )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr("diamant.cleaner.chunk_reader.READ_BYTES", data.draw(st.sampled_from([150, 1000, 1 << 16])))
        patch.setattr("diamant.cleaner.offset_map.MIN_SLOTS", data.draw(st.sampled_from([3, 5, 64])))
        patch.setattr(compiled_round, "TUPLES", data.draw(st.sampled_from([1, 3, 1 << 10])))
        patch.setattr(key_tuples, "TABLE_BYTES", data.draw(st.sampled_from([72, 1 << 20])))
        patch.setattr(survivors, "MAP_BYTES", data.draw(st.sampled_from([72, 1 << 20])))
        patch.setattr(survivors, "SPOOL_BYTES", data.draw(st.sampled_from([1, 1 << 20])))
        patch.setattr(clean_parts, "_cuts", cuts_between_batches)
        options = {
            "part_bytes": data.draw(st.sampled_from([1, 300, 1 << 20]), "part bytes"),
            "partitions": data.draw(st.sampled_from([1, 4]), "partitions"),
        }
        here = copied(env, plan, Path(directory, "t-0"))
        plain, plain_files = plain_outcome(env, plan)
        spark, spark_files = spark_outcome(OneProcess(len(steps)), here, Path(directory, "place"), **options)
        if any(step[0] == "odd" for step in steps):
            for found in (plain, spark):
                found.get("stats", {}).clear()
        assert spark == plain
        assert spark_files == plain_files


def some_of(bases: list[int]) -> st.SearchStrategy[frozenset[int]]:
    """None of them, or up to two."""
    if not bases:
        return st.just(frozenset())
    return st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(bases), max_size=2))


def cuts_between_batches(env: Env, plan: CleanPlan, segment: SegmentPlan, part_bytes: int) -> Iterator[int]:
    """As `clean_parts._cuts`, of segments that have no index."""
    file = env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
    due = part_bytes
    for position, _ in scan_headers(file, 0, segment.size):
        if position >= due:
            yield position
            due = position + part_bytes
    file.close()
