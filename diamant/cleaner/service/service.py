"""The cleaner service: cleans the logs that are due, and applies retention to compacted logs.

One task on the loop thread picks logs (`log_picker.py`); rounds run concurrently with it (`rounds.py`), up to `threads` at a
time. The next cycle begins immediately after a round; if nothing is due, after `backoff_ms` on the clock of the `Env`.

    mode kafka      one scan for each round, the log with the highest dirty ratio first
    mode prompt     overdue logs first; one scan serves several rounds; a cycle also runs at each deadline, soon after a
                    segment was rolled, and immediately after a configuration change

`request` cleans a log whether or not it is due; the round begins immediately if a slot and the log are free.

Source: Kafka's LogCleaner.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from diamant.cleaner.facts.filter_making import FilterMaking
from diamant.cleaner.facts.prompt_state import PromptLogs
from diamant.cleaner.facts.quarantine import CorruptSegment
from diamant.cleaner.facts.segment_facts import SegmentFacts
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
from diamant.cleaner.service.round_requests import (
    PLAIN,
    RoundCallers,
    RoundReport,
    RoundRequest,
    cancel,
)
from diamant.cleaner.service.rounds import ExpiryWatch, Rounds, no_watch
from diamant.cleaner.service.service_settings import ServiceSettings, kept_hash_key, new_hash_key
from diamant.own_thread import in_own_thread
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig

logger = logging.getLogger(__name__)


ROLL_DELAY_MS = 1_000
"""Mode prompt: delay from rolling a segment to the cycle that examines it, together with the segments rolled in between."""

RETENTION_PAUSE_MS = 1_000
"""Mode prompt: shortest time between two runs of retention."""


def nothing(_log: Log) -> None:
    """Ignore the log."""


class CleanerService:
    """The cleaner of a log directory. All methods run on the loop thread.

    `logs` is the owner's live table. `new_process_runner`, `new_offload_runner` and the sizes are as in `CleanerSlot`.
    `on_cleaned` is called after each successful round, and `on_retained` after retention has deleted segments. `holds` returns
    the hold on a log's tombstones that groups have not read yet; `watch` observes the records that expire.
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
        """Threads for disk I/O."""
        self.states = PartitionStates()
        self.callers = RoundCallers(logs)
        self.states.on_paused = self.callers.report_paused
        self._checkpoints = CheckpointFile(env, directory, self.states, self.blocking)
        self._metrics = CleanerMetrics()
        self._prompt = None if self._is_kafka else PromptLogs(env, self.blocking)
        self.picker = LogPicker(env, logs, self.states, self._metrics, self._prompt, self.blocking, holds)
        """Determines the cleanable range of a log, and the next time at which a log is due."""
        round_settings = settings.for_rounds(self._hash_key)
        self.rounds = Rounds(env, self.states, self.picker, self._prompt, round_settings, self.blocking, watch)
        self._retention = CompactedRetention(env.clock, self.picker, self.states, on_retained, is_kafka=self._is_kafka)
        self.slots = Slots(env, new_process_runner, new_offload_runner, offload_from_bytes, max_inline_bytes)
        """The slots in which rounds run."""
        self._filters = FilterMaking(env, self.blocking, self.slots.file_facts, lambda: self._is_busy)
        self.warmth = WorkerWarmth(self.slots.warm_up)
        self._loop = CleaningLoop(env.clock, lambda: self.settings.pause_ms, self._cycle)
        self._has_begun = False
        """True if a round has begun since the current cycle began, or if the cleaner was busy at that time."""

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, unopened: Collection[TopicPartition] = ()) -> None:
        """Read the checkpoints and start the loop. An unreadable file counts as empty, so everything is cleaned again.

        `unopened` are logs that are missing from `logs` but may return at the next start; the file keeps their checkpoints.
        """
        await self._checkpoints.read()
        if self._prompt is not None:
            in_thread = asyncio.get_running_loop().run_in_executor
            try:
                self._hash_key = await in_thread(self.blocking, kept_hash_key, self._env, self._directory)
            except OSError as error:
                logger.warning(
                    "the hash key cannot be stored; a temporary key is used until the broker restarts: %s", error
                )
            self.rounds.settings = self.settings.for_rounds(self._hash_key)
        self.states.keep_only({*self._logs, *unopened})
        self._loop.start()

    async def stop(self) -> None:
        """Stop the rounds in progress, and write the checkpoints. Outputs that were already swapped in remain. Idempotent."""
        if self.states.is_stopping:
            return
        self.states.is_stopping = self.callers.is_stopping = True
        await self._loop.stop()
        await self._filters.stop()
        await self.warmth.close()
        await self.slots.close()
        if self._prompt is not None:
            await self._prompt.stop()
        self.callers.stop()
        await self._checkpoints.close()
        await in_own_thread(self.blocking.shutdown)

    # -- requests ------------------------------------------------------------------------------------------------

    def request(self, partition: TopicPartition, request: RoundRequest = PLAIN) -> asyncio.Future[RoundReport]:
        """Clean a partition, whether or not it is due, in a round that begins after this call, as soon as a slot is free.

        The future resolves to a report, which includes any failure, when the round has ended and its checkpoint is on disk. All
        callers that wait for the same round get the same report. The active segment, open transactions, and records younger than
        `min.compaction.lag.ms` are not cleaned. The future is cancelled when the service stops. Raises UnknownPartition.
        """
        future = self.callers.request(partition, request)
        if self._loop.is_started:
            self._begin_requested()
        return future

    async def settled(self) -> None:
        """Examine all logs now, and wait until nothing is left to do at the current time of the clock."""
        self.picker.forget()
        await self._loop.settled()

    async def abort_and_pause(self, partition: TopicPartition) -> None:
        """Stop cleaning a partition until `resume`; return when it has no round in progress.

        If the caller is cancelled or the service stops before that, the pause is undone; then do not call `resume`.
        """
        if self.states.abort_and_pause(partition):
            return
        try:
            await self.callers.until_paused(partition)
        except asyncio.CancelledError:
            self.states.give_up_pause(partition)
            self._loop.run_now()
            raise

    def resume(self, partition: TopicPartition) -> None:
        """Undo one `abort_and_pause`."""
        self.states.resume(partition)
        self._loop.run_now()

    # -- state ---------------------------------------------------------------------------------------------------

    def status(self) -> CleanerStatus:
        """Return the status for metrics, without examining any log."""
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
        """Return the file, position and reason of each unreadable segment of a partition, which rounds leave out."""
        return tuple(map(str, self._quarantined(partition)))

    def _quarantined(self, partition: TopicPartition) -> Sequence[CorruptSegment]:
        return () if self._prompt is None else self._prompt.quarantined(partition)

    def view(self, log: Log) -> CleanerView:
        """Return what the cleaner knows about a log, compacted or not, without reading a file."""
        known = None if self._prompt is None or not log.config.is_compacted else self._prompt.of(log)
        now_ms, hold = self._env.clock.now_ms(), self.picker.holds(log)
        return CleanerView.of(log, self.settings, self.states, known, self._hash_key, now_ms, hold)

    def facts(self, log: Log, end_offset: int) -> list[SegmentFacts]:
        """Return the known facts of the closed segments up to `end_offset`; empty in mode kafka."""
        return [] if self._prompt is None else self._prompt.of(log).facts.of(log, end_offset)

    # -- events --------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Use new settings from the next round on. Rounds in progress in this process also get the new byte rate limit."""
        if settings == self.settings:
            return
        if settings.io_max_bytes_per_second != self.settings.io_max_bytes_per_second:
            logger.info("the cleaner may read and write %g bytes per second", settings.io_max_bytes_per_second)
        self.settings = settings
        self.rounds.settings = settings.for_rounds(self._hash_key)
        self.slots.limit(settings.io_max_bytes_per_second / settings.threads)
        self._loop.run_by(self._env.clock.now_ms() + self.settings.pause_ms)
        if not self._is_kafka:
            self._run_now()

    def config_changed(self, log: Log, before: LogConfig) -> None:
        """Apply a log's new configuration. If it is no longer compacted, abort its round and end its watches. Retry an
        uncleanable log: in mode prompt, after a new scan; in mode kafka, if larger records may be read.
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
            self._run_now()
        elif log.config.max_decompressed_message_bytes > before.max_decompressed_message_bytes:
            self.states.retry_now(partition, self._env.clock.now_ms())

    def forget(self, log: Log) -> None:
        """Discard the state of a partition whose log is new or being deleted. A round in progress ends without effect."""
        partition = log.topic, log.partition
        self.states.forget(partition)
        if self._loop.is_started and not self.states.is_stopping:
            # Write soon, because a later log with the same name must not start with this checkpoint.
            self._checkpoints.write_soon()
        self._metrics.forget(partition)
        if self._prompt is not None:
            self._prompt.forget(partition)
        self.rounds.forget_failures(partition)
        self.callers.forget(partition)

    def rolled(self, log: Log) -> None:
        """Record that a segment of `log` has become inactive."""
        if not self._is_kafka and log.config.is_compacted:
            self._loop.run_by(self._env.clock.now_ms() + ROLL_DELAY_MS)

    def saw_append(self, log: Log) -> None:
        """Record an append to a log, compacted or not."""
        if log.config.is_compacted and self.settings.is_enabled and not self.states.is_stopping:
            self.warmth.saw_append(log)

    def _run_now(self) -> None:
        self.picker.forget()
        self._loop.run_now()

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _cycle(self, is_settling: bool) -> bool:
        """Begin due rounds until all slots are in use; return True if nothing is left to do at this time."""
        # A round that ends during this cycle may leave more to do, so this cycle must not return True; another one follows.
        self._has_begun = self._is_busy
        self._begin_requested()
        while self.settings.is_enabled and self._free_slot() is not None:
            log = await self.picker.next()
            if log is None:
                break
            # While `next` was awaited, a request may have taken the slot or the log.
            if self.picker.is_open(log) and (slot := self._free_slot()) is not None:
                self._begin(slot, log)
        if self._is_retention_due(is_settling=is_settling):
            await self._retention.run()
        await self._checkpoints.write()
        deadline_ms = self.picker.next_deadline_ms
        # A deadline that passed while all slots were busy needs no alarm, because a cycle follows each round.
        if deadline_ms is not None and deadline_ms > self._env.clock.now_ms():
            self._loop.run_by(deadline_ms)
        if self._prompt is not None and not self._prompt.is_learning and not self.states.is_stopping:
            self._prompt.begin_learning(self.picker.take_to_learn(), lambda: self._loop.is_awaited, self._run_now)
        self._filters.begin(self.picker.without_filters, self.rounds.settings)
        return not self.callers.requests and not self._has_begun and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return self.slots.is_busy or (self._prompt is not None and self._prompt.is_learning)

    def _is_retention_due(self, *, is_settling: bool) -> bool:
        """Return whether to apply retention to compacted logs now.

        Kafka's cleaner threads apply it after each round, so not if the cleaner is disabled, nor while all threads are busy.
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
        """Begin requested rounds while there is a free slot, and a log that is requested and free."""
        while (slot := self._free_slot()) is not None:
            partition = next((request for request in self.callers.requests if self.states.is_free(request)), None)
            if partition is None:
                return
            self._begin(slot, self._logs[partition])

    def _begin(self, slot: CleanerSlot, log: Log) -> None:
        self._has_begun = True
        self.states.acquire((log.topic, log.partition))
        slot.task = asyncio.get_running_loop().create_task(self._round(slot, log))

    async def _round(self, slot: CleanerSlot, log: Log) -> None:
        """Run a round on an acquired log, and report it to all callers that wait for it."""
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
                slot.running = None  # `count` has added the round's bytes to the total
                self._on_cleaned(log)
            await self._checkpoints.write()
            self.callers.report_end(partition, report, requests)
        finally:
            slot.task = slot.running = None
            self._begin_requested()
            self._loop.run_now()
