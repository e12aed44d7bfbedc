"""One round of the cleaner: the first pass fills a key map, the second rewrites the groups of segments.

    clean = Engine("inline", new_round)             in `plain_round`: PlainMap and PlainRewriter, ordinary Python
    clean = Engine("compiled", new_round)           in `compiled`: CompiledMap and CompiledRewriter, kernels
    clean = engine_for(processes=2)                 in `parallel.parallel_engine`: the compiled parts, in several processes
    result = clean(env, plan, on_output=swap)

Spark runs the two passes in its own tasks, with a map distributed over its partitions and the same rewriter (`spark/clean`).

Source: Kafka's Cleaner.doClean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from diamant.cleaner.engines.dirty_range import DirtyStart, KeyMap, add_segments, map_dirty_range
from diamant.cleaner.engines.group_rewrite import Rewriter, WriterT, rewrite_group
from diamant.cleaner.engines.output_sync import OutputSync
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS, EngineLimits
from diamant.cleaner.rules.grouping import group_segments, segments_to_clean
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
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
from diamant.storage.env.env import Env

AddSegments: TypeAlias = Callable[[RoundWork, Any, DirtyStart], bool]
"""`add_segments`, or a function that does the same in another way."""
RewriteGroups: TypeAlias = Callable[[Sequence[Sequence[SegmentPlan]]], Iterable[OutputSegment]]
"""Rewrites all groups as `rewrite_group` does, and returns their outputs."""


def _whole(plan: CleanPlan) -> CleanPlan:
    return plan


def _nothing() -> None:
    """Do nothing: there are no resources to release."""


@dataclass(frozen=True, slots=True)
class Round(Generic[WriterT]):
    """The parts of a round. Use them only once, then call `close`."""

    work: RoundWork
    key_map: KeyMap
    new_rewriter: Callable[[], Rewriter[WriterT]]
    """Creates the rewriter once the map is complete."""
    add: AddSegments = add_segments
    rewrite: RewriteGroups | None = None
    """Replaces `rewrite_each`, unless it is None."""
    leave_alone: Callable[[CleanPlan], CleanPlan] = _whole
    """Returns the plan with a mark on each segment that, according to the map, need not be rewritten."""
    on_written: OnOutput = no_output
    """Called for each output once it is written, before or during its sync."""
    close: Callable[[], None] = _nothing

    def rewrite_each(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[OutputSegment]:
        """Rewrite one group after the other, and yield their outputs."""
        rewriter = self.new_rewriter()
        for group in groups:
            yield from rewrite_group(self.work, rewriter, group)


class Engine:
    """Executes plans in rounds made by `new_round`, and reports them under the name `runner`."""

    def __init__(self, runner: str, new_round: Callable[[RoundWork], Round[Any]]) -> None:
        self.runner = runner
        self._new_round = new_round

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
    ) -> CleanResult:
        """Execute `plan`. This blocks, so do not call it in the loop thread.

        `on_output` is called for each output when its files are durable (`sync_threads`: see `output_sync`). Raises CorruptLog
        for bytes that are not a batch, OutputOverflow for an output that would exceed a limit (in mode prompt, CorruptLog for its
        source instead), and the errors of `check_done`. After an error, outputs that have been handed over remain, and the files
        of all other outputs are removed.
        """
        outputs: list[OutputSegment] = []
        with closing(self._new_round(RoundWork(env, plan, check_done, throttle, limits))) as parts:
            work, stats = parts.work, parts.work.stats
            stats.start_s = time.monotonic()
            map_dirty_range(work, parts.key_map, add=parts.add)
            stats.map_complete_s = time.monotonic()
            plan = parts.leave_alone(plan)
            end_offset = parts.key_map.end_offset + 1
            groups = group_segments(plan, segments_to_clean(plan, end_offset))
            with OutputSync(env, plan.directory, on_output, sync_threads, parts.on_written) as sync:
                for output in (parts.rewrite or parts.rewrite_each)(groups):
                    sync.add(output)
                    outputs.append(output)
            stats.end_s = time.monotonic()
        return CleanResult(end_offset, tuple(outputs), stats, self.runner)
