"""What a round of the cleaner is to do, as one frozen value, and how source segments are grouped into output segments.

The owner of a log makes a `CleanPlan` (`make_plan`), an engine carries it out and answers with a `CleanResult`. A plan holds
everything that the outcome depends on, the clock included, so that any engine, in any process, writes the same bytes. It
can be carried as JSON. A plan may be minutes old when its result is used: producers that became active since then protect
only batches that it does not touch.

Source: Kafka's LogToClean and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.storage.segments.txn_index import AbortedTxn

if TYPE_CHECKING:
    from diamant.storage.env.env import Env
    from diamant.storage.log.log import Log
    from diamant.storage.segments.log_config import LogConfig
    from diamant.storage.segments.segment import Segment

MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_SEGMENT_BYTES = 2**31 - 1
INDEX_ENTRY_BYTES = 8
TIME_INDEX_ENTRY_BYTES = 12

KAFKA_MAP_ENTRY_BYTES = 24
"""What a key takes in Kafka's offset map: 16 bytes of MD5 and the offset (SkimpyOffsetMap)."""


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
    """When the `.log` file was last written; the output of a group takes that of its last source."""
    next_base_offset: int
    """Base offset of the segment that follows."""
    aborted: tuple[AbortedTxn, ...] = ()
    """The segment's index of aborted transactions, whole."""
    largest_timestamp: int = -1
    """What its age is judged by for retention, in ms."""


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What protects the last batch of a producer, so that its sequence and epoch outlive a cleaning."""

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
    """Where the map begins; need not be the boundary of a segment or batch."""
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
    """How much of a segment is read at a time; a larger batch is read whole."""
    hash_key: bytes
    """16 random bytes of the data directory, for engines that keep hashes of keys."""
    map_load_factor: float = 1.0
    """Mode kafka: the share of the map's table that `map_max_entries` keys are."""
    io_max_bytes_per_second: float = math.inf
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

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}, expected one of {', '.join(MODES)}")

    @property
    def is_kafka(self) -> bool:
        """Whether the round does as Kafka does."""
        return self.mode == KAFKA

    def map_utilization(self, keys: int) -> float:
        """Return how full a map with so many keys is, 0 to 1: in mode kafka, as in Kafka, its table, which is never filled."""
        most = self.map_max_entries if self.is_kafka else max(self.map_max_entries, keys)
        share = keys / most if most else 1.0
        return share * self.map_load_factor if self.is_kafka else share

    def is_frozen(self, offset: int) -> bool:
        """Tell whether what is at `offset` is kept from expiring."""
        return self.horizons_frozen_above is not None and offset > self.horizons_frozen_above

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


# -- grouping ------------------------------------------------------------------------------------------------------------


def segments_to_clean(plan: CleanPlan, end_offset: int) -> tuple[SegmentPlan, ...]:
    """Return the segments that a round whose map ends at `end_offset` (exclusive) rewrites.

    All from the first one on to the one that holds `end_offset` - 1. A round without a dirty range rewrites them all.
    """
    if plan.first_dirty_offset >= plan.first_uncleanable_offset:
        return plan.segments
    return tuple(segment for segment in plan.segments if segment.base_offset < end_offset)


def most_io_bytes(plan: CleanPlan) -> int:
    """Return what a round reads and writes if nothing goes: the dirty segments for the map, and all that it rewrites twice."""
    read = [segment for segment in plan.segments if segment.base_offset not in plan.quarantined]
    dirty = sum(segment.size for segment in read if segment.next_base_offset > plan.first_dirty_offset)
    return dirty + 2 * sum(segment.size for segment in read if segment.base_offset not in plan.untouched)


def group_segments(plan: CleanPlan, segments: Sequence[SegmentPlan]) -> list[tuple[SegmentPlan, ...]]:
    """Return which of `segments`, in order, are merged into one output each (`Cleaner.groupSegmentsBySize`).

    The limits are those of the topic's present configuration, applied to the sizes before cleaning. The first segment of
    a group is taken whatever its size. Untouched and quarantined segments are in no group, and end the one before them.

    A merged segment expires with its newest record. Where `expiry_slice_ms` is given, the ages of a group's segments differ
    by that much at most, so nothing stays longer than `retention.ms` and that, which Kafka does not promise.
    """
    groups: list[tuple[SegmentPlan, ...]] = []
    group = _Group()
    for segment in segments:
        if segment.base_offset in plan.untouched or segment.base_offset in plan.quarantined:
            if group.segments:
                groups.append(tuple(group.segments))
                group = _Group()
            continue
        if group.segments and not group.takes(plan, segment, is_last=segment is segments[-1]):
            groups.append(tuple(group.segments))
            group = _Group()
        group.add(segment)
    if group.segments:
        groups.append(tuple(group.segments))
    return groups


