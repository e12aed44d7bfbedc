"""A round's plan together with the things that every part of an engine needs to carry it out."""

from __future__ import annotations

from dataclasses import dataclass, field

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.result import CheckDone, CleanStats, Throttle, never_done, no_throttle
from diamant.storage import names
from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class RoundWork:
    """Owned by the thread that works. `check_done` and `throttle` are called before each chunk, and may raise."""

    env: Env
    plan: CleanPlan
    check_done: CheckDone = never_done
    throttle: Throttle = no_throttle
    limits: EngineLimits = ENGINE_LIMITS
    stats: CleanStats = field(default_factory=CleanStats)
    """Added to as the work proceeds."""

    def log_path(self, segment: SegmentPlan) -> str:
        """Return the path of a segment's `.log` file."""
        return names.log_file(self.plan.directory, segment.base_offset)
