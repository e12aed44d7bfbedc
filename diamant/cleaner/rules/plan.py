"""The plan of a cleaning round, as one frozen value.

The owner of a log makes a `CleanPlan` (`make_plan`); an engine executes it and returns a `CleanResult`. A plan holds
everything that determines the outcome, including the time, so that any engine in any process writes the same bytes. It can be
sent as JSON. A plan may be minutes old when its result is used. That is safe, because producers that have become active since
it was made protect only batches that it does not touch.

Source: Kafka's LogToClean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from diamant.cleaner.rules.modes import KAFKA, MODES
from diamant.json_types import JsonObject
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT
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
    """Valid bytes of the `.log` file."""
    index_bytes: int
    """Bytes of offset index entries."""
    time_index_bytes: int
    """Bytes of time index entries."""
    modified_ms: int
    """Time of the last write to the `.log` file. The output of a group gets the time of its last source."""
    next_base_offset: int
    """Base offset of the segment that follows."""
    aborted: tuple[AbortedTxn, ...] = ()
    """All entries of the segment's index of aborted transactions."""
    largest_timestamp: int = -1
    """The timestamp from which retention computes the segment's age, in ms."""


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """The state of a producer that protects its last batch, so that its sequence and epoch survive a round."""

    producer_epoch: int
    last_data_offset: int | None
    """Last offset of the newest batch of the current epoch; None if there is none yet."""


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """One round for one partition."""

    directory: str
    """The partition's directory."""
    topic: str
    partition: int
    segments: tuple[SegmentPlan, ...]
    """All segments below `first_uncleanable_offset`, ascending."""
    log_start_offset: int
    first_dirty_offset: int
    """First offset that the map covers. It need not be the first of a segment or of a batch."""
    first_uncleanable_offset: int
    """Exclusive end of the round: the base offset of a segment."""
    now_ms: int
    """The time that counts as the current time throughout the round."""
    mode: str
    """`KAFKA` or `PROMPT`."""
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    max_message_bytes: int
    active_producers: Mapping[int, ActiveProducer]
    """Active producers by producer id."""
    map_max_entries: int
    """Mode kafka: maximum number of keys in the map; the round ends before the record that would exceed it."""
    map_memory_bytes: int
    """Mode prompt: memory for the map. An engine that can spill the map to disk does so beyond this size."""
    io_buffer_bytes: int
    """Bytes of a segment read at a time; a larger batch is read as a whole."""
    hash_key: bytes
    """16 random bytes specific to the data directory, for engines that keep hashes of keys."""
    max_record_bytes: int = NO_RECORD_LIMIT
    """Maximum size of a record in a compressed batch; a larger one fails the round with RecordTooLarge (`record_sizes`)."""
    map_load_factor: float = 1.0
    """Mode kafka: the share of the map's table that `map_max_entries` keys occupy."""
    io_max_bytes_per_second: float = math.inf
    threads: int = 1
    """Maximum number of CPUs that an engine may use: `log.cleaner.threads`, or a share of them."""
    later_aborted: tuple[AbortedTxn, ...] = ()
    """Aborted transactions with data below `first_uncleanable_offset` and markers in segments at or above it."""
    expiry_slice_ms: int | None = None
    """Mode prompt, policy compact,delete: largest difference in age between merged segments, see `group_segments`."""
    untouched: frozenset[int] = frozenset()
    """Mode prompt: base offsets of segments that the round would rewrite unchanged, and so leaves alone (`key_filter`)."""
    apart: frozenset[int] = frozenset()
    """Mode prompt: base offsets of segments that are not merged with any neighbour (`lost_key`)."""
    quarantined: frozenset[int] = frozenset()
    """Mode prompt: base offsets of corrupt segments, which are neither read nor replaced (`quarantine`)."""
    horizons_frozen_above: int | None = None
    """Tombstones and markers at higher offsets do not expire, even after their horizon (`quarantine`)."""

    held_above: int | None = None
    """Tombstones of batches with a higher base offset wait for consumer groups (`tombstone_hold`)."""
    held_since_ms: int = 0
    """Held tombstones expire if their horizon passed before this time (`now_ms` minus `diamant.tombstone.hold.max.ms`)."""
    high_watermark: int | None = None
    """The high watermark. An emptied batch that ends here keeps its header, as in Kafka 4.4 (KAFKA-20452). If None, as in plans
    that earlier versions stored, an emptied batch at the end of the round keeps its header, as in Kafka 4.3 (KAFKA-17076)."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}, expected one of {', '.join(MODES)}")

    @property
    def is_kafka(self) -> bool:
        """True in mode kafka."""
        return self.mode == KAFKA

    @property
    def has_dirty_range(self) -> bool:
        """True if the round needs a map. Without a dirty range it removes only expired records."""
        return self.first_dirty_offset < self.first_uncleanable_offset

    @property
    def header_end(self) -> int:
        """Exclusive end of the only emptied batch that keeps its header even without an active producer."""
        return self.first_uncleanable_offset if self.high_watermark is None else self.high_watermark

    @property
    def first_dirty_segment(self) -> int:
        """Index of the segment in which the dirty range begins."""
        bases = [segment.base_offset for segment in self.segments]
        return max((index for index, base in enumerate(bases) if base <= self.first_dirty_offset), default=0)

    @property
    def has_aborted(self) -> bool:
        """True if any transaction was aborted. Otherwise no data batch is removed because of its transaction."""
        return bool(self.later_aborted) or any(segment.aborted for segment in self.segments)

    def map_utilization(self, keys: int) -> float:
        """Return the utilization of a map with `keys` keys, 0 to 1. In mode kafka it is at most `map_load_factor`."""
        most = self.map_max_entries if self.is_kafka else max(self.map_max_entries, keys)
        share = keys / most if most else 1.0
        return share * self.map_load_factor if self.is_kafka else share

    def is_frozen(self, offset: int) -> bool:
        """Return whether tombstones and markers at `offset` are prevented from expiring."""
        return self.horizons_frozen_above is not None and offset > self.horizons_frozen_above

    def lets_expire(self, segment: int, offset: int, horizon_ms: int) -> bool:
        """Return whether a tombstone at `offset` in `segment`, with its batch's horizon, expires if the round reaches it."""
        if segment in self.untouched or segment in self.quarantined or horizon_ms > self.now_ms:
            return False
        return not self.is_frozen(offset) and not self.is_held(offset, horizon_ms)

    def is_held(self, offset: int, horizon_ms: int) -> bool:
        """Return whether the tombstones of a batch at `offset` with this horizon wait for consumer groups."""
        return self.held_above is not None and offset > self.held_above and horizon_ms > self.held_since_ms

    @property
    def new_horizon_ms(self) -> int | None:
        """The delete horizon that this round sets on tombstones; None, as in Kafka, if it would exceed 64 bits."""
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms < 1 << 63 else None

    @property
    def legacy_tombstone_horizon_ms(self) -> int:
        """Tombstones of magic 0 and 1 expire if their segment was last written at this time or earlier."""
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
        fields["apart"] = sorted(self.apart)
        fields["quarantined"] = sorted(self.quarantined)
        if math.isinf(self.io_max_bytes_per_second):
            fields["io_max_bytes_per_second"] = None
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CleanPlan:
        """Parse the output of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        fields: JsonObject = json.loads(text)
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
        fields["apart"] = frozenset(fields["apart"])
        fields["quarantined"] = frozenset(fields["quarantined"])
        if fields["io_max_bytes_per_second"] is None:
            fields["io_max_bytes_per_second"] = math.inf
        return cls(**fields)


def legacy_horizon_ms(last_clean_modified_ms: int | None, delete_retention_ms: int) -> int:
    """Compute `CleanPlan.legacy_tombstone_horizon_ms` from the time of the last write to the last clean segment, if any."""
    return 0 if last_clean_modified_ms is None else last_clean_modified_ms - delete_retention_ms


def most_io_bytes(plan: CleanPlan) -> int:
    """Return the I/O in bytes if a round removes nothing: reading dirty segments, then reading and writing all rewritten ones."""
    read = [segment for segment in plan.segments if segment.base_offset not in plan.quarantined]
    dirty = sum(segment.size for segment in read if segment.next_base_offset > plan.first_dirty_offset)
    return dirty + 2 * sum(segment.size for segment in read if segment.base_offset not in plan.untouched)


def aborted_from(plan: CleanPlan, segment_index: int, upper_bound: int) -> Iterator[AbortedTxn]:
    """Yield aborted transactions with data below `upper_bound` from the indexes of segment `segment_index` and all later ones.

    Skips transactions that ended below the log start. Stops at the first entry after which no transaction below `upper_bound`
    was open (`UnifiedLog.collectAbortedTransactions`).
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
