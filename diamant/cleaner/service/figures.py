"""What the cleaner counts as it goes, and how that becomes the `CleanerStatus` that metrics show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from diamant.cleaner.prompt.quarantine import CorruptSegment
from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.result import CleanStats
from diamant.cleaner.service.cleaning_states import CleaningStates
from diamant.cleaner.service.round_report import RoundReport
from diamant.cleaner.service.status import CleanerStatus, PartitionStatus, RoundStatus, recopy_percent
from diamant.storage.checkpoints.checkpoints import TopicPartition


@dataclass(slots=True)
class _PartitionFigures:
    """Of one partition, since the start."""

    removed: Counter[str] = field(default_factory=Counter)
    removed_bytes: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A partition as of the last look."""

    range: CleanableRange
    at_ms: int
    due_ms: int | None
    """Since or from when a round is due."""
    oldest_ms: int | None
    """Since when the oldest record is there that no round has been over."""
    must_clean_bytes: int
    """Cleanable ones that have outlived `max.compaction.lag.ms`."""


class CleanerFigures:
    """Counts for as long as the process lives; bounded by the number of compacted partitions."""

    def __init__(self) -> None:
        self.scan_started_ms: int | None = None
        self.max_dirty_ratio = 0.0
        """Of the last scan."""
        self.max_delay_ms = 0
        """Of the last scan; in mode kafka of the last one that found a log to clean."""
        self._seen: dict[TopicPartition, _Seen] = {}
        self._partitions: dict[TopicPartition, _PartitionFigures] = {}
        self._last_rounds: dict[int, CleanStats] = {}
        """By thread."""
        self._io_bytes = 0

    def saw(
        self,
        partition: TopicPartition,
        found: CleanableRange,
        now_ms: int,
        due_ms: int | None,
        oldest_ms: int | None,
        must_clean_bytes: int,
    ) -> None:
        """Note what there is to clean at a partition; the arguments are as in `_Seen`."""
        self._seen[partition] = _Seen(found, now_ms, due_ms, oldest_ms, must_clean_bytes)

    def count(self, partition: TopicPartition, report: RoundReport, thread: int) -> None:
        """Add a finished round."""
        result = report.result
        assert result is not None
        stats = result.stats
        figures = self._partitions.setdefault(partition, _PartitionFigures())
        figures.removed.update(stats.removed)
        figures.removed_bytes.update(stats.removed_bytes)
        figures.rounds[result.runner] += 1
        self._last_rounds[thread] = stats
        self._io_bytes += stats.map_bytes_read + stats.bytes_read + stats.bytes_written

    def forget(self, partition: TopicPartition) -> None:
        """Drop a partition that was deleted."""
        self._seen.pop(partition, None)
        self._partitions.pop(partition, None)

    def status(
        self,
        compacted: Iterable[TopicPartition],
        states: CleaningStates,
        now_ms: int,
        *,
        dead_threads: int,
        io_bytes_under_way: int,
        under_way: Sequence[RoundStatus] = (),
        quarantined: Callable[[TopicPartition], Sequence[CorruptSegment]],
    ) -> CleanerStatus:
        """Return the status with these partitions."""
        rounds = self._last_rounds.values()
        left_out = {one: quarantined(one) for one in sorted(compacted)}
        seen = [self._seen[one] for one in left_out if one in self._seen]
        uncleanable = {*states.uncleanable, *(one for one, segments in left_out.items() if segments)}
        return CleanerStatus(
            max_buffer_utilization_percent=max((stats.map_utilization * 100 for stats in rounds), default=0.0),
            cleaner_recopy_percent=recopy_percent(
                sum(stats.bytes_read for stats in rounds), sum(stats.bytes_written for stats in rounds)
            ),
            max_clean_time_secs=int(max((stats.end_s - stats.start_s for stats in rounds), default=0.0)),
            max_compaction_delay_secs=self.max_delay_ms // 1000,
            dead_thread_count=dead_threads,
            uncleanable_partitions_count=len(uncleanable),
            uncleanable_bytes=sum(
                self._seen[one].range.cleanable_bytes for one in states.uncleanable if one in self._seen
            )
            + sum(sum(segment.size for segment in left_out[one]) for one in uncleanable - {*states.uncleanable}),
            must_clean_partitions=sum(one.range.is_overdue for one in seen),
            must_clean_ratio=_ratio(
                sum(one.must_clean_bytes for one in seen), sum(one.range.total_bytes for one in seen)
            ),
            max_dirty_percent=int(100 * self.max_dirty_ratio),
            time_since_last_run_ms=0 if self.scan_started_ms is None else max(0, now_ms - self.scan_started_ms),
            io_bytes_total=self._io_bytes + io_bytes_under_way,
            under_way=tuple(under_way),
            partitions=tuple(
                self._partition_status(partition, states, now_ms, segments) for partition, segments in left_out.items()
            ),
        )

    def _partition_status(
        self, partition: TopicPartition, states: CleaningStates, now_ms: int, quarantined: Sequence[CorruptSegment]
    ) -> PartitionStatus:
        figures = self._partitions.get(partition) or _PartitionFigures()
        seen = self._seen.get(partition)
        lag_ms = overdue_ms = 0
        if seen is not None:
            if seen.oldest_ms is not None:
                lag_ms = max(0, now_ms - seen.oldest_ms)
            if seen.range.delay_ms:
                overdue_ms = seen.range.delay_ms + max(0, now_ms - seen.at_ms)
            if seen.due_ms is not None:
                overdue_ms = max(overdue_ms, now_ms - seen.due_ms)
        found = states.uncleanable.get(partition)
        return PartitionStatus(
            topic=partition[0],
            partition=partition[1],
            dirty_ratio=0.0 if seen is None else seen.range.dirty_ratio,
            must_clean_ratio=0.0 if seen is None else _ratio(seen.must_clean_bytes, seen.range.total_bytes),
            compaction_lag_ms=lag_ms,
            overdue_ms=overdue_ms,
            last_cleaned_ms=states.last_cleaned_ms(partition),
            records_removed=dict(figures.removed),
            bytes_removed=dict(figures.removed_bytes),
            rounds=dict(figures.rounds),
            uncleanable_reason=None if found is None else found.reason,
            quarantined=tuple(map(str, quarantined)),
        )


def _ratio(part_bytes: int, all_bytes: int) -> float:
    return part_bytes / all_bytes if all_bytes else 0.0
