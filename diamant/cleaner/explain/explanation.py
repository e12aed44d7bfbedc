"""Why something is still in a log, as values that can be written as JSON: gates, records, partitions.

A *gate* is one thing that keeps a record where it is. As long as one of its gates is closed it stays. Times are in ms
since 1970 on the broker's clock; what is due at a time happens within one loop of the cleaner (`log.cleaner.backoff.ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Kinds of gates.
LIVE = "live-value"
"""It is the latest record of its key, and has a value."""
STRANDED = "stranded"
"""So it is in its partition, but its key goes to another one by now."""
ACTIVE_SEGMENT = "active-segment"
"""The latest record is in the segment that takes appends, which is never cleaned."""
DIRTY_RATIO = "dirty-ratio"
MIN_LAG = "min-compaction-lag"
OPEN_TRANSACTION = "open-transaction"
"""Nothing behind the first record of an open transaction is cleaned."""
HORIZON = "delete-horizon"
"""A tombstone or marker stays until its horizon, for consumers to see it."""
HELD = "held-for-groups"
"""A tombstone stays past its horizon for a group that has not passed it (`diamant.tombstone.hold`)."""
NOT_STAMPED = "no-horizon-yet"
"""A tombstone or marker gets its horizon in the first round that keeps it."""
WAITS_FOR_ROUND = "waits-for-round"
"""Mode kafka: the horizon is over, or will be, but no round comes for that alone."""
UNCLEANABLE = "uncleanable"
"""The last round failed."""
QUARANTINED = "quarantined"
"""In or above a segment that cannot be read."""
PAUSED = "paused"
BROKEN = "write-failure"
CLEANER_DISABLED = "cleaner-disabled"
NOT_COMPACTED = "not-compacted"
"""`cleanup.policy` is without `compact`."""
RETENTION_TIME = "retention-time"
RETENTION_SIZE = "retention-size"
BEHIND = "behind-checkpoint"
"""Superseded by a record that no later round takes up."""
FILE_DELAY = "file-delete-delay"
"""The log has released the file, which stays on the disk for `file.delete.delay.ms`."""
DUE = "due"
"""Nothing keeps it: a round is due."""

# What a record is.
IS_LIVE = "live"
IS_SUPERSEDED = "superseded"
IS_TOMBSTONE = "tombstone"
"""The latest of its key."""
IS_ABORTED = "aborted"
IS_UNDECIDED = "undecided"
"""Its transaction is open."""
IS_KEYLESS = "keyless"
IS_MARKER = "marker"
"""A control record, such as the end of a transaction."""
IS_BELOW_LOG_START = "below log start"

# How sure a time is.
EXACT = "exact"
EARLIEST = "earliest"
"""It may go later: how small a round before that makes the log decides about the next dirty ratio, and with what a round merges
its segment about retention."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing that keeps a record."""

    kind: str
    text: str
    """For people, without keys and values."""
    until_ms: int | None = None
    """Time at which it opens by itself; None: unknown, or never."""
    bytes_more: int | None = None
    """It also opens once so many bytes more were appended."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """The figures behind it."""


@dataclass(frozen=True, slots=True)
class Change:
    """The smallest thing to do to have it go now."""

    text: str
    command: str | None = None
    """Of `diamant`."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Of the topic; another way to the same, or the only one if there is no command."""


@dataclass(frozen=True, slots=True)
class RecordExplanation:
    """One record that is on the disk."""

    offset: int
    timestamp: int
    segment: str
    """Name of the file."""
    position: int
    """Of its batch in the file."""
    status: str
    has_value: bool
    value_bytes: int
    superseded_by: int | None
    """Offset of the later record on whose account it goes."""
    horizon_ms: int | None
    gates: tuple[Gate, ...]
    """All that keeps it."""
    goes_ms: int | None
    """The earliest time at which it leaves the log under the present settings, if nothing but time passes; None: never."""
    bound: str
    """The certainty of `goes_ms`: `EXACT` or `EARLIEST`."""
    leaves_disk_ms: int | None
    """`goes_ms` and `file.delete.delay.ms`: when the file that holds it is removed."""
    change: Change | None
    groups_behind: tuple[str, ...] = ()
    """Tombstones: groups whose committed offsets have not passed it."""


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
    """Time of the next round; None: never, as things are."""
    gates: tuple[Gate, ...]
    """The gates that keep the partition from being clean up to its end."""
    change: Change | None
    records: tuple[RecordExplanation, ...] = ()
    """Those asked for, ascending; the first ones and the last one."""
    records_left_out: int = 0
    problems: tuple[str, ...] = ()
    """Unreadable places, because of which records may be missing here."""
    segments_read: int = 0
    bytes_read: int = 0

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)
