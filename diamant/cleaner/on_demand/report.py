"""The result of compacting a topic on demand: a report for each partition, and the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.cleaner.rules.record_kinds import MARKERS
from diamant.words import counted, moment, size

CLEAN = "clean"
"""Of the records that existed at the time of the request, none is left that was superseded or had expired."""
TOMBSTONES_GONE = "tombstones-gone"
"""Like `CLEAN`, but no tombstone is left either."""
UNTIL = (CLEAN, TOMBSTONES_GONE)

# Reasons why rounds may not touch some records.
OPEN_TRANSACTION = "open_transaction"
MIN_COMPACTION_LAG = "min_compaction_lag"

# Reasons why a partition could not be compacted.
NOT_COMPACTED = "not-compacted"
DELETED = "deleted"
STOPPING = "stopping"
UNCLEANABLE = "uncleanable"
QUARANTINED = "quarantined"


MAX_COUNTED_BYTES = 1024 * 1024 * 1024
"""Maximum number of bytes that are read to count a partition's records. This takes up to a second of processor time."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Offsets that existed at the time of the request, but that no round may touch yet."""

    reason: str
    """OPEN_TRANSACTION or MIN_COMPACTION_LAG."""
    first_offset: int
    """The first of these offsets, which is the base offset of a segment."""
    end_offset: int
    """Exclusive end of these offsets."""
    bytes: int
    producer_id: int | None = None
    """The producer of the open transaction."""
    transaction_first_offset: int | None = None
    transactional_id: str | None = None
    """None if no coordinator knows the transaction."""
    since_ms: int | None = None
    """Start time of the transaction; None if it is unknown."""
    aborts_ms: int | None = None
    """The latest time at which the coordinator will abort the transaction."""
    until_ms: int | None = None
    """Time from which `min.compaction.lag.ms` holds back none of these offsets; None for a transaction."""

    def text(self, topic: str, partition: int) -> str:
        """Return the reason in words."""
        where = f"offsets {self.first_offset:,} to {self.end_offset - 1:,} of {topic}-{partition} ({size(self.bytes)})"
        if self.reason == MIN_COMPACTION_LAG:
            until = moment(self.until_ms)
            return f"min.compaction.lag.ms keeps {where} from being cleaned until {until}; force ignores it"
        opened = self.transaction
        abort = opened.abort_command(topic, partition)
        return f"{opened.text}, keeps {where} from being cleaned; {opened.end_text}; to abort it: {abort}"

    @property
    def transaction(self) -> OpenTransaction:
        """The open transaction, if that is the reason."""
        first = -1 if self.transaction_first_offset is None else self.transaction_first_offset
        return OpenTransaction(self.producer_id, first, self.since_ms, self.aborts_ms, self.transactional_id)

    def to_fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return {name: getattr(self, name) for name in HeldBack.__slots__}


