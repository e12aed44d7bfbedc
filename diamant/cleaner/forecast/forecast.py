"""The forecast of a partition (`whatif.py`), as values that can be written as JSON: a scenario and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from diamant.cleaner.rules.planning import CleanerSettings
from diamant.storage.segments.log_config import LogConfig

# What happens.
ROLL = "roll"
"""The active segment is closed."""
CLEAN = "clean"
"""A round."""
DELETE = "delete"
"""Retention removes segments."""

BY_HORIZON = "delete.retention.ms"
BY_SEGMENT_MS = "segment.ms"
BY_RETENTION = "retention"
"""`retention.ms`, `retention.bytes`, or below the log start."""

# What superseded records, or tombstones that could go, are left for.
WAITS_FOR_POLICY = "policy"
"""The topic is not compacted."""
WAITS_FOR_APPEND = "append"
"""Only an append closes the active segment."""
WAITS_FOR_TRANSACTION = "transaction"
"""A transaction is open: nothing behind its first record is cleaned."""
WAITS_FOR_RATIO = "ratio"
"""Too little is dirty, and no `max.compaction.lag.ms` demands a round."""
WAITS_FOR_TIME = "time"
"""More happens after the end of the forecast, or not in any sensible time since timestamps are far in the future."""
WAITS_FOR_ROUND = "round"
"""Tombstones or markers may go, but only with a round that comes for something else (mode kafka)."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One combination of settings."""

    settings: Mapping[str, str]
    """As they were given, by name; only to be told again."""
    config: LogConfig
    cleaner: CleanerSettings
    producer_expiration_ms: int
    is_laid_out_anew: bool = False
    """True if the settings say how segments are cut."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of the partition at one time; records are told apart as by `offline/stats.py`."""

    bytes: int
    """Of all `.log` files."""
    segments: int
    batches: int
    records: int
    live: int
    superseded: int
    tombstones: int
    """Those that are the latest of their key."""
    aborted: int
    undecided: int
    keyless: int
    below_log_start: int
    control_records: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens."""

    kind: str
    """`ROLL`, `CLEAN` or `DELETE`."""
    at_ms: int
    because: str
    """`BY_RATIO`, ...: the setting that made it due."""
    offset: int
    """`CLEAN`: where the log is dirty from now on; `ROLL`: where the new segment begins; `DELETE`: the new log start."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """`CLEAN`: records by reason."""
    bytes: int = 0
    """Of all `.log` files afterwards."""
    segments: int = 0
    """Afterwards."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The course of a partition in one scenario. Times are in ms since 1970, None for never."""

    settings: Mapping[str, str]
    before: Contents
    """Before anything happens; with other segments than on disk if they got a new layout."""
    events: tuple[Event, ...]
    after: Contents
    dirty_ratio: float
    """At the beginning."""
    rolls_ms: int | None
    """Time of closing the active segment. In mode kafka only if an append with a timestamp so late comes then."""
    overdue_ms: int | None
    """Time of the first round that `max.compaction.lag.ms` demands, past or future, as long as nothing else holds it back."""
    cleaned_ms: int | None
    """The first round. It is eligible from that moment on."""
    tombstones_expire_ms: int | None
    """Time at which the last remaining tombstone may go (the greatest delete horizon); None also if there are none."""
    waits_for: tuple[str, ...]
    """Why what could go is not gone at the end: `WAITS_FOR_POLICY`, ..."""
    failure: str | None = None
    """Why it ends before everything has happened."""

    def to_fields(self) -> dict[str, Any]:
        """Return the forecast as what JSON can hold."""
        return asdict(self)
