"""The forecast of a partition (`partition_forecast.py`), as values that can be written as JSON: a scenario and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.storage.segments.log_config import LogConfig

# Kinds of events.
ROLL = "roll"
"""The active segment is closed."""
CLEAN = "clean"
"""A cleaning round."""
DELETE = "delete"
"""Retention removes segments."""

BY_HORIZON = "delete.retention.ms"
BY_SEGMENT_MS = "segment.ms"
BY_RETENTION = "retention"
"""`retention.ms`, `retention.bytes`, or records below the log start."""

# Reasons why superseded records and expired tombstones are still in the log.
WAITS_FOR_POLICY = "policy"
"""The topic is not compacted."""
WAITS_FOR_APPEND = "append"
"""Only an append can close the active segment."""
WAITS_FOR_TRANSACTION = "transaction"
"""A transaction is open, and nothing after its first record is cleaned."""
WAITS_FOR_RATIO = "ratio"
"""Too little is dirty, and no `max.compaction.lag.ms` demands a round."""
WAITS_FOR_TIME = "time"
"""More will happen, but only after the end of the forecast or, because of wrong timestamps, in the far future."""
WAITS_FOR_ROUND = "round"
"""Tombstones or markers have expired, but only a round that is due for another reason removes them (mode kafka)."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One combination of settings."""

    settings: Mapping[str, str]
    """Values as given, by name; only for display."""
    config: LogConfig
    cleaner: CleanerSettings
    producer_expiration_ms: int
    is_laid_out_anew: bool = False
    """True if the settings affect the layout of segments; then the log is laid out as if they had always applied."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of the partition at one time."""

    bytes: int
    """Size of all `.log` files."""
    segments: int
    batches: int
    kinds: Kinds

    def to_fields(self) -> dict[str, int]:
        """Return the fields for JSON."""
        return {"bytes": self.bytes, "segments": self.segments, "batches": self.batches, **self.kinds.to_fields()}


@dataclass(frozen=True, slots=True)
class Event:
    """One step of the forecast."""

    kind: str
    """`ROLL`, `CLEAN` or `DELETE`."""
    at_ms: int
    because: str
    """The setting that made it due: `BY_RATIO`, ..."""
    offset: int
    """`CLEAN`: the new first dirty offset; `ROLL`: base of the new segment; `DELETE`: the new log start."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """`CLEAN`: removed records by reason."""
    bytes: int = 0
    """Size of all `.log` files after the event."""
    segments: int = 0
    """Number of segments after the event."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The course of a partition in one scenario. Times are in ms since 1970, None for never."""

    settings: Mapping[str, str]
    before: Contents
    """Contents at the beginning, in the new layout if there is one."""
    events: tuple[Event, ...]
    after: Contents
    dirty_ratio: float
    """Dirty ratio at the beginning."""
    rolls_ms: int | None
    """Time at which the active segment is closed. In mode kafka this takes an append with a timestamp at or after this time."""
    overdue_ms: int | None
    """Time, past or future, of the first round that `max.compaction.lag.ms` requires; something else may delay the round."""
    cleaned_ms: int | None
    """Time of the first round."""
    tombstones_expire_ms: int | None
    """Time at which the last remaining tombstone expires (the greatest delete horizon); None also if no tombstone remains."""
    waits_for: tuple[str, ...]
    """Reasons why removable records are still in the log at the end: `WAITS_FOR_POLICY`, ..."""
    failure: str | None = None
    """Reason why the forecast ends early, if it does."""

    def to_fields(self) -> dict[str, object]:
        """Return the forecast as fields for JSON."""
        return {**asdict(self), "before": self.before.to_fields(), "after": self.after.to_fields()}
