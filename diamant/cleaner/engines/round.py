"""One round of the cleaner: a key map is filled, then a rewriter goes over the groups of segments.

    clean = Engine("inline", new_round)             in `plain_round`: PlainMap and PlainRewriter, ordinary Python
    clean = Engine("compiled", new_round)           in `compiled`: CompiledMap and CompiledRewriter, kernels
    clean = engine_for(processes=2)                 in `parallel.round`: these, and the two passes in parts
    result = clean(env, plan, on_output=swap)

Spark does the two passes in tasks of their own, with a map that is spread over its partitions, and the same rewriter
(`spark/clean`).

Source: Kafka's Cleaner.doClean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
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
"""`add_segments`, or what does the same."""
RewriteGroups: TypeAlias = Callable[[Sequence[Sequence[SegmentPlan]]], Iterable[OutputSegment]]
"""Returns the outputs of groups as `rewrite_group` does of each."""


def _whole(plan: CleanPlan) -> CleanPlan:
    return plan


def _nothing() -> None:
    """Close what holds nothing."""


class Round(Generic[WriterT]):
    """A key map, a rewriter that asks it, and the work for both. Runs once; close it.

    `new_rewriter` makes the rewriter once the map is complete. `add` and `rewrite` do the passes in another way than one segment,
    and one group, after the other. `leave_alone` returns the plan without the segments that the map shows to be untouched;
    `on_written` is called for each output while it is synced.
    """

    def __init__(
        self,
        work: RoundWork,
        key_map: KeyMap,
        new_rewriter: Callable[[], Rewriter[WriterT]],
        *,
        add: AddSegments = add_segments,
        rewrite: RewriteGroups | None = None,
        leave_alone: Callable[[CleanPlan], CleanPlan] = _whole,
        on_written: OnOutput = no_output,
        close: Callable[[], None] = _nothing,
    ) -> None:
        self.work = work
        self.key_map = key_map
        self._new_rewriter = new_rewriter
        self.close = close
        self._add = add
        self._rewrite = rewrite or self._rewrite_each
        self._leave_alone = leave_alone
        self._on_written = on_written

    def run(self, runner: str, on_output: OnOutput, sync_threads: int) -> CleanResult:
        """Carry out the plan, and report it under the name `runner`. See `Engine`."""
        work, stats = self.work, self.work.stats
        stats.start_s = time.monotonic()
        map_dirty_range(work, self.key_map, add=self._add)
        stats.map_complete_s = time.monotonic()
        plan = self._leave_alone(work.plan)
        end_offset = self.key_map.end_offset + 1
        outputs: list[OutputSegment] = []
        with OutputSync(work.env, plan.directory, on_output, sync_threads, self._on_written) as sync:
            for output in self._rewrite(group_segments(plan, segments_to_clean(plan, end_offset))):
                sync.add(output)
                outputs.append(output)
        stats.end_s = time.monotonic()
        return CleanResult(end_offset, tuple(outputs), stats, runner)

    def _rewrite_each(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[OutputSegment]:
        rewriter = self._new_rewriter()
        for group in groups:
            yield from rewrite_group(self.work, rewriter, group)


class Engine:
    """Carries out plans by the rounds that `new_round` makes of their work, and reports them under the name `runner`."""

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
        """Carry out `plan`; blocks, so not for the loop thread.

        `on_output` is called for each group of segments as its files are durable (`sync_threads`: see `output_sync`).
        CorruptLog for bytes that are no batch; if an output cannot take what belongs into it OutputOverflow, in mode prompt
        CorruptLog of the source; and whatever `check_done` raises. The files of the group at hand are removed then, groups
        handed over before stay as they are.
        """
        with closing(self._new_round(RoundWork(env, plan, check_done, throttle, limits))) as round_:
            return round_.run(self.runner, on_output, sync_threads)
