"""A round's plan, with the resources that all parts of an engine need to execute it."""

from __future__ import annotations

from dataclasses import dataclass, field

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.result import CheckDone, CleanStats, Throttle, never_done, no_throttle
from diamant.storage import names
from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class RoundWork:
    """A round's plan and resources, for one thread. `check_done` and `throttle` are called for each chunk, and may raise."""

    env: Env
    plan: CleanPlan
    check_done: CheckDone = never_done
    throttle: Throttle = no_throttle
    limits: EngineLimits = ENGINE_LIMITS
    stats: CleanStats = field(default_factory=CleanStats)
    """Statistics, updated during the round."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", self.limits.of(self.plan))

    def log_path(self, segment: SegmentPlan) -> str:
        """Return the path of a segment's `.log` file."""
        return names.log_file(self.plan.directory, segment.base_offset)
