"""The metrics of the cleaner: the gauges of Kafka's LogCleaner, and corresponding figures for each partition.

`CleanerMetrics` counts while the process runs, and computes a `CleanerStatus` on request. Names are those of Kafka's MBeans, with
the unit at the end. Counts (`…_removed`, `rounds`, `io_bytes_total`) are zero when the process starts, and only grow; all other
figures are current values.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diamant.cleaner.facts.quarantine import CorruptSegment
from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.record_kinds import MARKERS
from diamant.cleaner.rules.result import CleanStats
from diamant.cleaner.service.partition_states import PartitionStates
from diamant.cleaner.service.round_requests import RoundReport
from diamant.progress import Reading
from diamant.storage.checkpoints.checkpoints import TopicPartition

MAX_FINISHED = 1_000
"""Maximum number of finished rounds to keep, at half a kilobyte each."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of a partition of a compacted topic, and the cleaner's work there."""

    topic: str
    partition: int
    dirty_ratio: float = 0.0
    """Cleanable bytes divided by clean and cleanable bytes, 0 to 1, as of the last scan."""
    must_clean_ratio: float = 0.0
    """Cleanable bytes older than max.compaction.lag.ms, divided by the same total, as of the last scan (KIP-354)."""
    compaction_lag_ms: int = 0
    """Upper bound on the age of the oldest record that no round has covered; 0 if there is no such record. While a segment is in
    quarantine, no round covers the whole log, so this age keeps growing."""
    overdue_ms: int = 0
    """Time since the oldest deadline (max.compaction.lag.ms, the horizon of a tombstone or marker); 0 if nothing is due."""
    last_cleaned_ms: int | None = None
    """Time at which the last round ended, even if an earlier process ran it; None if unknown."""
    records_removed: Mapping[str, int] = field(default_factory=dict)
    """Records removed, by reason (`result.REASONS`). Includes transaction markers, which have a separate reason."""
    bytes_removed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of removed records, by reason, as encoded in their batches before compression."""
    rounds: Mapping[str, int] = field(default_factory=dict)
    """Number of finished rounds, by runner (`inline`, `process`, ...)."""
    uncleanable_reason: str | None = None
    """The reason why the partition is uncleanable; None if it is cleanable."""
    quarantined: tuple[str, ...] = ()
    """File, position and reason of each segment that rounds leave out because it cannot be read (mode prompt)."""

    @property
    def markers_removed(self) -> int:
        """Number of transaction markers removed."""
        return self.records_removed.get(MARKERS, 0)

    @property
    def data_removed(self) -> int:
        """Number of data records removed."""
        return sum(self.records_removed.values()) - self.markers_removed

    @property
    def trouble(self) -> str | None:
        """The reason why the partition, or a part of it, is not cleaned; None if there is none."""
        return "; ".join(self.quarantined) or None if self.uncleanable_reason is None else self.uncleanable_reason


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round in progress."""

    topic: str
    partition: int
    runner: str
    """The runner: `inline`, `process`, `spark`."""
    progress: Reading
    """Progress in bytes of the plan's segments, computed from the I/O so far and the expected I/O. The expected I/O decreases
    as the sizes of outputs become known. The stage is empty if the runner does not report one."""
    io_bytes: int
    """Bytes that both passes have read and written so far, as far as known."""
    started_ms: int
    first_offset: int = 0
    """Base offset of the first segment that the round covers."""
    end_offset: int = 0
    """End of the round's range, exclusive."""


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A finished round."""

    topic: str
    partition: int
    runner: str
    ended_ms: int
    """End of the round, on the broker's clock."""
    took_s: float
    """Duration in real time."""
    bytes_read: int
    """Bytes of segments read by the second pass, which writes the outputs."""
    bytes_written: int
    removed: Mapping[str, int]
    """Records removed, by reason (`result.REASONS`)."""


