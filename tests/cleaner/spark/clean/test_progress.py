"""The progress of a task before its end."""

from __future__ import annotations

import os
from pathlib import Path

from diamant.cleaner.spark.clean.in_session import new_round, size_of
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.cleaner.spark.clean.progress import CountingThrottle, JobProgress, bytes_told
from diamant.cleaner.spark.clean.whole_round import WholeRound
from diamant.cleaner.spark.environment.locations import Location
from tests.cleaner.runners.rounds import make_log, plan_of
from tests.cleaner.spark.one_process import OneProcess


def test_the_driver_sees_the_bytes_of_a_task_that_has_not_ended(tmp_path: Path) -> None:
    """The driver sees them at intervals; the number never falls, even if another attempt begins, and the accumulator decides at
    the end.
    """
    place = Location(str(tmp_path))
    job = JobProgress(OneProcess(), place)  # type: ignore[arg-type]
    throttled: list[int] = []
    with CountingThrottle(place, throttled.append, interval_s=0) as task:
        assert job.bytes == 0
        task(100)
        task(20)
        assert job.bytes == 120
    with CountingThrottle(place, throttled.append, interval_s=3600) as again:
        again(7)
        again(7)
        assert (bytes_told(place), job.bytes) == (7, 120)
    assert throttled == [100, 20, 7, 7]
    job.done.add(150)
    assert (job.bytes, job.tasks) == (150, 1)


def test_progress_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """Progress may fail to be written on a full disk, where the outputs tell the error, or in an object store."""
    for place in (Location(f"{tmp_path}/gone"), Location("bucket/job", "s3://")):
        with CountingThrottle(place, lambda _: None, interval_s=0) as task:
            task(100)
        assert bytes_told(place) == 0
    assert not os.listdir(tmp_path)


def test_progress_reaches_the_bytes_of_the_round(tmp_path: Path) -> None:
    """Read twice and written once: the last number in the file is at most the total, which the end of the task tells."""
    log = make_log(tmp_path)
    place = Location(f"{tmp_path}/place")
    job = WholeRound(OneProcess(), plan_of(log), source=Location(log.path), target=place)  # type: ignore[arg-type]
    stats = job.run().stats
    assert job.progress.bytes == stats.map_bytes_read + stats.bytes_read + stats.bytes_written
    assert 0 < bytes_told(place) <= job.progress.bytes


def test_only_what_is_larger_than_a_whole_round_is_divided(tmp_path: Path) -> None:
    """The bytes of the plan's segments decide."""
    log = make_log(tmp_path)
    plan, source = plan_of(log), Location(log.path)
    for whole_bytes, kind in ((size_of(plan), WholeRound), (size_of(plan) - 1, CleanJob)):
        place = Location(f"{tmp_path}/{whole_bytes}")
        job = new_round(OneProcess(), plan, source=source, target=place, whole_bytes=whole_bytes)  # type: ignore[arg-type]
        assert isinstance(job, kind)
