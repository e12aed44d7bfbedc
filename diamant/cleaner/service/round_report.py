"""What came of a round at one partition, for whoever asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.result import CleanResult


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round, or why there was none: `result` is None if there was nothing to clean, or if `error` says what went wrong."""

    topic: str
    partition: int
    range: CleanableRange | None
    """What was to be cleaned; None if that could not be told."""
    result: CleanResult | None
    checkpoint: int | None
    """Where the next round begins; None if that has not changed."""
    started_ms: int
    """On the clock of the Env."""
    ended_ms: int
    error: str | None = None
    """Why the round ended without its result. Groups of segments that were finished before are in place."""

    @property
    def is_cleaned(self) -> bool:
        """Whether a round was carried out to its end."""
        return self.result is not None and self.error is None