@dataclass(frozen=True, slots=True)
class CleanerStatus:
    """The status of the whole cleaner. The defaults are Kafka's values before the first scan."""

    max_buffer_utilization_percent: float = 0.0
    """The highest utilization of the map, over the last round of each thread."""
    cleaner_recopy_percent: int = 0
    """Bytes written as a percentage of bytes read, over the last round of each thread."""
    max_clean_time_secs: int = 0
    """The longest duration, over the last round of each thread."""
    max_compaction_delay_secs: int = 0
    """The longest delay beyond max.compaction.lag.ms (`CleanerMetrics.max_delay_ms`)."""
    dead_thread_count: int = 0
    """Number of cleaner threads that have ended because of an error."""
    uncleanable_partitions_count: int = 0
    """Number of partitions that are uncleanable, or have a segment in quarantine."""
    uncleanable_bytes: int = 0
    """Cleanable bytes of the uncleanable partitions, and sizes of the quarantined segments."""
    must_clean_partitions: int = 0
    """Number of partitions with a closed segment older than max.compaction.lag.ms, even if it cannot be cleaned yet (KIP-354)."""
    must_clean_ratio: float = 0.0
    """Like `PartitionStatus.must_clean_ratio`, but over all partitions together."""
    max_dirty_percent: int = 0
    """The highest dirty ratio at the last scan."""
    time_since_last_run_ms: int = 0
    """Time since the start of the last scan."""
    io_bytes_total: int = 0
    """Bytes read and written by the cleaner, as counted by its throttle (Kafka's meter cleaner-io)."""
    in_progress: tuple[RoundStatus, ...] = ()
    """Rounds in progress that a runner has begun."""
    finished: tuple[FinishedRound, ...] = ()
    """The last `MAX_FINISHED` finished rounds, in the order in which they ended."""
    partitions: tuple[PartitionStatus, ...] = ()
    """Compacted partitions, ascending by topic and partition."""


def recopy_percent(bytes_read: int, bytes_written: int) -> int:
    """Return bytes written as a percentage of bytes read, rounded down (Kafka: cleaner-recopy-percent)."""
    return 100 * bytes_written // max(bytes_read, 1)


@dataclass(slots=True)
class _PartitionFigures:
    """Counts for one partition since the start of the process."""

    removed: Counter[str] = field(default_factory=Counter)
    removed_bytes: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The figures of a partition, as of the last scan."""

    range: CleanableRange
    at_ms: int
    due_ms: int | None
    """Time at which a round is or was due."""
    oldest_ms: int | None
    """Append time of the oldest record that no round has covered."""
    must_clean_bytes: int
    """Cleanable bytes older than `max.compaction.lag.ms`."""


class CleanerMetrics:
    """The counts of this process, and the findings of the last scan. Memory is bounded by the number of compacted partitions."""

    def __init__(self) -> None:
        self.scan_started_ms: int | None = None
        self.max_dirty_ratio = 0.0
        """The highest dirty ratio of the last scan."""
        self.max_delay_ms = 0
        """The longest delay found by the last scan or, in mode kafka, by the last scan that found a log to clean."""
        self._seen: dict[TopicPartition, _Seen] = {}
        self._partitions: dict[TopicPartition, _PartitionFigures] = {}
        self._last_rounds: dict[int, CleanStats] = {}
        """Statistics of the last round, by thread."""
        self._finished: deque[FinishedRound] = deque(maxlen=MAX_FINISHED)
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
        """Record the cleanable range of a partition; the arguments are as in `_Seen`."""
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
        self._finished.append(
            FinishedRound(
                *partition,
                result.runner,
                report.ended_ms,
                stats.end_s - stats.start_s,
                stats.bytes_read,
                stats.bytes_written,
                dict(stats.removed),
            )
        )

    def forget(self, partition: TopicPartition) -> None:
        """Drop a partition that was deleted."""
        self._seen.pop(partition, None)
        self._partitions.pop(partition, None)

    def status(
        self,
        compacted: Iterable[TopicPartition],
        states: PartitionStates,
        now_ms: int,
        *,
        dead_threads: int,
        io_bytes_in_progress: int,
        in_progress: Sequence[RoundStatus] = (),
        quarantined: Callable[[TopicPartition], Sequence[CorruptSegment]],
    ) -> CleanerStatus:
        """Compute the status; `compacted` are the partitions to include."""
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
            io_bytes_total=self._io_bytes + io_bytes_in_progress,
            in_progress=tuple(in_progress),
            finished=tuple(self._finished),
            partitions=tuple(
                self._partition_status(partition, states, now_ms, segments) for partition, segments in left_out.items()
            ),
        )

    def _partition_status(
        self, partition: TopicPartition, states: PartitionStates, now_ms: int, quarantined: Sequence[CorruptSegment]
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
        uncleanable = states.uncleanable.get(partition)
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
            uncleanable_reason=None if uncleanable is None else uncleanable.reason,
            quarantined=tuple(map(str, quarantined)),
        )


def _ratio(part_bytes: int, all_bytes: int) -> float:
    return part_bytes / all_bytes if all_bytes else 0.0
