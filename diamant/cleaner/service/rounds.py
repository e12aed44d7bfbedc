"""Rounds: each cleans one log, from the choice of its range to the last swap.

The owner of the log makes the plan, and a runner executes it elsewhere. The runner hands each output to the owner, which checks
that the log still has the plan's segments, and swaps the output in. Disk I/O runs in the threads of `blocking`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from diamant.cleaner.facts.partition_facts import horizon_round_end
from diamant.cleaner.facts.prompt_state import PromptLogs
from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.plan_of_log import CleanerSettings, make_plan, plan_segment
from diamant.cleaner.rules.result import CheckDone, CleaningAborted, CleanResult, OnOutput, OutputSegment, no_output
from diamant.cleaner.runners.contract import MemoryLimit, NoRoom, Runner, RunnerFailed, SwapOutput, check_room
from diamant.cleaner.runners.exchange import SwapHolds, exchange
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.service import kafka_log_lines, log_messages
from diamant.cleaner.service.cleaner_slot import CleanerSlot, RunningRound
from diamant.cleaner.service.log_picker import LogPicker, why_not
from diamant.cleaner.service.partition_states import PartitionStates
from diamant.cleaner.service.round_requests import RoundReport, RoundRequests
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, RecordTooLarge, StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

logger = logging.getLogger(__name__)

MAX_INLINE_ROUNDS = 2
"""Maximum number of concurrent rounds in threads of the broker. More would only compete for its interpreter."""

MAX_RESTARTS = 5
"""Number of consecutive rounds that may fail because the log has changed, before the partition becomes uncleanable."""


ExpiryWatch: TypeAlias = Callable[[Log, int], Awaitable[Callable[[CleanPlan, int], object] | None]]
"""Called with the log and the time before each round. It may return a function, which is called after the round with the plan
and the end offset."""


async def no_watch(_log: Log, _now_ms: int) -> None:
    """Do nothing: an `ExpiryWatch` that watches nothing."""


class Rounds:
    """The rounds of a cleaner. Use it on the loop thread only; `prompt` is None in mode kafka."""

    def __init__(
        self,
        env: Env,
        states: PartitionStates,
        picker: LogPicker,
        prompt: PromptLogs | None,
        settings: CleanerSettings,
        blocking: Executor,
        watch: ExpiryWatch,
    ) -> None:
        self.settings = settings
        """Settings of the rounds that begin from now on."""
        self.swap_holds = SwapHolds()
        self._env = env
        self._states = states
        self._picker = picker
        self._prompt = prompt
        self._blocking = blocking
        self._watch = watch
        self._inline_turns = asyncio.Semaphore(MAX_INLINE_ROUNDS)
        self._restarts: dict[TopicPartition, int] = {}
        """Consecutive failed rounds of each partition."""

    def forget_failures(self, partition: TopicPartition) -> None:
        """Reset the count of failures, because the log was replaced, reconfigured or cleaned."""
        self._restarts.pop(partition, None)

    async def run(self, slot: CleanerSlot, log: Log, requests: RoundRequests, rounds: int = 1) -> RoundReport:
        """Run a round on an acquired log; errors are reported, not raised. The `rounds` in progress share the plan's threads."""
        partition = log.topic, log.partition
        started_ms = self._env.clock.now_ms()
        check_done = partial(self._states.check_done, partition)
        found: CleanableRange | None = None
        plan: CleanPlan | None = None
        result: CleanResult | None = None
        checkpoint: int | None = None
        error: str | None = None
        try:
            in_thread = asyncio.get_running_loop().run_in_executor
            known = await in_thread(self._blocking, look_at_segments, self._env, list(log.segments))
            note_expired = await self._watch(log, started_ms)
            check_done()
            now_ms = self._env.clock.now_ms()
            if (error := why_not(log)) is None:
                found = self._picker.cleanable_range(log, now_ms, force=requests.request.force)
            if found is not None:
                plan = self._plan(log, found, now_ms, known, requests)
            known.clear()  # otherwise thousands of replaced segments would be freed, and their files closed, when the round ends
            if plan is not None:
                plan = replace(plan, threads=max(1, plan.threads // rounds))
                runner = await self._runner(slot, plan, requests)
                async with self._inline_turns if isinstance(runner, InlineRunner) else nullcontext():
                    running = slot.running = RunningRound(plan, runner, self._env.clock.now_ms())
                    swap = swap_into(
                        log,
                        plan,
                        runner,
                        check_done=check_done,
                        blocking=self._blocking,
                        on_freed=running.free,
                        on_swapped_in=no_output if self._prompt is None else self._prompt.of(log).note_swapped_in,
                        until_free=self.swap_holds.released,
                    )
                    result = await runner.run(plan, on_output=swap, check_done=check_done)
                slot.note_ready(runner)
                checkpoint = await self._end(log, plan, result)
                if note_expired is not None:
                    note_expired(plan, result.end_offset if plan.has_dirty_range else plan.first_uncleanable_offset)
                self._log_result(slot, plan, result)
        except CleaningAborted as aborted:
            error = str(aborted)
            logger.info("%s", error)
        except Exception as failure:
            error = self._failed(log, plan, failure)
            checkpoint = None
        return RoundReport(*partition, found, result, checkpoint, started_ms, self._env.clock.now_ms(), error)

    def _plan(
        self,
        log: Log,
        found: CleanableRange,
        now_ms: int,
        known: Mapping[Segment, SegmentPlan],
        requests: RoundRequests,
    ) -> CleanPlan | None:
        """Return the plan of a round over the cleanable range, or only for expired records; None if there is nothing to do."""
        is_dirty = found.cleanable_bytes > 0 and (bool(requests.futures) or found.is_eligible)
        if not is_dirty and not (requests.request.is_for_horizons or self._picker.is_horizon_due(log, found, now_ms)):
            return None
        first_dirty, end = found.first_dirty_offset, found.first_uncleanable_offset
        if not is_dirty:
            # Kafka has no such round. The result is the same as that of a Kafka round whose dirty section supersedes nothing.
            first_dirty = end = horizon_round_end(log, first_dirty)
        plan = make_plan(log, first_dirty, end, now_ms, self.settings, known)
        if (hold := self._picker.holds(log)) is not None:
            plan = replace(plan, held_above=hold.above, held_since_ms=now_ms - hold.max_ms)
        return plan if self._prompt is None else self._prompt.of(log).fit(plan, found.first_dirty_offset, hold)

    async def _runner(self, slot: CleanerSlot, plan: CleanPlan, requests: RoundRequests) -> Runner:
        """Return the runner for a plan. Raises NoRoom if it cannot be offloaded now, and this machine may lack disk space."""
        engine = requests.request.engine
        runner = slot.runner_for(plan, is_requested=bool(requests.futures), engine=engine)
        if engine is None and slot.is_fallback(runner, plan):
            await asyncio.get_running_loop().run_in_executor(self._blocking, check_room, self._env, plan)
        return runner

    async def _end(self, log: Log, plan: CleanPlan, result: CleanResult) -> int | None:
        """Return the checkpoint after a round; None if unchanged."""
        checkpoint: int | None = None
        if plan.has_dirty_range:
            checkpoint = result.end_offset
            if checkpoint <= plan.first_dirty_offset:
                raise StorageError(f"the round ended at its first offset, {checkpoint}: the offset map is too small")
            if self._prompt is not None:
                checkpoint = self._prompt.of(log).quarantine.end_round(plan, checkpoint)
        if self._prompt is not None:
            await self._prompt.prune(log)
        return checkpoint

    def _failed(self, log: Log, plan: CleanPlan | None, failure: Exception) -> str:
        """Record that a round failed; return the reason for its report."""
        partition = log.topic, log.partition
        reason = str(failure) or type(failure).__name__
        # If the log has changed or the worker was killed, the log is not to blame, so do not mark it uncleanable.
        is_changed = plan is not None and not holds(log, plan)
        is_killed = isinstance(failure, RunnerFailed) and not isinstance(failure, MemoryLimit | NoRoom)
        restarts = self._restarts[partition] = self._restarts.get(partition, 0) + 1
        if log.is_deleted or (is_changed and restarts <= MAX_RESTARTS) or (is_killed and restarts <= 1):
            logger.info("%s-%d: the round was interrupted: %s", *partition, reason)
            return reason
        now_ms = self._env.clock.now_ms()
        if self._prompt is not None and plan is not None and isinstance(failure, CorruptLog):
            is_tried_again = self._prompt.of(log).add_corrupt(failure, plan.first_dirty_offset, now_ms)
            if is_tried_again:
                return reason
        # For an OSError, Kafka takes the whole log directory offline. If a worker died, the log is not to blame.
        is_retried = self._prompt is not None or isinstance(failure, OSError | RunnerFailed)
        is_retried = is_retried and not isinstance(failure, RecordTooLarge)
        found = self._states.mark_uncleanable(partition, reason, now_ms, is_retried=is_retried)
        when = "not tried again" if found.retry_ms is None else f"next try in {(found.retry_ms - now_ms) // 1000} s"
        if self._prompt is None:
            kafka_log_lines.log_uncleanable(log)
        is_expected = isinstance(failure, OSError | StorageError)
        logger.warning(
            "%s-%d: uncleanable, %s: %s", *partition, when, reason, exc_info=None if is_expected else failure
        )
        return reason

    def _log_result(self, slot: CleanerSlot, plan: CleanPlan, result: CleanResult) -> None:
        if self._prompt is None:
            kafka_log_lines.log_round(slot.index, plan, result)
        logger.info("%s", log_messages.round_summary(plan, result))
        if (text := log_messages.offset_map_full(plan, result.end_offset)) is not None:
            logger.info("%s", text)
        if (text := log_messages.invalid_messages(plan, result)) is not None:
            logger.warning("%s", text)


def no_note(_count: int) -> None:
    """Ignore the count."""


async def never_held(_partition: TopicPartition) -> None:
    """Return immediately: no partition is held."""


def swap_into(
    log: Log,
    plan: CleanPlan,
    runner: Runner,
    *,
    check_done: CheckDone,
    blocking: Executor,
    on_freed: Callable[[int], object] = no_note,
    on_swapped_in: OnOutput = no_output,
    until_free: Callable[[TopicPartition], Awaitable[None]] = never_held,
) -> SwapOutput:
    """Return a function that swaps an output of `plan`, which `runner` executes, into `log`.

    The function first passes to `on_freed` by how many bytes the output is smaller than its sources, and waits for `until_free`;
    after the swap it passes the output to `on_swapped_in`. It raises SourcesChanged if the log no longer has the sources that the
    plan lists. Earlier swaps remain.
    """
    sizes = {segment.base_offset: segment.size for segment in plan.segments}

    async def swap(output: OutputSegment) -> None:
        source_sizes = [sizes[base] for base in output.source_base_offsets]
        on_freed(sum(source_sizes) - output.size)
        await until_free((log.topic, log.partition))
        await exchange(log, output, source_sizes, runner, check_done=check_done, blocking=blocking)
        on_swapped_in(output)

    return swap


def holds(log: Log, plan: CleanPlan) -> bool:
    """Return whether the log still has the plan's segments. If not, the log is not to blame for a failed round."""
    if log.is_deleted:
        return False
    present = {segment.base_offset: segment.size for segment in log.segments}
    return all(present.get(segment.base_offset) == segment.size for segment in plan.segments)


def look_at_segments(env: Env, segments: Sequence[Segment]) -> dict[Segment, SegmentPlan]:
    """Return the plan entries of these segments, except the last one; with them, `make_plan` need not read the files.

    Callable from any thread. Skips segments that have been deleted in between.
    """
    found = {}
    for segment, following in pairwise(segments):
        try:
            found[segment] = plan_segment(env, segment, following.base_offset)
        except (StorageError, OSError):
            if not segment.is_deleted:
                raise
    return found
