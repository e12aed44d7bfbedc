"""One round of the cleaner: a key map is filled, then a rewriter goes over the groups of segments.

    Round(work, PlainMap, PlainRewriter)            `plain_round`: ordinary Python
    Round(work, CompiledMap, CompiledRewriter)      `compiled`: kernels

Spark does the two passes in tasks of their own, with a map that is spread over its partitions, and the same rewriter
(`spark/clean`).

Source: Kafka's Cleaner.doClean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeAlias

from diamant.cleaner.engines.dirty_range import DirtyStart, KeyMap, add_segments, map_dirty_range
from diamant.cleaner.engines.group_rewrite import Rewriter, WriterT, rewrite_group
from diamant.cleaner.engines.output_sync import OutputSync
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.grouping import group_segments, segments_to_clean
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.result import CleanResult, OnOutput, OutputSegment, no_output

AddSegments: TypeAlias = Callable[[RoundWork, Any, DirtyStart], bool]
"""`add_segments`, or what does the same."""
RewriteGroups: TypeAlias = Callable[[Sequence[Sequence[SegmentPlan]]], Iterable[OutputSegment]]
"""Returns the outputs of groups as `rewrite_group` does of each."""


def _whole(plan: CleanPlan) -> CleanPlan:
    return plan


class Round(Generic[WriterT]):
    """A key map, a rewriter that asks it, and the work for both. Runs once."""

    def __init__(
        self,
        work: RoundWork,
        key_map: KeyMap,
        rewriter: Rewriter[WriterT],
        *,
        add: AddSegments = add_segments,
        rewrite: RewriteGroups | None = None,
    ) -> None:
        """`add` and `rewrite` do the passes in another way than one segment, and one group, after the other."""
        self.work = work
        self.add = add
        self.rewrite = rewrite or self._rewrite
        self.key_map = key_map
        self.rewriter = rewriter

    def run(
        self,
        runner: str,
        on_output: OnOutput,
        sync_threads: int,
        *,
        leave_alone: Callable[[CleanPlan], CleanPlan] = _whole,
        on_written: OnOutput = no_output,
    ) -> CleanResult:
        """Carry out the plan, and report it under the name `runner`.

        `leave_alone` returns the plan without the segments that the map shows to be untouched; `on_written` is called for each
        output while it is synced, `on_output` once it is durable. Errors: see `plain_round.clean`.
        """
        work, stats = self.work, self.work.stats
        stats.start_s = time.monotonic()
        map_dirty_range(work, self.key_map, add=self.add)
        stats.map_complete_s = time.monotonic()
        plan = leave_alone(work.plan)
        end_offset = self.key_map.end_offset + 1
        outputs: list[OutputSegment] = []
        with OutputSync(work.env, plan.directory, on_output, sync_threads, on_written) as sync:
            for output in self.rewrite(group_segments(plan, segments_to_clean(plan, end_offset))):
                sync.add(output)
                outputs.append(output)
        stats.end_s = time.monotonic()
        return CleanResult(end_offset, tuple(outputs), stats, runner)

    def _rewrite(self, groups: Sequence[Sequence[SegmentPlan]]) -> Iterator[OutputSegment]:
        for group in groups:
            yield from rewrite_group(self.work, self.rewriter, group)
