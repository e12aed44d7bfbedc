"""Explanations of why something is still in a log, as values for JSON: gates, records, partitions.

A *gate* is a condition that keeps a record in the log. The record stays while at least one of its gates is closed. Times are in
ms since 1970 on the broker's clock. An action happens within one loop of the cleaner (`log.cleaner.backoff.ms`) after it is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Kinds of gates.
LIVE = "live-value"
"""The record is the latest of its key, and has a value."""
STRANDED = "stranded"
"""The record is the latest of its key in its partition, but producers now write the key to another partition."""
ACTIVE_SEGMENT = "active-segment"
"""The record, or the one that supersedes it, is in the active segment, which is never cleaned."""
DIRTY_RATIO = "dirty-ratio"
MIN_LAG = "min-compaction-lag"
OPEN_TRANSACTION = "open-transaction"
"""Nothing after the first record of an open transaction is cleaned."""
HORIZON = "delete-horizon"
"""A tombstone or marker stays until its horizon, so that consumers see it."""
HELD = "held-for-groups"
"""A tombstone stays beyond its horizon because a group has not read past it (`diamant.tombstone.hold`)."""
NOT_STAMPED = "no-horizon-yet"
"""A tombstone or marker gets its horizon in the first round that keeps it."""
WAITS_FOR_ROUND = "waits-for-round"
"""In mode kafka, a passed horizon alone starts no round, so the record waits for a round that starts for another reason."""
UNCLEANABLE = "uncleanable"
"""The last round failed."""
QUARANTINED = "quarantined"
"""The record is in or above a segment that cannot be read."""
PAUSED = "paused"
BROKEN = "write-failure"
CLEANER_DISABLED = "cleaner-disabled"
NOT_COMPACTED = "not-compacted"
"""`cleanup.policy` does not include `compact`."""
RETENTION_TIME = "retention-time"
RETENTION_SIZE = "retention-size"
BEHIND = "behind-checkpoint"
"""The record is superseded by one that no later round maps."""
FILE_DELAY = "file-delete-delay"
"""The log has released the file, which stays on the disk for `file.delete.delay.ms`."""
DUE = "due"
"""Nothing keeps the record; a round is due."""
NOT_SEEN = "not-seen"
"""Nothing that is visible from outside the broker keeps the record."""

# Statuses of records.
IS_LIVE = "live"
IS_SUPERSEDED = "superseded"
IS_TOMBSTONE = "tombstone"
"""The record is the latest of its key, and has no value."""
IS_ABORTED = "aborted"
IS_UNDECIDED = "undecided"
"""Its transaction is open."""
IS_KEYLESS = "keyless"
IS_MARKER = "marker"
"""A control record, such as the end of a transaction."""
IS_BELOW_LOG_START = "below log start"

# Certainty of a time.
EXACT = "exact"
EARLIEST = "earliest"
"""The record may leave later: the next dirty ratio depends on how much an earlier round shrinks the log, and retention depends
on the segments with which a round merges the record's segment."""

# Visibility of the facts behind a gate.
KNOWN = "known"
BOUNDED = "bounded"
"""Only a bound is visible from outside the broker, such as the greatest possible dirty ratio."""
NOT_VISIBLE = "not-visible"


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition that keeps a record in the log."""

    kind: str
    text: str
    """An explanation for people, which contains no keys or values."""
    until_ms: int | None = None
    """Time at which the gate opens by itself; None if this is unknown or never happens."""
    bytes_more: int | None = None
    """The gate also opens once this many more bytes have been appended."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """The figures behind the text."""
    visibility: str = KNOWN


@dataclass(frozen=True, slots=True)
class Change:
    """The smallest action that removes a record now."""

    text: str
    command: str | None = None
    """A command line without its first word, `diamant`."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Topic configurations to set instead of running `command`, or because there is no command."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A member of a share group that has acquired a record, until it acknowledges the record or its acquisition lock ends."""

    group: str
    member_id: str
    deliveries: int
    """The record's delivery count, including this delivery."""
    lock_ends_ms: int


@dataclass(frozen=True, slots=True)
class RecordExplanation:
    """One record on the disk."""

    offset: int
    timestamp: int
    segment: str
    """Name of the segment's file."""
    position: int
    """Position of the record's batch in the file."""
    status: str
    has_value: bool
    value_bytes: int
    superseded_by: int | None
    """Offset of the later record that supersedes it."""
    horizon_ms: int | None
    gates: tuple[Gate, ...]
    """All gates that keep the record."""
    goes_ms: int | None
    """The earliest time at which the record leaves the log if no setting changes and nothing is written; None: never."""
    bound: str
    """The certainty of `goes_ms`: `EXACT` or `EARLIEST`."""
    leaves_disk_ms: int | None
    """Time at which the record's file is removed: `goes_ms` plus `file.delete.delay.ms`."""
    change: Change | None
    groups_behind: tuple[str, ...] = ()
    """For a tombstone, the groups whose committed offsets have not passed it."""
    held_by: tuple[Holder, ...] = ()
    """Members of share groups that have acquired the record, one per group."""


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """One partition."""

    topic: str
    partition: int
    now_ms: int
    cleanup_policy: str
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    dirty_ratio: float
    bytes: int
    segments: int
    next_round_ms: int | None
    """Time of the next round; None if there is none under the present conditions."""
    gates: tuple[Gate, ...]
    """The gates that keep the partition from being clean up to its end."""
    change: Change | None
    records: tuple[RecordExplanation, ...] = ()
    """The requested records in offset order; if there are many, the first ones and the last one."""
    records_left_out: int = 0
    problems: tuple[str, ...] = ()
    """Unreadable parts of the log; their records are missing here."""
    segments_read: int = 0
    bytes_read: int = 0

    def to_fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        return asdict(self)
