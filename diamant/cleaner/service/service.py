"""The cleaner at work: has logs cleaned that are due, and applies retention to compacted logs.

One task on the loop thread looks and decides (`log_picker.py`); rounds run beside it (`round.py`), at most `threads` at
once. After a round the next look comes at once; when nothing is due, after `backoff_ms` on the clock of the `Env`.

    mode kafka      one scan for each round, the log with the highest dirty ratio first
    mode prompt     what is overdue first; a scan's findings serve several rounds; a look when something will be overdue,
                    soon after a segment was rolled, and at once when a configuration was changed

To have a log cleaned now, due or not, call `request`: its round begins at once if there is a slot for it.

Source: Kafka's LogCleaner.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from diamant.cleaner.prompt.filter_making import FilterMaking
from diamant.cleaner.prompt.prompt_state import PromptLogs
from diamant.cleaner.prompt.quarantine import CorruptSegment
from diamant.cleaner.prompt.segment_facts import SegmentFacts
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.tombstone_hold import TombstoneHolds, no_hold
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES, Runner
from diamant.cleaner.runners.worker_warmth import WorkerWarmth
from diamant.cleaner.service.checkpoint_file import CheckpointFile
from diamant.cleaner.service.cleaner_slot import CleanerSlot, Slots
from diamant.cleaner.service.compacted_retention import CompactedRetention
from diamant.cleaner.service.log_picker import LogPicker, why_not
from diamant.cleaner.service.loop import CleaningLoop
from diamant.cleaner.service.metrics import CleanerMetrics, CleanerStatus
from diamant.cleaner.service.partition_states import PartitionStates
from diamant.cleaner.service.partition_view import CleanerView
from diamant.cleaner.service.round import ExpiryWatch, Rounds, no_watch
from diamant.cleaner.service.round_requests import (
    PLAIN,
    RoundCallers,
    RoundReport,
    RoundRequest,
    cancel,
)
from diamant.cleaner.service.settings import ServiceSettings, kept_hash_key, new_hash_key
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig

logger = logging.getLogger(__name__)

MIN_PAUSE_MS = 10
"""Shortest pause when there is nothing to do, whatever `log.cleaner.backoff.ms` says."""

ROLL_DELAY_MS = 1_000
"""Mode prompt: a segment that was rolled is looked at this much later, with what was rolled until then."""

RETENTION_PAUSE_MS = 1_000
"""Mode prompt: retention looks at compacted logs this often at most."""


def nothing(_log: Log) -> None:
    """Take no note of a log."""


class CleanerService:
    """See the module. Everything is called on the loop thread.

    `logs` is the owner's table, which changes. `new_process_runner` makes runners for plans of more than `max_inline_bytes`,
    `new_offload_runner` for those from `offload_from_bytes` on, given the runner that takes over what fails. `on_cleaned` follows
    a round that changed a log, `on_retained` a removal of segments. `holds`, `watch`: tombstones that wait, and that go.
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        logs: Mapping[TopicPartition, Log],
        settings: ServiceSettings,
        *,
        new_process_runner: Callable[[], Runner] | None = None,
        new_offload_runner: Callable[[Runner], Runner] | None = None,
        offload_from_bytes: float = math.inf,
        max_inline_bytes: int = MAX_INLINE_BYTES,
        on_cleaned: Callable[[Log], object] = nothing,
        on_retained: Callable[[Log], object] = nothing,
        holds: TombstoneHolds = no_hold,
        watch: ExpiryWatch = no_watch,
    ) -> None:
        self._env = env
        self._directory = directory
        self._logs = logs
        self.settings = settings
        self._is_kafka = settings.mode == KAFKA
        self._on_cleaned = on_cleaned
        self._hash_key = new_hash_key()
        self.blocking: Executor = ThreadPoolExecutor(2, "cleaner")
        """Threads for what blocks for the disk."""
        self.states = PartitionStates()
        self.callers = RoundCallers(logs)
        self.states.on_paused = self.callers.tell_paused
        self._checkpoints = CheckpointFile(env, directory, self.states, self.blocking)
        self._metrics = CleanerMetrics()
        self._prompt = None if self._is_kafka else PromptLogs(env, self.blocking)
        self.picker = LogPicker(env, logs, self.states, self._metrics, self._prompt, self.blocking, holds)
        """Tells what there is to clean at a log now, and when the clock alone makes something due."""
        round_settings = settings.for_rounds(self._hash_key)
        self.rounds = Rounds(env, self.states, self.picker, self._prompt, round_settings, self.blocking, watch)
        self._retention = CompactedRetention(env.clock, self.picker, self.states, on_retained, is_kafka=self._is_kafka)
        self.slots = Slots(env, new_process_runner, new_offload_runner, offload_from_bytes, max_inline_bytes)
        """Tells how far the rounds are that runners are at."""
        self._filters = FilterMaking(env, self.blocking, self.slots.file_facts, lambda: self._is_busy)
        self._warmth = WorkerWarmth(self.slots.warm_up)
        self._loop = CleaningLoop(env.clock, self._pause_ms, self._cycle)
        self._has_begun = False
        """True if a round has begun since the cycle has."""

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, unopened: Collection[TopicPartition] = ()) -> None:
        """Read the checkpoints and begin. A file that cannot be read counts as empty: everything is cleaned again.

        `unopened` are logs that are not in `logs` now, but may be at the next start: their checkpoints stay in the file.
        """
        await self._checkpoints.read()
        if self._prompt is not None:
            in_thread = asyncio.get_running_loop().run_in_executor
            try:
                self._hash_key = await in_thread(self.blocking, kept_hash_key, self._env, self._directory)
            except OSError as error:
                logger.warning("the key of hashes cannot be kept, another one serves until the next start: %s", error)
            self.rounds.settings = self.settings.for_rounds(self._hash_key)
        self.states.keep_only({*self._logs, *unopened})
        self._loop.start()

    async def stop(self) -> None:
        """End the rounds in progress, whose finished groups stay, and write the checkpoints. Twice is harmless."""
        if self.states.is_stopping:
            return
        self.states.is_stopping = self.callers.is_stopping = True
        await self._loop.stop()
        await self._filters.stop()
        await self.slots.close()
        await self._warmth.close()
        if self._prompt is not None:
            await self._prompt.stop()
        self.callers.stop()
        await self._checkpoints.close()
        await asyncio.to_thread(self.blocking.shutdown)

    # -- what others ask for -------------------------------------------------------------------------------------

    def request(self, partition: TopicPartition, request: RoundRequest = PLAIN) -> asyncio.Future[RoundReport]:
        """Clean a partition as soon as a slot is free, due or not, by a round that begins after this call.

        The answer comes when the round is over and its checkpoint on disk; a failure is in the report. What may not be
        cleaned yet (active segment, open transactions, `min.compaction.lag.ms`) is not. All who wait for the same round
        get the same report. Cancelled when the service stops. Raises UnknownPartition.
        """
        future = self.callers.request(partition, request)
        if self._loop.is_started:
            self._begin_requested()
        return future

    async def settled(self) -> None:
        """Have everything looked at, now, and wait until at this time of the clock nothing is left to be done."""
        self.picker.forget()
        await self._loop.settled()

    async def abort_and_pause(self, partition: TopicPartition) -> None:
        """Stop cleaning a partition until `resume`; returns when no round is in progress there.

        If it does not return because the caller is cancelled, or the service stops, nothing is to be resumed.
        """
        if self.states.abort_and_pause(partition):
            return
        try:
            await self.callers.until_paused(partition)
        except asyncio.CancelledError:
            self.states.give_up_pause(partition)
            self._loop.look_now()
            raise

    def resume(self, partition: TopicPartition) -> None:
        """Take back one `abort_and_pause`."""
        self.states.resume(partition)
        self._loop.look_now()

    # -- what others see -----------------------------------------------------------------------------------------

    def status(self) -> CleanerStatus:
        """Return what metrics show. Looks at no log."""
        return self._metrics.status(
            (partition for partition, log in self._logs.items() if log.config.is_compacted),
            self.states,
            self._env.clock.now_ms(),
            dead_threads=int(self._loop.is_dead),
            io_bytes_in_progress=self.slots.progress_bytes,
            in_progress=self.slots.status(),
            quarantined=self._quarantined,
        )

    def quarantined(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return what of a partition cannot be read and is left out: file, position and reason of each."""
        return tuple(map(str, self._quarantined(partition)))

    def _quarantined(self, partition: TopicPartition) -> Sequence[CorruptSegment]:
        return () if self._prompt is None else self._prompt.quarantined(partition)

    def view(self, log: Log) -> CleanerView:
        """Return what is known of a log, whether it is compacted or not. Looks at no file."""
        known = None if self._prompt is None or not log.config.is_compacted else self._prompt.of(log)
        now_ms, hold = self._env.clock.now_ms(), self.picker.holds(log)
        return CleanerView.of(log, self.settings, self.states, known, self._hash_key, now_ms, hold)

    def facts(self, log: Log, end_offset: int) -> list[SegmentFacts]:
        """Return what is known of the closed segments that end at `end_offset` or before; nothing in mode kafka."""
        return [] if self._prompt is None else self._prompt.of(log).facts.of(log, end_offset)

    # -- what others tell ----------------------------------------------------------------------------------------

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Use new settings from the next round on; the limit of bytes per second at once for rounds in this process."""
        if settings == self.settings:
            return
        if settings.io_max_bytes_per_second != self.settings.io_max_bytes_per_second:
            logger.info("the cleaner may read and write %g bytes per second", settings.io_max_bytes_per_second)
        self.settings = settings
        self.rounds.settings = settings.for_rounds(self._hash_key)
        self.slots.limit(settings.io_max_bytes_per_second / settings.threads)
        self._loop.look_by(self._env.clock.now_ms() + self._pause_ms())
        if not self._is_kafka:
            self._look_now()

    def config_changed(self, log: Log, before: LogConfig) -> None:
        """Apply a log's new configuration: one that is no longer compacted is released at once.

        In mode prompt a log that could not be cleaned is tried again, and everything is looked at.
        """
        if before == log.config:
            return
        partition = log.topic, log.partition
        if before.is_compacted and not log.config.is_compacted:
            self.states.abort(partition)
            self.callers.end_watches(partition, StorageError(f"{partition[0]}-{partition[1]}: {why_not(log)}"))
        if self._prompt is not None and (before.is_compacted or log.config.is_compacted):
            self.rounds.forget_failures(partition)
            self.states.retry_now(partition, self._env.clock.now_ms())
            self._prompt.release(log)
            self._look_now()

    def forget(self, log: Log) -> None:
        """Forget the name of a log that is new, or being deleted: a round in progress there ends without effect."""
        partition = log.topic, log.partition
        self.states.forget(partition)
        if self._loop.is_started and not self.states.is_stopping:
            # Soon: what the file says of a log must not be taken for another one's of its name.
            self._checkpoints.write_soon()
        self._metrics.forget(partition)
        if self._prompt is not None:
            self._prompt.forget(partition)
        self.rounds.forget_failures(partition)
        self.callers.forget(partition)

    def rolled(self, log: Log) -> None:
        """Record that a segment of `log` has become inactive."""
        if not self._is_kafka and log.config.is_compacted:
            self._loop.look_by(self._env.clock.now_ms() + ROLL_DELAY_MS)

    def saw_append(self, log: Log) -> None:
        """Record an append to a log, compacted or not."""
        if log.config.is_compacted and self.settings.is_enabled and not self.states.is_stopping:
            self._warmth.saw_append(log)

    def _look_now(self) -> None:
        self.picker.forget()
        self._loop.look_now()

    # -- the loop ------------------------------------------------------------------------------------------------

    def _pause_ms(self) -> int:
        return max(self.settings.backoff_ms, MIN_PAUSE_MS)

    async def _cycle(self, is_settling: bool) -> bool:
        """Begin what there is to do and slots for; return True if nothing is left to do at this time."""
        # What ends while this looks on may leave something to be done: the look that it asks for tells.
        self._has_begun = self._is_busy
        self._begin_requested()
        while self.settings.is_enabled and self._free_slot() is not None:
            log = await self.picker.next()
            if log is None:
                break
            # A request may have taken the slot, or the log.
            if self.picker.is_open(log) and (slot := self._free_slot()) is not None:
                self._begin(slot, log)
        if self._is_retention_due(is_settling=is_settling):
            await self._retention.run()
        await self._checkpoints.write()
        deadline_ms = self.picker.next_deadline_ms
        # One that went by while all slots were busy is met by the look that follows their rounds.
        if deadline_ms is not None and deadline_ms > self._env.clock.now_ms():
            self._loop.look_by(deadline_ms)
        if self._prompt is not None and not self._prompt.is_learning and not self.states.is_stopping:
            self._prompt.begin_learning(self.picker.take_to_learn(), lambda: self._loop.is_awaited, self._look_now)
        self._filters.begin(self.picker.without_filters, self.rounds.settings)
        return not self.callers.requests and not self._has_begun and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return self.slots.is_busy or (self._prompt is not None and self._prompt.is_learning)

    def _is_retention_due(self, *, is_settling: bool) -> bool:
        """Tell whether compacted logs are to be looked at for segments that go as a whole.

        Kafka's threads do that after each round, so not without the cleaner, nor while all of them are busy.
        """
        if self.states.is_stopping:
            return False
        if self._is_kafka:
            return self.settings.is_enabled and self._free_slot() is not None
        return is_settling or self._env.clock.now_ms() - self._retention.looked_ms >= RETENTION_PAUSE_MS

    # -- rounds --------------------------------------------------------------------------------------------------

    def _free_slot(self) -> CleanerSlot | None:
        return None if self.states.is_stopping else self.slots.free(self.settings.threads)

    def _begin_requested(self) -> None:
        """Begin rounds that were asked for, as far as there are slots and their logs are free."""
        while (slot := self._free_slot()) is not None:
            partition = next((one for one in self.callers.requests if self.states.is_free(one)), None)
            if partition is None:
                return
            self._begin(slot, self._logs[partition])

    def _begin(self, slot: CleanerSlot, log: Log) -> None:
        self._has_begun = True
        self.states.acquire((log.topic, log.partition))
        slot.task = asyncio.get_running_loop().create_task(self._round(slot, log))

    async def _round(self, slot: CleanerSlot, log: Log) -> None:
        """Run a round at a log that was acquired, and tell all that wait for it."""
        partition = log.topic, log.partition
        requests = self.callers.take(partition)
        try:
            report = await self.rounds.run(slot, log, requests, self.slots.busy)
        except BaseException:
            self.states.done_cleaning(partition, None)
            cancel(requests.futures)
            raise
        else:
            self.states.done_cleaning(partition, report.checkpoint)
            if report.is_cleaned and not log.is_deleted:
                self.rounds.forget_failures(partition)
                self.states.mark_cleanable(partition)
                self.states.set_last_cleaned(partition, report.ended_ms)
                self._metrics.count(partition, report, slot.index)
                slot.running = None  # its bytes are counted now
                self._on_cleaned(log)
            await self._checkpoints.write()
            self.callers.tell(partition, report, requests)
        finally:
            slot.task = slot.running = None
            self._begin_requested()
            self._loop.look_now()
