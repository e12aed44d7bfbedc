"""A request to compact a topic now, as the caller hands it to the rounds."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.on_demand.report import CLEAN


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """Covers all records appended before the request: active segments are closed, and rounds follow until no superseded
    record is left that may be removed. Dirty ratios do not matter; open transactions and `min.compaction.lag.ms` do, and the
    report says what they hold back.

    Errors: NotFound, BadArgument, NotPossible (not a compacted topic), TimedOut, TooMany, CompactionFailed, BrokerStopping.
    """

    topic: str
    partition: int | None = None
    """One partition; None: all."""
    until: str = CLEAN
    """One of `report.UNTIL`. With TOMBSTONES_GONE the answer comes when the tombstones' horizons are over on the broker's clock
    and the tombstones are removed."""
    timeout_ms: int | None = None
    """Real time that the caller waits; the rounds continue without it."""
    is_forced: bool = False
    """True to ignore `min.compaction.lag.ms`."""
    return_at_horizon: bool = False
    """True to answer with the time of the last horizon instead of waiting for it."""
    engine: str | None = None
    """The runner (`rules.modes.ENGINES`); None: one chosen by size."""
