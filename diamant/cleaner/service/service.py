"""The cleaner at work: has logs cleaned that are due, and applies retention to compacted logs.

One task on the loop thread looks and decides (`log_picker.py`); rounds run beside it (`round.py`), at most `threads` at
once. After a round the next look comes at once; when nothing is due, after `backoff_ms` on the clock of the `Env`.

    mode kafka      one scan for each round, the log with the highest dirty ratio first
    mode prompt     what is overdue first; a scan's findings serve several rounds; a look when something will be overdue,
                    soon after a segment was rolled, and at once when a configuration was changed

To have a log cleaned now, due or not, call `request`.

Source: Kafka's LogCleaner.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar, TypeVarTuple

from diamant.cleaner.prompt.prompt_state import PromptLog, PromptLogs
from diamant.cleaner.prompt.quarantine import CorruptSegment
from diamant.cleaner.prompt.segment_facts import SegmentFacts, horizon_round_end
from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.cleaner.rules.planning import make_plan
from diamant.cleaner.rules.result import CleaningAborted, CleanResult
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.runners.contract import MemoryLimit, NoRoom, Runner, RunnerFailed, check_room
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.service import kafka_log_lines, log_messages
from diamant.cleaner.service.cleaner_slot import CleanerThread, RoundUnderWay, WorkerRunner, WorkerWarmth
from diamant.cleaner.service.log_picker import DueLogs, why_not
from diamant.cleaner.service.metrics import CleanerFigures, CleanerStatus, RoundStatus
from diamant.cleaner.service.partition_states import CheckpointFile, CleaningStates
from diamant.cleaner.service.partition_view import CleanerView
from diamant.cleaner.service.repeated_errors import LogTroubles
from diamant.cleaner.service.round import holds, look_at_segments, run_plan
from diamant.cleaner.service.round_requests import PLAIN, RoundReport, RoundRequest, RoundRequests, RoundWatch
from diamant.cleaner.service.settings import ServiceSettings, kept_hash_key, new_hash_key
from diamant.cleaner.service.wakeup import Alarm
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment

logger = logging.getLogger(__name__)

MIN_PAUSE_MS = 10
"""Shortest pause when there is nothing to do, whatever `log.cleaner.backoff.ms` says."""

ROLL_DELAY_MS = 1_000
"""Mode prompt: a segment that was rolled is looked at this much later, with what was rolled until then."""

RETENTION_PAUSE_MS = 1_000
"""Mode prompt: retention looks at compacted logs this often at most."""

MAX_INLINE_ROUNDS = 2
"""Rounds in threads of the broker at once: more would only share its interpreter."""

RETENTION_FAILED = "retention failed"

MAX_RESTARTS = 5
"""Rounds in a row whose log changed under them, before that counts as a failure."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class UnknownPartition(StorageError):
    """There is no such log, or not any more."""


def nothing(_log: Log) -> None:
    """Take no note of a log."""


