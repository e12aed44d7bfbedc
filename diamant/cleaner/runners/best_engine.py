"""The best engine: the compiled one, or the plain one where there are no kernels."""

from __future__ import annotations

from typing import Protocol

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import (
    CheckDone,
    CleanResult,
    OnOutput,
    Throttle,
    never_done,
    no_output,
    no_throttle,
)
from diamant.kernels import ARE_COMPILED
from diamant.storage.env.env import Env


class Engine(Protocol):
    """Carries out a plan (`engines.round`)."""

    def __call__(
        self,
        env: Env,
        plan: CleanPlan,
        *,
        on_output: OnOutput = no_output,
        check_done: CheckDone = never_done,
        throttle: Throttle = no_throttle,
        sync_threads: int = 0,
        limits: EngineLimits = ENGINE_LIMITS,
    ) -> CleanResult: ...


def best_engine() -> Engine:
    """Return the engine for plans of any size; imports it."""
    if ARE_COMPILED:
        from diamant.cleaner.parallel import round as parallel_round

        return parallel_round.clean
    from diamant.cleaner.engines import plain_round

    return plain_round.clean
