"""One round at one log, from the plan to the last swap.

The owner makes the plan, a runner carries it out elsewhere, and each output comes back to the owner, who checks that the
segments are still those of the plan and exchanges them. What blocks for the disk goes to `blocking`'s threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import pairwise

from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.planning import plan_segment
from diamant.cleaner.rules.result import CheckDone, CleanResult, OutputSegment
from diamant.cleaner.runners.contract import Runner
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement
from diamant.storage.segments.segment import Segment


def no_note(_count: int) -> None:
    """Take no note."""


async def run_plan(
    log: Log,
    plan: CleanPlan,
    runner: Runner,
    *,
    check_done: CheckDone,
    blocking: Executor,
    on_freed: Callable[[int], object] = no_note,
) -> CleanResult:
    """Carry out `plan`, made of `log` in this same turn of the loop, and swap its outputs in.

    `on_freed` is told of each output how many bytes smaller it is than its sources.
    Raises what `Runner.run` raises, and SourcesChanged if the log is not as planned any more. Outputs swapped before stay.
    """
    sizes = {segment.base_offset: segment.size for segment in plan.segments}

    async def swap(output: OutputSegment) -> None:
        source_sizes = [sizes[base] for base in output.source_base_offsets]
        on_freed(sum(source_sizes) - output.size)
        await _swap(log, output, source_sizes, check_done, blocking)

    return await runner.run(plan, on_output=swap, check_done=check_done)


async def _swap(
    log: Log, output: OutputSegment, source_sizes: Sequence[int], check_done: CheckDone, blocking: Executor
) -> None:
    loop = asyncio.get_running_loop()
    replacement = Replacement(
        log, output.base_offset, output.source_base_offsets, source_sizes=source_sizes, size=output.size
    )
    try:
        replacement.open()
        await (loop.run_in_executor(blocking, replacement.prepare) if replacement.must_prepare else asyncio.sleep(0))
        check_done()
    except BaseException:
        await loop.run_in_executor(blocking, replacement.abandon)
        raise
    turns = replacement.swap_in_turns()
    try:
        for _ in turns:
            await asyncio.sleep(0)
    finally:
        # Cancelled or not: what has begun is ended.
        for _ in turns:
            pass
    await loop.run_in_executor(blocking, replacement.finish)


def holds(log: Log, plan: CleanPlan) -> bool:
    """Tell whether the plan's segments are still the log's; if not, a round that failed did so for no fault of the log."""
    if log.is_deleted:
        return False
    present = {segment.base_offset: segment.size for segment in log.segments}
    return all(present.get(segment.base_offset) == segment.size for segment in plan.segments)


def look_at_segments(env: Env, segments: Sequence[Segment]) -> dict[Segment, SegmentPlan]:
    """Return what a plan says of all these segments but the last one, so that making it reads no file. Any thread.

    A segment that is removed since is passed over.
    """
    found = {}
    for segment, following in pairwise(segments):
        try:
            found[segment] = plan_segment(env, segment, following.base_offset)
        except (StorageError, OSError):
            if not segment.is_deleted:
                raise
    return found


def look_at_first_timestamps(segments: Sequence[Segment]) -> None:
    """Have segments that take no appends note the timestamp of their first batch. Any thread.

    What cannot be read is left to the next caller, and the error with it.
    """
    for segment in segments:
        try:
            segment.load_first_timestamp()
        except (StorageError, OSError):
            continue
