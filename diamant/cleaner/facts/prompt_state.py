"""The state that mode prompt has for each compacted log in addition to Kafka's checkpoint: corrupt segments and expiry times.

It is kept in memory only. After a start, the first scans and rounds restore it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from diamant.cleaner.facts.facts_file import MIN_FILED_BYTES, facts_from, prune, read_facts
from diamant.cleaner.facts.key_filter import MIN_LOG_BYTES
from diamant.cleaner.facts.partition_facts import PartitionFacts
from diamant.cleaner.facts.quarantine import CorruptSegment, Quarantine
from diamant.cleaner.rules.eligibility import CleanableRange, cleanable_range
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.rules.time_based_roll import BY_APPEND
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

logger = logging.getLogger(__name__)

PAUSE_FACTOR = 9
"""Reading facts takes a tenth of a thread's time: each segment is followed by a pause of this many times the reading time ..."""
MAX_PAUSE_S = 1.0
"""... but at most this long."""


class PromptLog:
    """The state of one log in mode prompt. Belongs to the log's owner."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.facts = PartitionFacts()
        self.quarantine = Quarantine()
        self._unread: dict[int, Segment] = {}
        """Segments whose facts could not be read."""
        self._filtered: dict[int, Segment] = {}
        """Segments that have a filter, or for which none will be made."""

    def cleanable_range(self, checkpoint: int | None, now_ms: int, *, force: bool) -> CleanableRange:
        """Return the range of the next round, and quarantine segments that turn out to be unreadable. Raises CorruptLog."""
        while True:
            first_dirty = self.quarantine.first_dirty(checkpoint)
            try:
                return cleanable_range(self.log, first_dirty, now_ms, force=force, ages=BY_APPEND)
            except CorruptLog as error:
                first = self.log.log_start_offset if first_dirty is None else first_dirty
                if not self.add_corrupt(error, first, now_ms):
                    raise

    def refresh(self) -> bool:
        """Release quarantined segments whose files have been replaced, or that are gone; return True if there are any."""
        let_out = self.quarantine.refresh(self.log)
        for segment in let_out:
            logger.info("%s: the segment at %d is out of quarantine", self.log.path, segment.base_offset)
        return bool(let_out)

    def release(self) -> None:
        """Let everything that could not be read be tried again."""
        self.quarantine.release(self.log)
        self._unread.clear()

    def add_corrupt(self, error: CorruptLog, first_dirty_offset: int, now_ms: int) -> bool:
        """Quarantine the segment that a round from `first_dirty_offset` on could not read; return False if that does not help."""
        corrupt_segment = self.quarantine.add(self.log, error, first_dirty_offset, now_ms)
        if corrupt_segment is None:
            return False
        segment = self.log.segments[self.log.floor_segment(corrupt_segment.base_offset)]
        segment.pass_over_first_timestamp()
        logger.warning("%s; the segment is in quarantine, the rest of the log is cleaned", error)
        return True

    # -- horizons ------------------------------------------------------------------------------------------------

    def horizon_ms(self, first_dirty_offset: int, now_ms: int, hold: TombstoneHold | None) -> int | None:
        """Return the time, maybe in the past, at which a round for known expiry times is due; None if none is known."""
        frozen_above = self.quarantine.frozen_above(now_ms)
        return self.facts.next_horizon_ms(self.log, first_dirty_offset, frozen_above, hold)

    def unknown(self, first_dirty_offset: int) -> list[tuple[int, int]]:
        """Return base offset and size of each clean segment whose facts have not been read."""
        present = {segment.base_offset: segment for segment in self.log.segments} if self._unread else {}
        self._unread = {base: segment for base, segment in self._unread.items() if present.get(base) is segment}
        corrupt = {segment.base_offset for segment in self.quarantine.segments}
        return [
            (base, size)
            for base, size in self.facts.unknown(self.log, first_dirty_offset)
            if base not in self._unread and base not in corrupt
        ]

    def without_filter(self) -> list[Segment]:
        """Return the closed segments that should have a key filter but may lack it."""
        segments, known = self.log.segments, self._filtered
        if sum(segment.size for segment in segments) < MIN_LOG_BYTES:
            return []
        if len(known) > len(segments):
            present = set(segments)
            known = self._filtered = {base: segment for base, segment in known.items() if segment in present}
        return [
            segment
            for segment in segments[:-1]
            if segment.size >= MIN_FILED_BYTES and known.get(segment.base_offset) is not segment
        ]

    def note_filter(self, segment: Segment) -> None:
        """Record that a segment has a filter, or that none will be made for it."""
        self._filtered[segment.base_offset] = segment

    def note_swapped_in(self, output: OutputSegment) -> None:
        """Add the facts of an output that was swapped in, if it contains them, so that they need not be read."""
        if output.facts is not None:
            segment = self.facts.add_swapped_in(self.log, facts_from(output.facts))
            if segment is not None:
                self.note_filter(segment)

    def segment_at(self, base_offset: int) -> Segment | None:
        """Return the segment with this base offset."""
        segment = self.log.segments[max(0, self.log.floor_segment(base_offset))]
        return segment if segment.base_offset == base_offset else None

    def pass_over(self, segment: Segment) -> None:
        """Never try again to read the facts of a segment, unless `release` is called."""
        self._unread[segment.base_offset] = segment

    # -- rounds --------------------------------------------------------------------------------------------------

    def fit(self, plan: CleanPlan, clean_end: int, hold: TombstoneHold | None) -> CleanPlan:
        """Record that a round begins; return its plan without corrupt segments. `clean_end` is the end of the clean section.

        If nothing is dirty, segments in which nothing is due are marked as untouched.
        """
        plan = self.quarantine.plan_around(plan)
        if not plan.has_dirty_range:
            plan = self.facts.without_untouched(plan)
        self.facts.note_round(self.log, clean_end, plan.now_ms, hold)
        return plan


class PromptLogs:
    """The state of all logs in mode prompt. Files are read in `blocking`."""

    def __init__(self, env: Env, blocking: Executor) -> None:
        self._env = env
        self._blocking = blocking
        self._logs: dict[TopicPartition, PromptLog] = {}
        self._learning: asyncio.Task[None] | None = None

    def of(self, log: Log) -> PromptLog:
        """Return the state of a log, which is created if necessary."""
        prompt_log = self._logs.get((log.topic, log.partition))
        if prompt_log is None or prompt_log.log is not log:
            prompt_log = self._logs[log.topic, log.partition] = PromptLog(log)
        return prompt_log

    def forget(self, partition: TopicPartition) -> None:
        """Forget a log that was deleted, or is no longer compacted."""
        self._logs.pop(partition, None)

    def release(self, log: Log) -> None:
        """After a log's configuration has changed, let unreadable parts be tried again; forget the log if it is not compacted."""
        if log.config.is_compacted:
            self.of(log).release()
        else:
            self.forget((log.topic, log.partition))

    def quarantined(self, partition: TopicPartition) -> list[CorruptSegment]:
        """Return the quarantined segments of a partition."""
        log = self._logs.get(partition)
        return [] if log is None else log.quarantine.segments

    @property
    def is_learning(self) -> bool:
        """True while facts are being read."""
        return self._learning is not None and not self._learning.done()

    def begin_learning(
        self, logs: Sequence[tuple[PromptLog, int]], is_hurried: Callable[[], bool], on_end: Callable[[], object]
    ) -> None:
        """Start reading the expiry times in logs below their first dirty offsets, with pauses unless `is_hurried`.

        `on_end` is called when this has ended.
        """
        if logs:
            self._learning = asyncio.get_running_loop().create_task(self._learn(logs, is_hurried, on_end))

    async def stop(self) -> None:
        """Stop reading."""
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait({self._learning})

    async def _learn(
        self, logs: Sequence[tuple[PromptLog, int]], is_hurried: Callable[[], bool], on_end: Callable[[], object]
    ) -> None:
        try:
            for known, first_dirty_offset in logs:
                for base_offset, size in known.unknown(first_dirty_offset):
                    start_s = asyncio.get_running_loop().time()
                    await self._read(known, first_dirty_offset, base_offset, size)
                    if not is_hurried():
                        left_s = PAUSE_FACTOR * (asyncio.get_running_loop().time() - start_s)
                        await asyncio.sleep(min(left_s, MAX_PAUSE_S))
        except Exception:
            logger.exception("the cleaner failed to read expiry times")
        finally:
            on_end()

    async def _read(self, known: PromptLog, first_dirty_offset: int, base_offset: int, size: int) -> None:
        """Read the facts of a clean segment."""
        log = known.log
        now_ms = self._env.clock.now_ms()
        segment = known.segment_at(base_offset)
        # Until the exchange is over, the file of a new segment has another name.
        if log.is_deleted or log.is_exchanging or segment is None:
            return
        try:
            in_thread = asyncio.get_running_loop().run_in_executor
            facts = await in_thread(self._blocking, read_facts, self._env, log.path, base_offset, size)
            known.facts.add(log, facts)
        except Exception as error:  # continue with the other segments
            if segment.is_deleted:
                return
            is_remedied = isinstance(error, CorruptLog) and known.add_corrupt(error, first_dirty_offset, now_ms)
            if not is_remedied:
                known.pass_over(segment)
                logger.warning("%s: the expiry times in this segment are unknown: %s", segment.path, error)

    async def prune(self, log: Log) -> None:
        """Remove the facts files of segments that no longer exist."""
        bases = {segment.base_offset for segment in log.segments}
        await asyncio.get_running_loop().run_in_executor(self._blocking, prune, self._env, log.path, bases)