@dataclass(frozen=True, slots=True)
class PartitionCompaction:
    """The result for one partition. Its before and after values cover offsets that existed at the time of the request."""

    topic: str
    partition: int
    first_dirty_offset: int | None
    """Start of the part that no round had cleaned yet; None if unknown."""
    cleaned_to_offset: int | None
    """Below this offset, the log is clean now; None if unknown."""
    asked_offset: int
    """End of the log at the time of the request; later appends need not be covered."""
    rounds: int
    """Number of rounds that cleaned the partition during the call, whether or not the call requested them."""
    runners: tuple[str, ...]
    """The distinct runners of these rounds."""
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    removed: Mapping[str, int]
    """Number of removed records by reason (`result.REASONS`). Transaction markers have a reason of their own."""
    removed_bytes: Mapping[str, int]
    """Uncompressed bytes of the removed records, by reason."""
    kept: Mapping[str, int] | None
    """Number of remaining records by kind, and of records held back by reason; `markers` includes all markers. None if they were
    not counted, for example because more than `MAX_COUNTED_BYTES` would have to be read."""
    held_back: HeldBack | None
    horizon_ms: int | None
    """Horizon of the last remaining tombstone; None if none is left, or if it is unknown."""
    started_ms: int
    """Start time by the broker's clock; `ended_ms` uses the same clock."""
    ended_ms: int
    duration_ms: float
    """Duration in real time."""
    error_code: str | None = None
    error: str | None = None
    """Why the partition could not be compacted. Changes that were made before the error remain."""

    @property
    def records_after(self) -> int | None:
        """Number of records after the compaction, without markers; None if `kept` is None."""
        return None if self.kept is None else sum(self.kept.values()) - self.kept[MARKERS]

    @property
    def records_before(self) -> int | None:
        """Number of records before the compaction, without markers; None if `kept` is None."""
        gone = sum(self.removed.values()) - self.removed.get(MARKERS, 0)
        return None if self.records_after is None else self.records_after + gone

    @property
    def markers_after(self) -> int | None:
        """Number of transaction markers after the compaction; None if `kept` is None."""
        return None if self.kept is None else self.kept[MARKERS]

    @property
    def markers_before(self) -> int | None:
        """Number of transaction markers before the compaction; None if `kept` is None."""
        return None if self.markers_after is None else self.markers_after + self.removed.get(MARKERS, 0)

    @property
    def is_clean(self) -> bool:
        """True if nothing superseded is left."""
        return self.error is None and self.held_back is None

    def to_fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        counts = (f"{what}_{when}" for what in ("records", "markers") for when in ("before", "after"))
        fields = {name: getattr(self, name) for name in (*PartitionCompaction.__slots__, *counts, "is_clean")}
        fields["runners"] = list(self.runners)
        fields["removed"], fields["removed_bytes"] = dict(self.removed), dict(self.removed_bytes)
        fields["kept"] = None if self.kept is None else dict(self.kept)
        fields["held_back"] = None if self.held_back is None else self.held_back.to_fields()
        fields["duration_ms"] = round(self.duration_ms, 1)
        return fields


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result for a topic, or for one of its partitions."""

    topic: str
    until: str
    force: bool
    started_ms: int
    ended_ms: int
    duration_ms: float
    partitions: tuple[PartitionCompaction, ...] = field(default=())
    """The results for the partitions, in ascending order."""

    @property
    def is_clean(self) -> bool:
        """True if no partition has superseded records left."""
        return all(one.is_clean for one in self.partitions)

    @property
    def horizon_ms(self) -> int | None:
        """Horizon of the last remaining tombstone in any partition; None if there is none."""
        return max((one.horizon_ms for one in self.partitions if one.horizon_ms is not None), default=None)

    @property
    def is_reached(self) -> bool:
        """True if the request (`until`) is fulfilled now."""
        is_left = any(one.horizon_ms is not None for one in self.partitions)
        return self.is_clean and (self.until == CLEAN or not is_left)

    @property
    def held_text(self) -> str | None:
        """The first reason why records are held back, in words; None if none are."""
        held = [one for one in self.partitions if one.held_back is not None]
        if not held or held[0].held_back is None:
            return None
        more = f"; {counted(len(held) - 1, 'more partition')} held back" if len(held) > 1 else ""
        return held[0].held_back.text(self.topic, held[0].partition) + more

    @property
    def failed(self) -> tuple[PartitionCompaction, ...]:
        """Partitions that could not be compacted."""
        return tuple(one for one in self.partitions if one.error is not None)

    @property
    def removed(self) -> Mapping[str, int]:
        """Number of removed records in all partitions, by reason."""
        total: Counter[str] = Counter()
        for one in self.partitions:
            total.update(one.removed)
        return dict(total)

    def to_fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return {
            "topic": self.topic,
            "until": self.until,
            "force": self.force,
            "is_clean": self.is_clean,
            "is_reached": self.is_reached,
            "horizon_ms": self.horizon_ms,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "duration_ms": round(self.duration_ms, 1),
            "removed": self.removed,
            "max_counted_bytes": MAX_COUNTED_BYTES,
            "held_text": self.held_text,
            "partitions": [one.to_fields() for one in self.partitions],
        }
