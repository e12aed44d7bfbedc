"""The plan of a round of the cleaner, as one frozen value, and the grouping of source segments into output segments.

The owner of a log makes a `CleanPlan` (`make_plan`), an engine carries it out and answers with a `CleanResult`. A plan holds
everything that the outcome depends on, the clock included, so that any engine, in any process, writes the same bytes. It
can be carried as JSON. A plan may be minutes old when its result is used: producers that became active since then protect
only batches that it does not touch.

Source: Kafka's LogToClean and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from diamant.cleaner.rules.modes import KAFKA, MODES
from diamant.storage.segments.txn_index import AbortedTxn

MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_SEGMENT_BYTES = 2**31 - 1
INDEX_ENTRY_BYTES = 8
TIME_INDEX_ENTRY_BYTES = 12

KAFKA_MAP_ENTRY_BYTES = 24
"""Bytes per key in Kafka's offset map: 16 bytes of MD5 and the offset (SkimpyOffsetMap)."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One source segment."""

    base_offset: int
    size: int
    """Bytes of the `.log` file that are valid."""
    index_bytes: int
    """Bytes of offset index entries."""
    time_index_bytes: int
    """Bytes of time index entries."""
    modified_ms: int
    """Time of the last write to the `.log` file; the output of a group takes that of its last source."""
    next_base_offset: int
    """Base offset of the segment that follows."""
    aborted: tuple[AbortedTxn, ...] = ()
    """The segment's index of aborted transactions, whole."""
    largest_timestamp: int = -1
    """The timestamp that retention judges its age by, in ms."""


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """The state that protects the last batch of a producer, so that its sequence and epoch outlive a cleaning."""

    producer_epoch: int
    last_data_offset: int | None
    """Last offset of the newest batch of the present epoch; None if there was none yet."""


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """One round for one partition."""

    directory: str
    """The partition's directory."""
    topic: str
    partition: int
    segments: tuple[SegmentPlan, ...]
    """Every segment below `first_uncleanable_offset`, from the very first, ascending."""
    log_start_offset: int
    first_dirty_offset: int
    """First offset of the map; need not be the boundary of a segment or batch."""
    first_uncleanable_offset: int
    """Exclusive end of the round: the base offset of a segment."""
    now_ms: int
    """The time of the whole round."""
    mode: str
    """`KAFKA` or `PROMPT`."""
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    max_message_bytes: int
    active_producers: Mapping[int, ActiveProducer]
    """By producer id."""
    map_max_entries: int
    """Mode kafka: how many keys the map takes; the round ends where one more would be needed."""
    map_memory_bytes: int
    """Mode prompt: what the map may take in memory. Engines that can spill do so past it."""
    io_buffer_bytes: int
    """Bytes of a segment read at a time; a larger batch is read whole."""
    hash_key: bytes
    """16 random bytes of the data directory, for engines that keep hashes of keys."""
    map_load_factor: float = 1.0
    """Mode kafka: the share of the map's table that `map_max_entries` keys are."""
    io_max_bytes_per_second: float = math.inf
    threads: int = 1
    """Processors that an engine may use, as far as it can: `log.cleaner.threads`, or a share of them."""
    later_aborted: tuple[AbortedTxn, ...] = ()
    """Aborted transactions with data below `first_uncleanable_offset` whose markers lie in segments from there on."""
    expiry_slice_ms: int | None = None
    """Mode prompt, policy compact,delete: segments are merged only if their ages differ by no more, see `group_segments`."""
    untouched: frozenset[int] = frozenset()
    """Mode prompt: base offsets of segments that the round would write again as they are, so they stay (`key_filter`)."""
    quarantined: frozenset[int] = frozenset()
    """Mode prompt: base offsets of corrupt segments: they are neither read nor replaced (`quarantine`)."""
    horizons_frozen_above: int | None = None
    """Tombstones and markers at higher offsets than this do not expire, whatever their horizon (`quarantine`)."""

    held_above: int | None = None
    """Tombstones of batches with a higher base offset wait for groups (`tombstone_hold`)."""
    held_since_ms: int = 0
    """They go if their horizon was over at this time, `diamant.tombstone.hold.max.ms` before `now_ms`."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}, expected one of {', '.join(MODES)}")

    @property
    def is_kafka(self) -> bool:
        """True if the round does as Kafka does."""
        return self.mode == KAFKA

    @property
    def has_dirty_range(self) -> bool:
        """True if a map is to be made; without one nothing goes but what has expired."""
        return self.first_dirty_offset < self.first_uncleanable_offset

    @property
    def first_dirty_segment(self) -> int:
        """Index of the segment in which the dirty range begins."""
        bases = [segment.base_offset for segment in self.segments]
        return max((index for index, base in enumerate(bases) if base <= self.first_dirty_offset), default=0)

    @property
    def has_aborted(self) -> bool:
        """True if any transaction aborted: if not, no batch of data goes on account of its own."""
        return bool(self.later_aborted) or any(segment.aborted for segment in self.segments)

    def map_utilization(self, keys: int) -> float:
        """Return how full a map with so many keys is, 0 to 1: in mode kafka, as in Kafka, its table, which is never filled."""
        most = self.map_max_entries if self.is_kafka else max(self.map_max_entries, keys)
        share = keys / most if most else 1.0
        return share * self.map_load_factor if self.is_kafka else share

    def is_frozen(self, offset: int) -> bool:
        """Tell whether what is at `offset` is kept from expiring."""
        return self.horizons_frozen_above is not None and offset > self.horizons_frozen_above

    def lets_expire(self, segment: int, offset: int, horizon_ms: int) -> bool:
        """Tell whether the round removes a tombstone, unless it ends before: of a batch with this horizon, in a segment."""
        if segment in self.untouched or segment in self.quarantined or horizon_ms > self.now_ms:
            return False
        return not self.is_frozen(offset) and not self.is_held(offset, horizon_ms)

    def is_held(self, offset: int, horizon_ms: int) -> bool:
        """Tell whether the tombstones of a batch at `offset` with this horizon wait for groups."""
        return self.held_above is not None and offset > self.held_above and horizon_ms > self.held_since_ms

    @property
    def legacy_tombstone_horizon_ms(self) -> int:
        """A tombstone of magic 0 or 1 may go if its segment was last written at this time or before."""
        before = [segment for segment in self.segments if segment.base_offset < self.first_dirty_offset]
        return legacy_horizon_ms(before[-1].modified_ms if before else None, self.delete_retention_ms)

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        fields = asdict(self)
        fields["hash_key"] = self.hash_key.hex()
        fields["active_producers"] = [
            [producer_id, active.producer_epoch, active.last_data_offset]
            for producer_id, active in self.active_producers.items()
        ]
        fields["untouched"] = sorted(self.untouched)
        fields["quarantined"] = sorted(self.quarantined)
        if math.isinf(self.io_max_bytes_per_second):
            fields["io_max_bytes_per_second"] = None
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CleanPlan:
        """Return the plan that `to_json` wrote. ValueError, KeyError or TypeError for anything else."""
        fields: dict[str, Any] = json.loads(text)
        fields["hash_key"] = bytes.fromhex(fields["hash_key"])
        fields["active_producers"] = {
            producer_id: ActiveProducer(epoch, last_data_offset)
            for producer_id, epoch, last_data_offset in fields["active_producers"]
        }
        fields["later_aborted"] = tuple(AbortedTxn(*entry) for entry in fields["later_aborted"])
        fields["segments"] = tuple(
            SegmentPlan(**{**segment, "aborted": tuple(AbortedTxn(*entry) for entry in segment["aborted"])})
            for segment in fields["segments"]
        )
        fields["untouched"] = frozenset(fields["untouched"])
        fields["quarantined"] = frozenset(fields["quarantined"])
        if fields["io_max_bytes_per_second"] is None:
            fields["io_max_bytes_per_second"] = math.inf
        return cls(**fields)


def legacy_horizon_ms(last_clean_modified_ms: int | None, delete_retention_ms: int) -> int:
    """Return what `CleanPlan.legacy_tombstone_horizon_ms` is if the last clean segment, if there is one, was written then."""
    return 0 if last_clean_modified_ms is None else last_clean_modified_ms - delete_retention_ms


def most_io_bytes(plan: CleanPlan) -> int:
    """Return what a round reads and writes if nothing goes: the dirty segments for the map, and all that it rewrites twice."""
    read = [segment for segment in plan.segments if segment.base_offset not in plan.quarantined]
    dirty = sum(segment.size for segment in read if segment.next_base_offset > plan.first_dirty_offset)
    return dirty + 2 * sum(segment.size for segment in read if segment.base_offset not in plan.untouched)


def aborted_from(plan: CleanPlan, segment_index: int, upper_bound: int) -> Iterator[AbortedTxn]:
    """Yield aborted transactions with data below `upper_bound` from the indexes of this segment and the later ones.

    Markers below the log start are left out, and the search ends at the first entry after which nothing below
    `upper_bound` was open (`UnifiedLog.collectAbortedTransactions`).
    """
    indexes = [segment.aborted for segment in plan.segments[segment_index:]]
    for entries in [*indexes, plan.later_aborted]:
        for aborted in entries:
            if aborted.last_offset < plan.log_start_offset:
                continue
            if aborted.first_offset < upper_bound:
                yield aborted
            if aborted.last_stable_offset >= upper_bound:
                return
