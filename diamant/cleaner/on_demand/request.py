"""A request to compact a topic now, as it goes from the caller to the rounds."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.on_demand.report import CLEAN


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """All that was appended before the request is covered: active segments are closed, and rounds follow until nothing
    superseded is left that may go. Dirty ratios do not matter; open transactions and `min.compaction.lag.ms` do, and the
    report says what they hold back.

    Errors: NotFound, BadArgument, NotPossible (not a compacted topic), TimedOut, TooMany, CompactionFailed, BrokerStopping.
    """

    topic: str
    partition: int | None = None
    """One partition of it; all without this."""
    until: str = CLEAN
    """`report.UNTIL`: with TOMBSTONES_GONE the answer comes when the tombstones' horizons are over on the broker's clock, and
    they are gone."""
    timeout_ms: int | None = None
    """Real time that the caller waits; the rounds continue without it."""
    is_forced: bool = False
    """Whatever `min.compaction.lag.ms` says."""
    return_at_horizon: bool = False
    """Answer with the time of the last horizon in place of waiting for it."""
    engine: str | None = None
    """The runner (`rules.modes.ENGINES`) in place of one chosen by size."""
