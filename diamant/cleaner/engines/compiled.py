"""The compiled engine of the cleaner: the rounds of `plain_round`, byte for byte, many times as quick.

Memory: the map (`offset_map`), what is made of a chunk (`row_records`, `compiled_rewriter`), and `batch_notes`.

Importing this loads no compiler. The engine needs some ten seconds to be compiled on a machine for the first time, so a
caller asks `is_warm()` first, and lets the plain engine do the round while `warm_up()` runs elsewhere.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from diamant.cleaner.engines.round import Round
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.kernels import cache
from diamant.cleaner.prompt.key_filter import is_worth_filters, leave_alone
from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.rules.result import (
    CheckDone,
    CleanResult,
    OnOutput,
    OutputSegment,
    Throttle,
    never_done,
    no_output,
    no_throttle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.storage.env.env import Env

RUNNER = "compiled"

_warming = threading.Lock()
_is_warm_here = False


def clean(
    env: Env,
    plan: CleanPlan,
    *,
    on_output: OnOutput = no_output,
    check_done: CheckDone = never_done,
    throttle: Throttle = no_throttle,
    sync_threads: int = 0,
    limits: EngineLimits = ENGINE_LIMITS,
) -> CleanResult:
    """Carry out `plan` as `plain_round.clean` does; compiles first what is not compiled yet."""
    warm_up()
    from diamant.cleaner.engines.compiled_map import CompiledMap
    from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
    from diamant.cleaner.engines.survivors import MapSurvivors
    from diamant.cleaner.prompt.segment_keys import dirty_hashes, file_key_facts
    from diamant.cleaner.segments.row_records import RowRecords

    work = RoundWork(env, plan, check_done, throttle, limits)
    records = RowRecords(limits)
    key_map = CompiledMap(work, records)
    round_ = Round(work, key_map, CompiledRewriter(work, records, MapSurvivors(plan, key_map)))
    has_filters = is_worth_filters(plan)

    def skip_untouched(plan: CleanPlan) -> CleanPlan:
        return (
            plan if key_map.offsets.is_spilled else leave_alone(env, plan, lambda: dirty_hashes(key_map.offsets.table))
        )

    def file_facts(output: OutputSegment) -> None:
        if has_filters:
            file_key_facts(env, plan, output)

    try:
        return round_.run(RUNNER, on_output, sync_threads, leave_alone=skip_untouched, on_written=file_facts)
    finally:
        key_map.close()


def is_warm() -> bool:
    """Tell whether `clean` can start within a second: everything is compiled, in this process or in the cache."""
    return _is_warm_here or cache.is_cached()


def warm_up() -> None:
    """Compile everything, or load it from the cache. May be called from any thread, more than once."""
    global _is_warm_here
    with _warming:
        if _is_warm_here:
            return
        is_cached = cache.is_cached()
        for step in warming_steps(is_cached=is_cached):
            step()
        if not is_cached:
            cache.note_cached()
        _is_warm_here = True


def warming_steps(*, is_cached: bool) -> list[Callable[[], object]]:
    """Return what compiles everything, or loads it from the cache."""
    from diamant.cleaner.kernels.warm_up import call_every_kernel

    if is_cached:
        return [call_every_kernel]
    # The certifying scan's too, so that the first one finds it there; rounds do not need it.
    from diamant.cleaner.kernels.search import warm_up as warm_up_search

    return [call_every_kernel, warm_up_search]
