"""The compiled engine on several CPUs. Its output is byte for byte the same as on one CPU.

A round is divided if it is not throttled and the log is large enough (`WORTH_BYTES`). The first pass is divided if no
transaction was aborted; the second pass is divided up to the first group with a transactional batch.
"""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING

from diamant.cleaner.engines import compiled
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.dirty_range import add_segments
from diamant.cleaner.engines.round import Engine
from diamant.cleaner.parallel.cuts import shares_of
from diamant.cleaner.parallel.groups import GroupRewriters
from diamant.cleaner.parallel.shares import map_shares
from diamant.cleaner.segments.row_records import RowRecords
from diamant.storage.env.env import RealEnv

if TYPE_CHECKING:
    from diamant.cleaner.engines.compiled_map import CompiledMap
    from diamant.cleaner.engines.dirty_range import DirtyStart
    from diamant.cleaner.engines.round import AddSegments, RewriteGroups, Round
    from diamant.cleaner.engines.survivors import MapSurvivors
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.result import OnOutput
    from diamant.cleaner.segments.compiled_segment_writer import CompiledWriter
    from diamant.storage.env.env import Env

WORTH_BYTES = 64 * 1024 * 1024
"""Minimum size of a log for dividing the round. Smaller logs are cleaned in less time than dividing would take."""


def processes_for(env: Env, plan: CleanPlan) -> int:
    """Return the number of processes for a round. This is 1 for an in-memory file system, which children would not share."""
    size = sum(segment.size for segment in plan.segments)
    is_limited = not math.isinf(plan.io_max_bytes_per_second)
    if plan.threads < 2 or size < WORTH_BYTES or is_limited or not isinstance(env, RealEnv):
        return 1
    return min(plan.threads, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


def _new_round(processes: int | None, work: RoundWork) -> Round[CompiledWriter]:
    if processes is None:
        processes = processes_for(work.env, work.plan)
    return compiled.new_round(work, partial(_divide, processes, work) if processes > 1 else None)


def _divide(
    processes: int, work: RoundWork, survivors: MapSurvivors, on_written: OnOutput
) -> tuple[AddSegments, RewriteGroups]:
    def add(work: RoundWork, key_map: CompiledMap, start: DirtyStart) -> bool:
        if work.plan.has_aborted:
            return add_segments(work, key_map, start)
        return map_shares(work, key_map, shares_of(work.env, work.plan, start, processes, work.limits.piece_bytes))

    def new_rewriter(work: RoundWork) -> CompiledRewriter:
        return CompiledRewriter(work, RowRecords(work.limits), survivors)

    return add, GroupRewriters(work, survivors, new_rewriter, on_written, processes).outputs


def engine_for(processes: int | None = None) -> Engine:
    """Return the engine that runs rounds in `processes` processes; None for as many as the plan and the machine allow."""
    return Engine(compiled.clean.runner, partial(_new_round, processes))


clean = engine_for()