class _Group:
    """A group that is being made, and what its segments add up to: there may be thousands."""

    __slots__ = ("_first_ms", "_index_bytes", "_last_ms", "_size", "_time_index_bytes", "segments")

    def __init__(self) -> None:
        self.segments: list[SegmentPlan] = []
        self._size = self._index_bytes = self._time_index_bytes = 0
        self._first_ms: int | None = None
        """Smallest of the segments' largest timestamps; empty segments have none."""
        self._last_ms: int | None = None

    def add(self, segment: SegmentPlan) -> None:
        self.segments.append(segment)
        self._size += segment.size
        self._index_bytes += segment.index_bytes
        self._time_index_bytes += segment.time_index_bytes
        if segment.size:
            self._first_ms, self._last_ms = self._span_with(segment)

    def _span_with(self, segment: SegmentPlan) -> tuple[int, int]:
        if self._first_ms is None or self._last_ms is None:
            return segment.largest_timestamp, segment.largest_timestamp
        return min(self._first_ms, segment.largest_timestamp), max(self._last_ms, segment.largest_timestamp)

    def takes(self, plan: CleanPlan, segment: SegmentPlan, *, is_last: bool) -> bool:
        """Tell whether `segment` may follow here."""
        if self._size + segment.size > plan.segment_bytes:
            return False
        if self._index_bytes + segment.index_bytes > plan.segment_index_bytes:
            return False
        if self._time_index_bytes + segment.time_index_bytes > plan.segment_index_bytes:
            return False
        if plan.expiry_slice_ms is not None and segment.size:
            # Merging may postpone the expiry of no record by more than this.
            first_ms, last_ms = self._span_with(segment)
            if last_ms - first_ms > plan.expiry_slice_ms:
                return False
        # The last offset is not known without reading the segment, only that it lies below what follows (KAFKA-5413).
        following = plan.first_uncleanable_offset if is_last else segment.next_base_offset
        return not segment.size or following - 1 - self.segments[0].base_offset <= MAX_RELATIVE_OFFSET


EXPIRY_SLICES = 20
"""Merging postpones the expiry of a record by at most this part of `retention.ms`, 5 %."""


def expiry_slice_ms(config: LogConfig, mode: str) -> int | None:
    """Return by how much the ages of segments may differ that are merged; None if it does not matter."""
    if mode == KAFKA or not config.is_deleted or config.retention_ms < 0:
        return None
    return config.retention_ms // EXPIRY_SLICES


def ends_output(plan: CleanPlan, written_bytes: int, following: SegmentPlan) -> bool:
    """Tell whether an output of `written_bytes` must end before the group's next source is added (mode prompt only).

    Recompression can make an output larger than its sources were, and so can the present format where they are of an old
    one, so that the limits the group was made by no longer hold. For what no segment can hold (2 GiB) a source is taken twice.
    """
    if plan.is_kafka:
        return False
    return written_bytes + following.size > plan.segment_bytes or written_bytes + 2 * following.size > MAX_SEGMENT_BYTES


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


# -- making a plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """What the broker's configuration says to every round; see the fields of `CleanPlan`."""

    mode: str = PROMPT
    map_max_entries: int = int(134_217_728 // KAFKA_MAP_ENTRY_BYTES * 0.9)
    map_load_factor: float = 1.0
    map_memory_bytes: int = 134_217_728
    io_buffer_bytes: int = 262_144
    io_max_bytes_per_second: float = math.inf
    hash_key: bytes = bytes(16)


def kafka_map_entries(dedupe_buffer_bytes: int, load_factor: float, threads: int = 1) -> int:
    """Return how many keys a thread's map takes with these settings (`log.cleaner.dedupe.buffer.size` and so on)."""
    slots = min(dedupe_buffer_bytes // threads, 2**31 - 1) // KAFKA_MAP_ENTRY_BYTES
    return int(slots * load_factor)


def plan_segment(env: Env, segment: Segment, next_base_offset: int) -> SegmentPlan:
    """Return what a plan says of a segment that takes no appends. Any thread; reads its indexes and asks for its times."""
    return SegmentPlan(
        base_offset=segment.base_offset,
        size=segment.size,
        index_bytes=segment.offset_index.entries * INDEX_ENTRY_BYTES,
        time_index_bytes=segment.time_index.entries * TIME_INDEX_ENTRY_BYTES,
        modified_ms=env.mtime_ms(segment.path),
        next_base_offset=next_base_offset,
        aborted=tuple(segment.txn_index.all()),
        largest_timestamp=segment.largest_timestamp,
    )


def make_plan(
    log: Log,
    first_dirty_offset: int,
    first_uncleanable_offset: int,
    now_ms: int,
    settings: CleanerSettings,
    known: Mapping[Segment, SegmentPlan] = MappingProxyType({}),
) -> CleanPlan:
    """Return the plan of a round over `log`; belongs to the log's owner.

    The offsets come from `eligibility.cleanable_range`. What is not `known` of a segment (`plan_segment`) is looked up now.
    """
    config = log.config
    sources = [segment for segment in log.segments[:-1] if segment.base_offset < first_uncleanable_offset]
    following = [segment.base_offset for segment in log.segments[1:]]
    later = (
        aborted for segment in log.segments[len(sources) :] for aborted in segment.txn_index.all()
    )  # fmt: skip
    return CleanPlan(
        directory=log.path,
        topic=log.topic,
        partition=log.partition,
        segments=tuple(
            known.get(segment) or plan_segment(log.env, segment, next_base_offset)
            for segment, next_base_offset in zip(sources, following, strict=False)
        ),
        log_start_offset=log.log_start_offset,
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
        now_ms=now_ms,
        mode=settings.mode,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        max_message_bytes=config.max_message_bytes,
        active_producers={
            entry.producer_id: ActiveProducer(
                entry.producer_epoch, entry.last_offset if entry.last_offset >= 0 else None
            )
            for entry in log.producers.active_producers
        },
        map_max_entries=settings.map_max_entries,
        map_load_factor=settings.map_load_factor,
        map_memory_bytes=settings.map_memory_bytes,
        io_buffer_bytes=settings.io_buffer_bytes,
        hash_key=settings.hash_key,
        io_max_bytes_per_second=settings.io_max_bytes_per_second,
        expiry_slice_ms=expiry_slice_ms(config, settings.mode),
        later_aborted=tuple(aborted for aborted in later if aborted.first_offset < first_uncleanable_offset),
    )
