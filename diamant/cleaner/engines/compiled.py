"""The compiled engine of the cleaner: the rounds of `plain_round`, byte for byte, many times as quick.

Memory: the map (`offset_map`), what is made of a chunk (`row_records`, `compiled_rewriter`), and `batch_notes`.

Importing this loads the kernels: only where `diamant.kernels.ARE_COMPILED`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.round import AddSegments, RewriteGroups, Round
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.prompt.key_filter import is_worth_filters, leave_alone
from diamant.cleaner.prompt.segment_keys import dirty_hashes, file_key_facts
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
from diamant.cleaner.segments.row_records import RowRecords

if TYPE_CHECKING:
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.storage.env.env import Env

RUNNER = "compiled"

Divide: TypeAlias = Callable[[RoundWork, MapSurvivors, OnOutput], tuple[AddSegments, RewriteGroups]]
"""Takes what is to be called for each output, once it is written."""


def clean(
    env: Env,
    plan: CleanPlan,
    *,
    on_output: OnOutput = no_output,
    check_done: CheckDone = never_done,
    throttle: Throttle = no_throttle,
    sync_threads: int = 0,
    limits: EngineLimits = ENGINE_LIMITS,
    divide: Divide | None = None,
) -> CleanResult:
    """Carry out `plan` as `plain_round.clean` does; `divide` returns what does the two passes in parts (`cleaner.parallel`)."""
    work = RoundWork(env, plan, check_done, throttle, limits)
    records = RowRecords(limits)
    key_map = CompiledMap(work, records)
    survivors = MapSurvivors(plan, key_map)
    rewriter = CompiledRewriter(work, records, survivors)
    has_filters = is_worth_filters(plan)

    def skip_untouched(plan: CleanPlan) -> CleanPlan:
        offsets = key_map.offsets
        return plan if offsets.is_spilled else leave_alone(env, plan, lambda: dirty_hashes(offsets.table, offsets.size))

    def file_facts(output: OutputSegment) -> None:
        if has_filters:
            file_key_facts(env, plan, output)

    try:
        if divide is None:
            round_ = Round(work, key_map, rewriter)
            return round_.run(RUNNER, on_output, sync_threads, leave_alone=skip_untouched, on_written=file_facts)
        add, rewrite = divide(work, survivors, file_facts)
        round_ = Round(work, key_map, rewriter, add=add, rewrite=rewrite)
        return round_.run(RUNNER, on_output, sync_threads, leave_alone=skip_untouched)
    finally:
        key_map.close()
