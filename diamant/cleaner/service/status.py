"""What the cleaner tells about itself: the gauges of Kafka's LogCleaner, and the same per partition.

The cleaner fills it when asked; nothing is kept up to date for it in between. Names are those of Kafka's MBeans, unit last.
Counts (`…_removed`, `rounds`, `io_bytes_total`) begin at zero with the process and only grow; all else is as of now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diamant.cleaner.rules.result import MARKER


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How clean a partition of a compacted topic is, and what the cleaner did there."""

    topic: str
    partition: int
    dirty_ratio: float = 0.0
    """Bytes cleanable by bytes cleaned and cleanable, 0 to 1, as of the last scan."""
    must_clean_ratio: float = 0.0
    """Bytes cleanable that have outlived max.compaction.lag.ms by the same bytes as above, as of the last scan (KIP-354)."""
    compaction_lag_ms: int = 0
    """Age of the oldest record that no round has been over, at most; 0 if there is none. With a segment in quarantine no
    round is over all of the log, so this grows on from where the segment was cleaned last."""
    overdue_ms: int = 0
    """Since when the oldest of what is due is due: max.compaction.lag.ms, the horizon of a tombstone or marker; 0: nothing."""
    last_cleaned_ms: int | None = None
    """Wall clock at the end of the last round, before the start, too; None if none is known."""
    records_removed: Mapping[str, int] = field(default_factory=dict)
    """By reason (`result.REASONS`), markers of transactions under theirs."""
    bytes_removed: Mapping[str, int] = field(default_factory=dict)
    """By reason, as encoded in their batches before compression."""
    rounds: Mapping[str, int] = field(default_factory=dict)
    """Finished rounds by the runner that did them (`inline`, `process`, ...)."""
    uncleanable_reason: str | None = None
    """Why the cleaner leaves the partition alone; None if it does not."""
    quarantined: tuple[str, ...] = ()
    """Segments that cannot be read and are left out: file, position and reason of each (mode prompt)."""

    @property
    def markers_removed(self) -> int:
        """How many markers of transactions went."""
        return self.records_removed.get(MARKER, 0)

    @property
    def data_removed(self) -> int:
        """How many data records went."""
        return sum(self.records_removed.values()) - self.markers_removed

    @property
    def trouble(self) -> str | None:
        """Why the cleaner leaves the partition, or a part of it, alone; None if it does not."""
        return "; ".join(self.quarantined) or None if self.uncleanable_reason is None else self.uncleanable_reason


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round under way."""

    topic: str
    partition: int
    runner: str
    """Who is at it: `inline`, `process`, `spark`."""
    step: str
    """What the runner is doing, in a few words; empty if it does not tell."""
    log_bytes: int
    """Of the segments that the round is over."""
    log_bytes_done: int
    """The share of them that is done: what was read and written by what will be, of which outputs count as they are."""
    io_bytes: int
    """Read and written so far, as far as known: in the end two reads of the log and one of its outputs."""
    started_ms: int
    bytes_per_s: float | None = None
    """Bytes of log done in a second of real time; None while there is too little to tell."""
    left_s: float | None = None
    """Until it is over, at this rate."""


@dataclass(frozen=True, slots=True)
class CleanerStatus:
    """The whole cleaner. Every default is what Kafka shows before the first scan."""

    max_buffer_utilization_percent: float = 0.0
    """The fullest map of the last rounds of all threads."""
    cleaner_recopy_percent: int = 0
    """Bytes written by bytes read in the last rounds of all threads."""
    max_clean_time_secs: int = 0
    """The longest of the last rounds of all threads."""
    max_compaction_delay_secs: int = 0
    """The longest delay beyond max.compaction.lag.ms, seen when a log was last picked."""
    dead_thread_count: int = 0
    """Cleaner threads that ended by an error."""
    uncleanable_partitions_count: int = 0
    """Those that are left alone, or a segment of which is."""
    uncleanable_bytes: int = 0
    """Bytes that could be cleaned in those partitions, or bytes of those segments."""
    must_clean_partitions: int = 0
    """Those in which something closed has outlived max.compaction.lag.ms, also if it is held back (KIP-354)."""
    must_clean_ratio: float = 0.0
    """As of a partition, of all together."""
    max_dirty_percent: int = 0
    """The highest dirty ratio at the last scan."""
    time_since_last_run_ms: int = 0
    """Since the start of the last scan."""
    io_bytes_total: int = 0
    """Bytes read and written by the cleaner, as counted by its throttle (Kafka's meter cleaner-io)."""
    under_way: tuple[RoundStatus, ...] = ()
    """Rounds under way that a runner has begun."""
    partitions: tuple[PartitionStatus, ...] = ()
    """Ascending by topic and partition."""


def recopy_percent(bytes_read: int, bytes_written: int) -> int:
    """Return what share of the bytes read was written again, cut to whole percents (Kafka: cleaner-recopy-percent)."""
    return 100 * bytes_written // max(bytes_read, 1)
