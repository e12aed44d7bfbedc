"""What tasks of a cleaning job do, without Spark around them: the bytes of the plain engine for any history."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.spark.clean import job as clean_job
from diamant.cleaner.spark.clean import key_tuples, parts, survivors, tasks
from diamant.cleaner.spark.clean.job import CleanJob, Progress
from diamant.cleaner.spark.environment.locations import Location
from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import scan_headers
from tests.cleaner.engines.random_history import histories, play
from tests.cleaner.prompt.segment_history import SegmentHistory
from tests.cleaner.spark.clean.clean_job_check import copied, plain_outcome, spark_outcome
from tests.cleaner.spark.one_process import OneProcess
from tests.effort import examples


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.sampled_from(MODES), st.data())
def test_any_round_over_any_history_gives_the_bytes_of_the_plain_engine(
    steps: list[Any], mode: str, data: st.DataObject
) -> None:
    """Strategy: every kind of batch, any range, cut into any parts and partitions, tiny tables. Invariant: all is equal."""
    env, plan = play(steps).stored(mode=mode)
    plan = ended_before(plan, data.draw(st.sampled_from([0, 0, 0, 1]), "segments above"))
    end = plan.first_uncleanable_offset
    plan = replace(
        plan,
        first_dirty_offset=data.draw(st.integers(0, end), "first dirty"),
        log_start_offset=data.draw(st.sampled_from([0, 0, 1, end // 2]), "log start"),
        segment_bytes=data.draw(st.sampled_from([1 << 30, 600, 100]), "segment bytes"),
        segment_index_bytes=data.draw(st.sampled_from([1 << 20, 1 << 20, 24]), "index bytes"),
        index_interval_bytes=data.draw(st.sampled_from([200, 1]), "index interval"),
        active_producers=data.draw(st.sampled_from([plan.active_producers, {}]), "producers"),
        map_max_entries=data.draw(st.sampled_from([1, 2, 3, 1000]), "map entries"),
        io_buffer_bytes=data.draw(st.sampled_from([4096, 100]), "buffer"),
        hash_key=data.draw(st.sampled_from([bytes(16), bytes(range(16))]), "hash key"),
    )
    if mode == PROMPT:
        clean = [one.base_offset for one in plan.segments if one.next_base_offset <= plan.first_dirty_offset]
        plan = replace(
            plan,
            quarantined=data.draw(some_of([segment.base_offset for segment in plan.segments]), "quarantined"),
            untouched=data.draw(some_of(clean), "untouched"),
            horizons_frozen_above=data.draw(st.sampled_from([None, None, end // 2]), "frozen above"),
            segments=tuple(replace(one, largest_timestamp=place) for place, one in enumerate(plan.segments)),
            expiry_slice_ms=data.draw(st.sampled_from([None, None, 0, 1]), "slice"),
        )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(
            "diamant.cleaner.segments.row_reader.READ_BYTES", data.draw(st.sampled_from([150, 1000, 1 << 16]))
        )
        patch.setattr("diamant.cleaner.engines.offset_map.MIN_SLOTS", data.draw(st.sampled_from([3, 5, 64])))
        patch.setattr("diamant.cleaner.segments.key_hasher.TUPLES", data.draw(st.sampled_from([1, 3, 1 << 10])))
        patch.setattr(key_tuples, "TABLE_BYTES", data.draw(st.sampled_from([72, 1 << 20])))
        patch.setattr(survivors, "MAP_BYTES", data.draw(st.sampled_from([72, 1 << 20])))
        patch.setattr(survivors, "SPOOL_BYTES", data.draw(st.sampled_from([1, 1 << 20])))
        patch.setattr(parts, "_cuts", cuts_between_batches)
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


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1, 61])
def test_an_index_that_points_wrongly_takes_no_record_along(more: int, tmp_path: Path) -> None:
    """Neither where the dirty range begins nor where a segment is cut: the bytes are those of a round with a sound one."""
    history = SegmentHistory()
    for number in range(40):
        history.batch([(b"key-%d" % (number % 7), bytes(20))])
    history.roll()
    memory, plan = history.stored(mode=PROMPT, first_dirty_offset=15)
    here = copied(memory, plan, tmp_path / "t-0")
    log = (tmp_path / "t-0" / f"{0:020d}.log").read_bytes()
    begins = [position for position, _ in iter_headers(log)]
    lasts = [header.last_offset for _, header in iter_headers(log)]
    # Each names a batch behind its own, or bytes within that.
    entries = [(lasts[number], begins[number + 5] + more) for number in range(3, 30)]
    index = b"".join(number.to_bytes(4, "big") for entry in entries for number in entry)
    (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(index)
    _, files = spark_outcome(OneProcess(), here, tmp_path / "place", part_bytes=500, partitions=2)
    assert files == plain_outcome(memory, plan)[1] != {}


def ended_before(plan: CleanPlan, count: int) -> CleanPlan:
    """A round that ends that many segments earlier: what aborts only there, it is told of."""
    if not 0 < count < len(plan.segments):
        return plan
    taken, above = plan.segments[:-count], plan.segments[-count:]
    end = above[0].base_offset
    later = tuple(one for segment in above for one in segment.aborted if one.first_offset < end)
    return replace(plan, segments=taken, first_uncleanable_offset=end, later_aborted=later)


def some_of(bases: list[int]) -> st.SearchStrategy[frozenset[int]]:
    """None of them, or up to two."""
    if not bases:
        return st.just(frozenset())
    return st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(bases), max_size=2))


def cuts_between_batches(env: Env, plan: CleanPlan, segment: SegmentPlan, part_bytes: int) -> Iterator[int]:
    """As `parts._cuts`, of segments that have no index."""
    file = env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
    due = part_bytes
    for position, _ in scan_headers(file, 0, segment.size):
        if position >= due:
            yield position
            due = position + part_bytes
    file.close()


def test_every_field_of_a_plan_is_thought_of() -> None:
    """A new field is drawn above, or stands here with why it need not be: or Spark would not heed it, and nobody notice."""
    drawn = {
        *("segments", "first_dirty_offset", "first_uncleanable_offset", "log_start_offset", "mode", "segment_bytes"),
        *("segment_index_bytes", "index_interval_bytes", "active_producers", "map_max_entries", "io_buffer_bytes"),
        *("hash_key", "later_aborted", "expiry_slice_ms", "untouched", "quarantined", "horizons_frozen_above"),
    }
    by_histories = {"now_ms", "delete_retention_ms"}  # they have horizons before, at and after it
    names_only = {"directory", "topic", "partition"}
    elsewhere = {"io_max_bytes_per_second"}  # the next test
    of_no_engine = {"max_message_bytes"}
    of_reports = {"map_load_factor"}  # how full the map is, in figures and logs
    local_only = {"map_memory_bytes"}  # a partition's map has survivors.MAP_BYTES
    known = drawn | by_histories | names_only | elsewhere | of_no_engine | of_reports | local_only
    assert {field.name for field in fields(CleanPlan)} == known


@pytest.mark.slow
def test_tasks_keep_to_the_rate_whatever_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions, keys, the end of Kafka's map, and the rewrite: what is read and written is counted, with the right rate."""
    history = SegmentHistory()
    for number in range(8):
        history.batch([(b"k%d" % number, b"v")], producer=11, is_transactional=True)
        history.marker(11, "abort" if number == 2 else "commit")
        history.roll()
    memory, plan = history.stored(mode=KAFKA, map_max_entries=3, io_max_bytes_per_second=1000.0)
    here = copied(memory, plan, tmp_path / "t-0")
    counted: dict[tuple[str, float], int] = {}

    class Counting:
        def __init__(self, bytes_per_second: float) -> None:
            self.rate = bytes_per_second

        def __call__(self, count: int) -> None:
            at = (job.progress.step, self.rate)
            counted[at] = counted.get(at, 0) + count

    monkeypatch.setattr(tasks, "Throttle", Counting)
    monkeypatch.setattr(clean_job, "Throttle", Counting)
    job = CleanJob(OneProcess(), here, source=Location(here.directory), target=Location(f"{tmp_path}/place"))
    stats = job.run().stats
    whole = sum(segment.size for segment in plan.segments)
    # Once the map was full the first pass is made again. Two tasks run at a time, but for the one that looks for that end.
    assert counted == {
        ("reading transactions", 500.0): 2 * whole,
        ("map", 500.0): 2 * whole,
        ("finding where the map is full", 1000.0): counted["finding where the map is full", 1000.0],
        ("rewrite", 500.0): stats.bytes_read + stats.bytes_written,
    }
    looked = counted.pop(("finding where the map is full", 1000.0))
    assert stats.map_bytes_read <= looked <= whole
    assert job.progress.bytes == sum(counted.values()) + stats.map_bytes_read
    assert job.progress.tasks > 4 * len(plan.segments)


def test_patience_is_as_long_as_the_largest_task_may_take() -> None:
    """At a megabyte a second or, if they are told to be slower, so slowly; with what it writes; and half an hour on top."""
    progress = Progress(OneProcess())
    progress.begin("map", 256_000_000)
    assert (progress.step, progress.patience_s) == ("map", 1800 + 512)
    progress.begin("rewrite", 1_000_000_000, bytes_per_second=1e5)
    assert (progress.step, progress.patience_s) == ("rewrite", 1800 + 20_000)
