"""Picks the next log to clean.

A *scan* examines all logs and queues those to clean, the most urgent first. A scan yields to other tasks, so each queued log
is checked again before it is taken. In mode kafka each scan supplies only one log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor

from diamant.cleaner.facts.prompt_state import PromptLog, PromptLogs
from diamant.cleaner.rules import time_based_roll
from diamant.cleaner.rules.eligibility import BY_TIMESTAMP, CleanableRange, by_urgency, cleanable_range, is_candidate
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.tombstone_hold import TombstoneHolds, no_hold
from diamant.cleaner.service import kafka_log_lines, log_messages
from diamant.cleaner.service.metrics import CleanerMetrics
from diamant.cleaner.service.partition_states import PartitionStates
from diamant.cleaner.service.repeated_errors import RepeatedErrors
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

logger = logging.getLogger(__name__)

SEGMENTS_PER_TURN = 256
"""Number of segments that a pass over all logs examines before it yields to other tasks."""

FRESH_S = 1.0
"""Mode prompt: time, on the real clock, for which the logs that a scan has queued are used; then a new scan begins."""

CANNOT_LOOK = "the log cannot be examined"
CANNOT_ROLL = "the active segment cannot be rolled"
UNKNOWN_DEADLINE = "the time of the next round is unknown"


class LogPicker:
    """Picks logs on the loop thread; files are read in `blocking`. `prompt` is None in mode kafka."""

    def __init__(
        self,
        env: Env,
        logs: Mapping[TopicPartition, Log],
        states: PartitionStates,
        metrics: CleanerMetrics,
        prompt: PromptLogs | None,
        blocking: Executor,
        holds: TombstoneHolds = no_hold,
    ) -> None:
        self._env = env
        self.logs = logs
        self._states = states
        self._metrics = metrics
        self._prompt = prompt
        self._blocking = blocking
        self.holds = holds
        """Returns the current hold on a log's tombstones (`rules.tombstone_hold`), or None."""
        self.next_deadline_ms: int | None = None
        """Mode prompt: next time at which a log will be due or a segment must be rolled, as of the last scan; None for never."""
        self._to_learn: list[tuple[PromptLog, int]] = []
        """Mode prompt: the logs for `take_to_learn`."""
        self.without_filters: list[PromptLog] = []
        """Mode prompt: logs with segments that may lack a key filter, as of the last scan."""
        self._errors = RepeatedErrors()
        self._found: deque[Log] = deque()
        self._fresh_until_s = 0.0

    async def next(self) -> Log | None:
        """Return the next log to clean, or None. It is free and due, but may no longer be after another `await`."""
        if self._prompt is None or asyncio.get_running_loop().time() >= self._fresh_until_s:
            self._found.clear()
        if (log := self._take()) is not None:
            return log
        await self._scan()
        return self._take()

    def take_to_learn(self) -> list[tuple[PromptLog, int]]:
        """Remove and return the logs that, in the last scan, had unknown expiry times, each with its first dirty offset."""
        found, self._to_learn = self._to_learn, []
        return found

    def forget(self) -> None:
        """Discard the queued logs, so that the next call of `next` starts a new scan."""
        self._found.clear()

    def is_open(self, log: Log) -> bool:
        """Return whether a round on a log may begin now, whether or not there is anything to clean."""
        return why_not(log) is None and self._states.is_free(_name(log))

    def cleanable_range(self, log: Log, now_ms: int, *, force: bool = False) -> CleanableRange | None:
        """Return the cleanable range of a log. If it cannot be determined, mark the log uncleanable and return None.

        A checkpoint that lies outside the log is replaced. With `force`, `min.compaction.lag.ms` is ignored.
        """
        partition = log.topic, log.partition
        checkpoint = self._states.checkpoint(partition)
        try:
            if self._prompt is None:
                cleanable = cleanable_range(log, checkpoint, now_ms, force=force)
            else:
                cleanable = self._prompt.of(log).cleanable_range(checkpoint, now_ms, force=force)
        except (StorageError, OSError) as error:
            # Kafka abandons the whole scan, and leaves out this log when it scans again after a pause.
            marked = self._states.mark_uncleanable(partition, str(error), now_ms, is_retried=self._prompt is not None)
            retry_in_ms = marked.retry_in_ms(now_ms)
            if self._prompt is None:
                kafka_log_lines.log_uncleanable(log)
            logger.warning("%s", log_messages.partition_uncleanable(*partition, error, retry_in_ms=retry_in_ms))
            return None
        if cleanable.is_checkpoint_reset:
            # With both policies, retention regularly moves the log start beyond the checkpoint.
            logger.log(
                logging.DEBUG if log.config.is_deleted else logging.WARNING,
                "%s-%d: the checkpoint %s is outside the log, which has offsets %d to %d; cleaning begins at %d",
                *partition,
                checkpoint,
                log.log_start_offset,
                log.log_end_offset,
                cleanable.first_dirty_offset,
            )
            self._states.set_checkpoint(partition, cleanable.first_dirty_offset)
        return cleanable

    def is_horizon_due(self, log: Log, found: CleanableRange, now_ms: int) -> bool:
        """Return whether the clean section of a log contains expired records that a round could remove."""
        if self._prompt is None:
            return False
        horizon_ms = self._prompt.of(log).horizon_ms(found.first_dirty_offset, now_ms, self.holds(log))
        return horizon_ms is not None and horizon_ms <= now_ms

    async def compacted(self) -> AsyncIterator[Log]:
        """Yield the compacted logs, letting other tasks run in between. Each log still exists when it is yielded."""
        count = 0
        for partition, log in list(self.logs.items()):
            if count >= SEGMENTS_PER_TURN:
                count = 0
                await asyncio.sleep(0)
            count += 1
            if log.config.is_compacted and self.logs.get(partition) is log:
                count += len(log.segments)
                yield log

    def _take(self) -> Log | None:
        """Return the first queued log that is still due."""
        while self._found:
            log = self._found.popleft()
            now_ms = self._env.clock.now_ms()
            cleanable = self._look_if_open(log, now_ms)
            if cleanable is None or not is_candidate(log, cleanable):
                continue
            if cleanable.is_eligible or self.is_horizon_due(log, cleanable, now_ms):
                return log
        return None

    def _look_if_open(self, log: Log, now_ms: int) -> CleanableRange | None:
        if not self.is_open(log) or self._states.is_uncleanable(_name(log), now_ms):
            return None
        return self.cleanable_range(log, now_ms)

    async def _scan(self) -> None:
        now_ms = self._env.clock.now_ms()
        self._metrics.scan_started_ms = now_ms
        self.next_deadline_ms = None
        self._to_learn = []
        self.without_filters = []
        self._errors.keep_only(self.logs)
        found: list[tuple[Log, CleanableRange]] = []
        expiring: list[Log] = []
        delays_ms: list[int] = []
        async for log in self.compacted():
            try:
                await self._learn_first_timestamps(log, now_ms)
                range_ = self._survey(log, now_ms)
                is_expiring = range_ is not None and not range_.is_eligible and self.is_horizon_due(log, range_, now_ms)
            except Exception as error:
                # An error in one log must not hide the others. Kafka abandons the whole scan.
                self._errors.log(_name(log), CANNOT_LOOK, error)
                continue
            self._errors.is_over(_name(log), CANNOT_LOOK)
            if range_ is not None:
                # The delay counts even if an open transaction keeps the whole log from being cleaned.
                delays_ms.append(range_.delay_ms)
            if range_ is not None and is_candidate(log, range_):
                found.append((log, range_))
                if is_expiring:
                    expiring.append(log)
        urgent = [log for log, _ in by_urgency(found, KAFKA if self._prompt is None else PROMPT)]
        self._metrics.max_dirty_ratio = max((range_.dirty_ratio for _, range_ in found), default=0.0)
        if urgent or self._prompt is not None:
            # Kafka's gauge keeps its value while there is nothing to clean.
            self._metrics.max_delay_ms = max(delays_ms, default=0)
        overdue = sum(delay_ms > 0 for delay_ms in delays_ms)
        text = log_messages.delayed_partitions(len(urgent), overdue, max(delays_ms, default=0))
        if urgent and text is not None:
            logger.info("%s", text)
        self._found.extend([*urgent, *expiring])
        self._fresh_until_s = asyncio.get_running_loop().time() + FRESH_S

    def _survey(self, log: Log, now_ms: int) -> CleanableRange | None:
        """Roll the active segment if due, and update the log's metrics. Return the range to clean; None if no round may begin."""
        if self._prompt is not None:
            self._roll_if_due(log, now_ms)
            if self._prompt.of(log).refresh():
                self._states.retry_now(_name(log), now_ms)
        range_ = self._look_if_open(log, now_ms)
        due_ms = None if self._prompt is None else self._deadline_ms(self._prompt.of(log), range_, now_ms)
        seen = self._look_aside(log, now_ms) if range_ is None else range_
        if seen is not None:
            oldest_ms = time_based_roll.oldest_append_ms(log, self._states.first_dirty(log), now_ms, with_active=True)
            by_append = self._prompt is not None
            must_clean_bytes = time_based_roll.must_clean_bytes(log, seen, now_ms, by_append=by_append)
            self._metrics.saw(_name(log), seen, now_ms, due_ms, oldest_ms, must_clean_bytes)
        return range_

    def _look_aside(self, log: Log, now_ms: int) -> CleanableRange | None:
        """Return the cleanable range of an uncleanable log, for metrics; None if it cannot be determined."""
        if not self._states.is_uncleanable(_name(log), now_ms):
            return None
        try:
            ages = BY_TIMESTAMP if self._prompt is None else time_based_roll.BY_APPEND
            return cleanable_range(log, self._states.checkpoint(_name(log)), now_ms, ages=ages)
        except (StorageError, OSError):
            return None

    def _roll_if_due(self, log: Log, now_ms: int) -> None:
        try:
            if time_based_roll.should_roll(log, now_ms):
                log.roll()
                logger.debug("%s-%d: rolled at offset %d", *_name(log), log.log_end_offset)
        except (StorageError, OSError) as error:
            self._errors.log(_name(log), CANNOT_ROLL, error)
        else:
            self._errors.is_over(_name(log), CANNOT_ROLL)

    def _deadline_ms(self, known: PromptLog, found: CleanableRange | None, now_ms: int) -> int | None:
        """Return the time at which a log is or was due. Also update the next deadline and the lists of this scan.

        The next deadline is never in the past: an overdue round, such as one that a quarantined segment prevents, is waiting for
        something other than time.
        """
        log = known.log
        kept_ms: int | None = None
        try:
            if found is None:
                times = [time_based_roll.roll_due_ms(log, now_ms)]
            else:
                first_dirty = found.first_dirty_offset
                horizon_ms = known.horizon_ms(first_dirty, now_ms, self.holds(log))
                times = [time_based_roll.due_ms(log, first_dirty, now_ms), horizon_ms]
                if known.unknown(first_dirty):
                    self._to_learn.append((known, first_dirty))
                if known.without_filter():
                    self.without_filters.append(known)
            if found is None or known.quarantine.segments:
                kept_ms = time_based_roll.due_ms(log, self._states.first_dirty(log), now_ms)
        except (StorageError, OSError) as error:
            self._errors.log(_name(log), UNKNOWN_DEADLINE, error)
            return None
        self._errors.is_over(_name(log), UNKNOWN_DEADLINE)
        known_times = [time for time in times if time is not None]
        ahead = [time for time in known_times if time > now_ms]
        if self.next_deadline_ms is not None:
            ahead.append(self.next_deadline_ms)
        self.next_deadline_ms = min(ahead, default=None)
        return min([*known_times, *([] if kept_ms is None else [kept_ms])], default=None)

    async def _learn_first_timestamps(self, log: Log, now_ms: int) -> None:
        """Load the first timestamps of dirty segments, which are unknown after a restart. Runs in a thread of `blocking`."""
        segments = log.segments[log.floor_segment(self._states.first_dirty(log)) : -1]
        if self._prompt is not None:
            segments.append(log.active)
        unknown = [segment for segment in segments if not segment.knows_first_timestamp]
        if unknown:
            await asyncio.get_running_loop().run_in_executor(self._blocking, look_at_first_timestamps, unknown)


def why_not(log: Log) -> str | None:
    """Return the reason why no round may clean a log; None if rounds are allowed."""
    if log.is_deleted:
        return "the partition is deleted"
    if not log.config.is_compacted:
        return f"cleanup.policy is {','.join(sorted(log.config.cleanup_policy)) or 'empty'}, not compact"
    if log.write_failure is not None:
        return f"the partition has refused writes since this failure: {log.write_failure}"
    return None


def look_at_first_timestamps(segments: Sequence[Segment]) -> None:
    """Load the timestamp of each segment's first batch, unless known. Callable from any thread.

    Skips unreadable segments; the next attempt to read them raises the error.
    """
    for segment in segments:
        try:
            segment.load_first_timestamp()
        except (StorageError, OSError):
            continue


def _name(log: Log) -> TopicPartition:
    return log.topic, log.partition