class CleanerService:
    """See the module. Everything is called on the loop thread.

    `logs` is the owner's table, which changes; `directory` is the log directory. `new_process_runner` makes runners for plans
    that are too large for a thread of this process; without it they are not. `new_offload_runner` makes one for plans from
    `offload_from_bytes` on that are too large for this machine, given the runner that takes over what fails. `on_cleaned` is
    called after a round that has changed a log, `on_retained` after segments were removed.
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
        on_cleaned: Callable[[Log], object] = nothing,
        on_retained: Callable[[Log], object] = nothing,
    ) -> None:
        self.states = CleaningStates()
        self.states.on_paused = self._tell_paused
        self._env = env
        self._directory = directory
        self._logs = logs
        self.settings = settings
        self._new_process_runner = new_process_runner
        self._new_offload_runner = new_offload_runner
        self._offload_from_bytes = offload_from_bytes
        self._on_cleaned = on_cleaned
        self._on_retained = on_retained
        self._hash_key = new_hash_key()
        self._blocking: Executor = ThreadPoolExecutor(2, "cleaner")
        self._checkpoints = CheckpointFile(env, directory, self.states, self._blocking)
        self._figures = CleanerFigures()
        self._prompt = None if settings.mode == KAFKA else PromptLogs(env, self._blocking)
        self._due = DueLogs(env, logs, self.states, self._figures, self._prompt, self._blocking)
        self._troubles = LogTroubles()
        self._alarm = Alarm(env.clock)
        self._next_ms = 0
        self._retained_ms = 0
        self._threads: list[CleanerThread] = []
        self._inline_turns = asyncio.Semaphore(MAX_INLINE_ROUNDS)
        self._requests: dict[TopicPartition, RoundRequests] = {}
        self._watches: dict[TopicPartition, list[RoundWatch]] = {}
        self._settling: list[asyncio.Future[None]] = []
        self._pausing: dict[TopicPartition, list[asyncio.Future[None]]] = {}
        self._restarts: dict[TopicPartition, int] = {}
        """Rounds in a row that ended because their log had changed."""
        self._task: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None
        self._warmth: WorkerWarmth | None = None
        if new_process_runner is not None and settings.is_enabled:
            self._warmth = WorkerWarmth(new_process_runner, lambda: self._thread(0).warm_up())
        self._is_stopping = False

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, unopened: Collection[TopicPartition] = ()) -> None:
        """Read the checkpoints and begin. A file that cannot be read counts as empty: everything is cleaned again.

        `unopened` are logs that are not in `logs` now, but may be at the next start: their checkpoints stay in the file.
        """
        await self._checkpoints.read()
        if self._prompt is not None:
            try:
                self._hash_key = await self._in_thread(kept_hash_key, self._env, self._directory)
            except OSError as error:
                logger.warning("the key of hashes cannot be kept, another one serves until the next start: %s", error)
        self.states.keep_only({*self._logs, *unopened})
        self._alarm.start()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the rounds in progress, whose finished groups stay, and write the checkpoints. Twice is harmless."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._alarm.stop()
        self._alarm.poke()
        if self._task is not None:
            await asyncio.wait({self._task})
        for thread in self._threads:
            await thread.close()
        if self._warmth is not None:
            await self._warmth.close()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait({self._learning})
        self._cancel(self._settling)
        for pausing in self._pausing.values():
            self._cancel(pausing)
        for requests in self._requests.values():
            self._cancel(requests.futures)
        for watch in [one for watches in self._watches.values() for one in watches]:
            watch.end(CleaningAborted("the cleaner stops"))
        await self._checkpoints.close()
        await asyncio.to_thread(self._blocking.shutdown)

    def _cancel(self, futures: Iterable[asyncio.Future[Any]]) -> None:
        for future in futures:
            future.cancel()

    # -- what others ask for -------------------------------------------------------------------------------------

    def request(self, partition: TopicPartition, request: RoundRequest = PLAIN) -> asyncio.Future[RoundReport]:
        """Clean a partition as soon as a thread is free, due or not, by a round that begins after this call.

        The answer comes when the round is over and its checkpoint on disk; a failure is in the report. What may not be
        cleaned yet (active segment, open transactions, `min.compaction.lag.ms`) is not. All who wait for the same round
        get the same report. Cancelled when the service stops. Raises UnknownPartition.
        """
        if partition not in self._logs:
            raise UnknownPartition(f"there is no partition {partition[0]}-{partition[1]}")
        future: asyncio.Future[RoundReport] = asyncio.get_running_loop().create_future()
        if self._is_stopping:
            future.cancel()
        requests = self._requests.setdefault(partition, RoundRequests())
        requests.futures.append(future)
        requests.request = requests.request.merged(request)
        self._alarm.poke()
        return future

    def look(self, log: Log, *, is_forced: bool = False) -> CleanableRange | None:
        """Return what there is to clean at a log now; None if that cannot be told, and then the log is uncleanable."""
        return self._due.look(log, self._env.clock.now_ms(), is_forced=is_forced)

    def watch(self, partition: TopicPartition) -> RoundWatch:
        """Watch each round that ends at a partition, by whatever request, until `unwatch`."""
        watch = RoundWatch()
        if partition not in self._logs:
            watch.end(UnknownPartition(f"there is no partition {partition[0]}-{partition[1]}"))
        if self._is_stopping:
            watch.end(CleaningAborted("the cleaner stops"))
        self._watches.setdefault(partition, []).append(watch)
        return watch

    def unwatch(self, partition: TopicPartition, watch: RoundWatch) -> None:
        """Stop watching."""
        watches = self._watches.get(partition, [])
        watches.remove(watch)
        if not watches:
            self._watches.pop(partition, None)

    def quarantined(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return what of a partition cannot be read and is left out: file, position and reason of each."""
        return tuple(map(str, self._quarantined(partition)))

    def _quarantined(self, partition: TopicPartition) -> Sequence[CorruptSegment]:
        return () if self._prompt is None else self._prompt.quarantined(partition)

    @property
    def blocking(self) -> Executor:
        """Return the threads for what blocks for the disk."""
        return self._blocking

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when the clock alone will make something due, as of the last look (mode prompt); None: nothing is known of."""
        return self._due.next_deadline_ms

    async def settled(self) -> None:
        """Have everything looked at, now, and wait until at this time of the clock nothing is left to be done."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_stopping:
            future.cancel()
        self._settling.append(future)
        self._look_now()
        await future

    async def abort_and_pause(self, partition: TopicPartition) -> None:
        """Stop cleaning a partition until `resume`; returns when no round is in progress there.

        If it does not return because the caller is cancelled, or the service stops, nothing is to be resumed.
        """
        if self.states.abort_and_pause(partition):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pausing.setdefault(partition, []).append(future)
        try:
            await future
        except asyncio.CancelledError:
            self._forget_pausing(partition, future)
            self.states.give_up_pause(partition)
            self._alarm.poke()
            raise

    def _forget_pausing(self, partition: TopicPartition, future: asyncio.Future[None]) -> None:
        pausing = self._pausing.get(partition, [])
        if future in pausing:
            pausing.remove(future)
            if not pausing:
                del self._pausing[partition]

    def resume(self, partition: TopicPartition) -> None:
        """Take back one `abort_and_pause`."""
        self.states.resume(partition)
        self._alarm.poke()

    def status(self) -> CleanerStatus:
        """Return what metrics show. Looks at no log."""
        return self._figures.status(
            (partition for partition, log in self._logs.items() if log.config.is_compacted),
            self.states,
            self._env.clock.now_ms(),
            dead_threads=int(self._task is not None and self._task.done() and not self._is_stopping),
            io_bytes_under_way=sum(thread.progress_bytes for thread in self._threads),
            under_way=self.under_way(),
            quarantined=self._quarantined,
        )

    def under_way(self) -> list[RoundStatus]:
        """Return how far the rounds are that runners are at."""
        return [thread.under_way.status() for thread in self._threads if thread.under_way is not None]

    def view(self, log: Log) -> CleanerView:
        """Return what is known of a log, whether it is compacted or not. Looks at no file."""
        partition = _name(log)
        now_ms = self._env.clock.now_ms()
        checkpoint = self.states.checkpoint(partition)
        view = CleanerView(
            mode=self.settings.mode,
            is_enabled=self.settings.is_enabled,
            checkpoint=checkpoint,
            occupied=self.states.state(partition),
            uncleanable=self.states.uncleanable.get(partition),
            hash_key=self._hash_key,
        )
        if self._prompt is None or not log.config.is_compacted:
            return view
        known = self._prompt.of(log)
        first_dirty = known.first_dirty(checkpoint)
        clean_end = log.log_start_offset if first_dirty is None else first_dirty
        return replace(
            view,
            checkpoint=first_dirty,
            quarantined=tuple(known.quarantine.segments),
            frozen_above=known.quarantine.frozen_above(now_ms),
            horizon_ms=known.horizon_ms(clean_end, now_ms),
        )

    def first_dirty(self, log: Log) -> int:
        """Return from where on no round has been over all of a log: rounds around a segment in quarantine do not count."""
        return self.states.first_dirty(log)

    def facts(self, log: Log, end_offset: int) -> list[SegmentFacts]:
        """Return what is known of the closed segments that end at `end_offset` or before; nothing in mode kafka."""
        return [] if self._prompt is None else self._prompt.of(log).facts.of(log, end_offset)

    @property
    def process_runners(self) -> list[WorkerRunner]:
        """Return the runners with worker processes that there are."""
        runners = (thread.process for thread in self._threads)
        return [runner for runner in runners if isinstance(runner, WorkerRunner)]

    def _tell_paused(self, partition: TopicPartition) -> None:
        for future in self._pausing.pop(partition, ()):
            if not future.done():
                future.set_result(None)

    # -- what others tell ----------------------------------------------------------------------------------------

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Use new settings from the next round on; the limit of bytes per second at once for rounds in this process."""
        if settings == self.settings:
            return
        if settings.io_max_bytes_per_second != self.settings.io_max_bytes_per_second:
            logger.info("the cleaner may read and write %g bytes per second", settings.io_max_bytes_per_second)
        self.settings = settings
        for thread in self._threads:
            thread.throttle.bytes_per_second = settings.io_max_bytes_per_second / settings.threads
        self._look_by(self._env.clock.now_ms() + self._pause_ms)
        if not self._is_kafka:
            self._look_now()

    def config_changed(self, log: Log, before: LogConfig) -> None:
        """Apply a log's new configuration: one that is not compacted any more is released at once.

        In mode prompt a log that could not be cleaned is tried again, and everything is looked at.
        """
        if before == log.config:
            return
        partition = _name(log)
        if before.is_compacted and not log.config.is_compacted:
            self.states.abort(partition)
            for watch in self._watches.get(partition, ()):
                watch.end(StorageError(f"{partition[0]}-{partition[1]}: {why_not(log)}"))
        if not self._is_kafka and (before.is_compacted or log.config.is_compacted):
            self._restarts.pop(partition, None)
            self.states.retry_now(partition, self._env.clock.now_ms())
            self._release(log)
            self._look_now()

    def _release(self, log: Log) -> None:
        if self._prompt is not None and log.config.is_compacted:
            self._prompt.of(log).release()
        elif self._prompt is not None:
            self._prompt.forget(_name(log))

    def forget(self, log: Log) -> None:
        """Forget the name of a log that is new, or being deleted: a round in progress there ends without effect."""
        partition = _name(log)
        self.states.forget(partition)
        if self._task is not None and not self._is_stopping:
            # Soon: what the file says of a log must not be taken for another one's of its name.
            self._checkpoints.write_soon()
        self._figures.forget(partition)
        if self._prompt is not None:
            self._prompt.forget(partition)
        self._restarts.pop(partition, None)
        gone = UnknownPartition(f"{partition[0]}-{partition[1]} was deleted")
        for watch in self._watches.get(partition, ()):
            watch.end(gone)
        for future in self._requests.pop(partition, RoundRequests()).futures:
            if not future.done():
                future.set_exception(gone)

    def rolled(self, log: Log) -> None:
        """Record that a segment of `log` has become inactive."""
        if not self._is_kafka and log.config.is_compacted:
            self._look_by(self._env.clock.now_ms() + ROLL_DELAY_MS)

    def saw_append(self, log: Log) -> None:
        """Record an append to a compacted log."""
        if self._warmth is not None and not self._is_stopping:
            self._warmth.saw_append(log)

    def _look_now(self) -> None:
        self._due.forget()
        self._alarm.poke()

    def _look_by(self, due_ms: int) -> None:
        if due_ms < self._next_ms:
            self._next_ms = due_ms
            self._alarm.look_again()

    # -- the loop ------------------------------------------------------------------------------------------------

    @property
    def _is_kafka(self) -> bool:
        return self.settings.mode == KAFKA

    @property
    def _pause_ms(self) -> int:
        return max(self.settings.backoff_ms, MIN_PAUSE_MS)

    async def _run(self) -> None:
        while not self._is_stopping:
            self._alarm.calm()
            self._next_ms = self._env.clock.now_ms() + self._pause_ms
            settling, self._settling = self._settling, []
            is_settled = False
            try:
                is_settled = await self._cycle(is_settling=bool(settling))
            except Exception:
                logger.exception("the cleaner failed to look for work")
            for future in settling if is_settled else ():
                if not future.done():
                    future.set_result(None)
            self._settling += [] if is_settled else settling
            await asyncio.sleep(0)  # without a pause, others have their turn nevertheless
            while not self._is_stopping and not await self._alarm.wait(self._next_ms):
                pass

    async def _cycle(self, *, is_settling: bool) -> bool:
        """Begin what there is to do and threads for; return True if nothing is left to do at this time."""
        # What ends while this looks on may leave something to be done: the look that it asks for tells.
        was_busy = self._is_busy
        while not self._is_stopping and (thread := self._free_thread()) is not None:
            log = self._next_requested()
            if log is None and self.settings.is_enabled:
                log = await self._due.next()
                if log is not None and not self._due.is_open(log):
                    continue
            if log is None:
                break
            self.states.grab(_name(log))
            thread.begin(self._clean(thread, log))
            was_busy = True
        if self._is_retention_due(is_settling=is_settling):
            await self._retain()
        await self._checkpoints.write()
        deadline_ms = self._due.next_deadline_ms
        # One that went by while all threads were busy is met by the look that follows their rounds.
        if deadline_ms is not None and deadline_ms > self._env.clock.now_ms():
            self._look_by(deadline_ms)
        self._begin_learning()
        return not self._requests and not was_busy and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return any(thread.is_busy for thread in self._threads) or self._is_learning

    @property
    def _is_learning(self) -> bool:
        return self._learning is not None and not self._learning.done()

    def _begin_learning(self) -> None:
        """Mode prompt: have read what may expire and when, beside everything else."""
        if self._prompt is not None and self._due.to_learn and not self._is_learning and not self._is_stopping:
            to_learn, self._due.to_learn = self._due.to_learn, []
            self._learning = asyncio.get_running_loop().create_task(self._learn(self._prompt, to_learn))

    async def _learn(self, prompt: PromptLogs, to_learn: list[tuple[PromptLog, int]]) -> None:
        try:
            for known, first_dirty in to_learn:
                now_ms = self._env.clock.now_ms()
                await prompt.learn(known, first_dirty, now_ms, is_hurried=lambda: bool(self._settling))
        except Exception:
            logger.exception("the cleaner failed to learn what expires")
        finally:
            self._look_now()

    def _free_thread(self) -> CleanerThread | None:
        if sum(thread.is_busy for thread in self._threads) >= self.settings.threads:
            return None
        index = next((thread.index for thread in self._threads if not thread.is_busy), len(self._threads))
        return self._thread(index)

    def _thread(self, index: int) -> CleanerThread:
        if index == len(self._threads):
            self._threads.append(
                CleanerThread(
                    index, self._env, self._new_process_runner, self._new_offload_runner, self._offload_from_bytes
                )
            )
        return self._threads[index]

    def _next_requested(self) -> Log | None:
        return next((self._logs[one] for one in self._requests if self.states.is_free(one)), None)

    # -- a round -------------------------------------------------------------------------------------------------

    async def _clean(self, thread: CleanerThread, log: Log) -> None:
        """Run a round at a log that was grabbed, and report to all that wait for it."""
        partition = _name(log)
        requests = self._requests.pop(partition, RoundRequests())
        try:
            report = await self._round(thread, log, requests)
        except BaseException:
            self.states.done_cleaning(partition, None)
            self._cancel(requests.futures)
            raise
        else:
            self.states.done_cleaning(partition, report.checkpoint)
            if report.is_cleaned and not log.is_deleted:
                self._restarts.pop(partition, None)
                self.states.mark_cleanable(partition)
                self.states.set_last_cleaned(partition, report.ended_ms)
                self._figures.count(partition, report, thread.index)
                thread.under_way = None  # its bytes are counted now
                self._on_cleaned(log)
            await self._checkpoints.write()
            for watch in self._watches.get(partition, ()):
                watch.add(report)
            for future in requests.futures:
                if not future.done():
                    future.set_result(report)
        finally:
            thread.end()
            self._alarm.poke()

    async def _round(self, thread: CleanerThread, log: Log, requests: RoundRequests) -> RoundReport:
        partition = _name(log)
        started_ms = self._env.clock.now_ms()
        found: CleanableRange | None = None
        plan: CleanPlan | None = None
        result: CleanResult | None = None
        checkpoint: int | None = None
        error: str | None = None

        def check_done() -> None:
            if self._is_stopping:
                raise CleaningAborted(f"{log.topic}-{log.partition}: the cleaner stops")
            self.states.check_done(partition)

        try:
            known = await self._in_thread(look_at_segments, self._env, list(log.segments))
            check_done()
            now_ms = self._env.clock.now_ms()
            if (error := why_not(log)) is None:
                found = self._due.look(log, now_ms, is_forced=requests.request.is_forced)
            if found is not None:
                plan = self._plan(log, found, now_ms, known, requests)
            known.clear()  # else thousands of segments that the round replaces would be dropped, and their files closed, at once
            if plan is not None:
                result = await self._run_plan(thread, log, plan, check_done, requests)
                checkpoint = result.end_offset
                if checkpoint <= plan.first_dirty_offset < plan.first_uncleanable_offset:
                    raise StorageError(
                        f"the round ended at {checkpoint}, where it had begun: the offset map is too small"
                    )
                if plan.first_dirty_offset >= plan.first_uncleanable_offset:
                    checkpoint = None
                elif self._prompt is not None:
                    checkpoint = self._prompt.of(log).end_round(plan, checkpoint)
                if self._prompt is not None:
                    await self._prompt.prune(log)
                self._tell(thread, plan, result)
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
        """Return the plan for what is due, or for all there is to clean if that was requested; None for nothing."""
        settings = self.settings.for_rounds(self._hash_key)
        is_dirty = found.cleanable_bytes > 0 and (bool(requests.futures) or found.is_eligible)
        if self._prompt is None:
            first_dirty, end = found.first_dirty_offset, found.first_uncleanable_offset
            if not is_dirty:
                if not requests.request.is_for_horizons:
                    return None
                # Kafka has no such round. It is what one of Kafka's would be whose dirty part removes nothing.
                first_dirty = end = horizon_round_end(log, first_dirty)
            return make_plan(log, first_dirty, end, now_ms, settings, known)
        if not is_dirty and not requests.request.is_for_horizons and not self._due.is_horizon_due(log, found, now_ms):
            return None
        return self._prompt.of(log).plan(found, now_ms, settings, known, is_for_horizons=not is_dirty)

    async def _run_plan(
        self,
        thread: CleanerThread,
        log: Log,
        plan: CleanPlan,
        check_done: Callable[[], None],
        requests: RoundRequests,
    ) -> CleanResult:
        runner = thread.runner_for(plan, is_requested=bool(requests.futures), engine=requests.request.engine)
        if requests.request.engine is None and thread.is_makeshift(runner, plan):
            await self._in_thread(check_room, self._env, plan)
        async with self._inline_turns if isinstance(runner, InlineRunner) else nullcontext():
            one = thread.under_way = RoundUnderWay(plan, runner, self._env.clock.now_ms())
            result = await run_plan(
                log, plan, runner, check_done=check_done, blocking=self._blocking, on_freed=one.free
            )
        thread.note_ready(runner)
        return result

    def _failed(self, log: Log, plan: CleanPlan | None, failure: Exception) -> str:
        """Record a failed round; return the text that reports it."""
        partition = _name(log)
        reason = str(failure) or type(failure).__name__
        # The log is not at fault if it has changed since, or if the worker was killed.
        is_changed = plan is not None and not holds(log, plan)
        is_killed = isinstance(failure, RunnerFailed) and not isinstance(failure, MemoryLimit | NoRoom)
        restarts = self._restarts[partition] = self._restarts.get(partition, 0) + 1
        if log.is_deleted or (is_changed and restarts <= MAX_RESTARTS) or (is_killed and restarts <= 1):
            logger.info("%s-%d: the round starts again: %s", *partition, reason)
            return reason
        now_ms = self._env.clock.now_ms()
        if self._prompt is not None and plan is not None and isinstance(failure, CorruptLog):
            is_tried_again = self._prompt.of(log).add_corrupt(failure, plan.first_dirty_offset, now_ms)
            if is_tried_again:
                return reason
        # Kafka takes the whole log directory offline for an OSError. A worker that died is not the log's fault.
        is_retried = not self._is_kafka or isinstance(failure, OSError | RunnerFailed)
        found = self.states.mark_uncleanable(partition, reason, now_ms, is_retried=is_retried)
        when = "not tried again" if found.retry_ms is None else f"next try in {(found.retry_ms - now_ms) // 1000} s"
        if self._is_kafka:
            kafka_log_lines.tell_uncleanable(log)
        is_expected = isinstance(failure, OSError | StorageError)
        logger.warning(
            "%s-%d: uncleanable, %s: %s", *partition, when, reason, exc_info=None if is_expected else failure
        )
        if found.retry_ms is not None:
            self._look_by(found.retry_ms)
        return reason

    def _tell(self, thread: CleanerThread, plan: CleanPlan, result: CleanResult) -> None:
        if self._is_kafka:
            kafka_log_lines.tell_round(thread.index, plan, result)
        logger.info("%s", log_messages.round_summary(plan, result))
        if (text := log_messages.offset_map_full(plan, result.end_offset)) is not None:
            logger.info("%s", text)
        if (text := log_messages.invalid_messages(plan, result)) is not None:
            logger.warning("%s", text)

    # -- retention -----------------------------------------------------------------------------------------------

    def _is_retention_due(self, *, is_settling: bool) -> bool:
        """Tell whether compacted logs are to be looked at for segments that go as a whole.

        Kafka's threads do that after each round, so not without the cleaner, nor while all of them are busy.
        """
        if self._is_stopping:
            return False
        if self._is_kafka:
            return self.settings.is_enabled and self._free_thread() is not None
        return is_settling or self._env.clock.now_ms() - self._retained_ms >= RETENTION_PAUSE_MS

    async def _retain(self) -> None:
        now_ms = self._retained_ms = self._env.clock.now_ms()
        self._troubles.keep_only(self._logs)
        async for log in self._due.compacted():
            partition = _name(log)
            if not self.states.is_free(partition):
                continue
            if self._is_kafka and self.states.is_uncleanable(partition, now_ms):
                continue
            try:
                count = deletable_segments(log, now_ms)
                if count:
                    self._delete_oldest(log, count)
            except Exception as error:  # whatever it is, the others have their turn
                self._troubles.tell(partition, RETENTION_FAILED, error, level=logging.ERROR)
            else:
                self._troubles.is_over(partition, RETENTION_FAILED)

    def _delete_oldest(self, log: Log, count: int) -> None:
        partition = _name(log)
        self.states.grab(partition)
        try:
            freed = log.delete_oldest(count)
            logger.info("%s-%d: %d bytes deleted by retention", *partition, freed)
        finally:
            self._on_retained(log)  # some may have gone before one could not
            self.states.done_deleting(partition)

    async def _in_thread(self, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._blocking, call, *arguments)


def _name(log: Log) -> TopicPartition:
    return log.topic, log.partition
