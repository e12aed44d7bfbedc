"""Tasks of a cleaning job, without Spark: their rate limits and their time limits."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.result import CheckDone, never_done
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.cleaner.spark.clean.progress import JobProgress
from diamant.cleaner.spark.environment.locations import Location
from tests.cleaner.engines.engines import copied
from tests.cleaner.facts.segment_history import SegmentHistory
from tests.cleaner.spark.one_process import OneProcess


class CountingThrottle(Throttle):
    """Counts the bytes of each step at each rate, and does not wait."""

    progress: JobProgress
    counted: ClassVar[dict[tuple[str, float], int]] = {}

    def __call__(self, count: int, check_done: CheckDone = never_done) -> None:
        """Count."""
        at = (self.progress.stage, self.bytes_per_second)
        self.counted[at] = self.counted.get(at, 0) + count


@pytest.mark.slow
def test_tasks_keep_to_the_rate_whatever_they_read(tmp_path: Path) -> None:
    """Transactions, keys, the end of Kafka's map, and the rewrite: bytes read and written are throttled at the right rate."""
    history = SegmentHistory()
    for number in range(8):
        history.batch([(b"k%d" % number, b"v")], producer=11, is_transactional=True)
        history.marker(11, "abort" if number == 2 else "commit")
        history.roll()
    memory, plan = history.stored(mode=KAFKA, map_max_entries=3, io_max_bytes_per_second=1000.0)
    here = copied(memory, plan, tmp_path / "t-0")
    source, target = Location(here.directory), Location(f"{tmp_path}/place")
    job = CleanJob(OneProcess(), here, source=source, target=target, new_throttle=CountingThrottle)
    counted = CountingThrottle.counted
    CountingThrottle.progress = job.progress
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
    """It is half an hour plus the time of its reads and writes at 1 MB/s, or at the rate limit if that is lower."""
    progress = JobProgress(OneProcess())
    progress.begin("map", 256_000_000)
    assert (progress.stage, progress.patience_s) == ("map", 1800 + 512)
    progress.begin("rewrite", 1_000_000_000, bytes_per_second=1e5)
    assert (progress.stage, progress.patience_s) == ("rewrite", 1800 + 20_000)
