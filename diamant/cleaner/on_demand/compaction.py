"""Compact now, and come back when it is done: one call for one partition.

The call notes the end of the log, closes the active segment, and has rounds carried out until none is left to be done
below that end. Rounds are the service's: calls that wait at the same time share them, and a round that is in progress
when a call comes is waited for and counted first, since it may have done all that is wanted. What no round may touch
yet (open transactions, `min.compaction.lag.ms` unless forced) is not waited for: the report says what it is.

    dirty part         a round for what is dirty                      as often as needed: in mode kafka the map may be full
    expired            a round for horizons that were over             in mode kafka without a dirty part if need be
    until tombstones-gone: wait for the last horizon, start again

A call that is cancelled while it waits does not stop the rounds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from diamant.cleaner.on_demand.record_counts import LogCensus, SegmentCensus
from diamant.cleaner.on_demand.report import (
    CLEAN,
    DELETED,
    LIVE,
    MARKER,
    MIN_COMPACTION_LAG,
    NOT_COMPACTED,
    OPEN_TRANSACTION,
    QUARANTINED,
    STOPPING,
    TOMBSTONE,
    UNCLEANABLE,
    HeldBack,
    PartitionCompaction,
)
from diamant.cleaner.prompt.segment_facts import read_facts
from diamant.cleaner.rules import result
from diamant.cleaner.rules.eligibility import CleanableRange, inactive_from, limits, old_enough_ms, round_down
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.service.log_picker import why_not
from diamant.cleaner.service.service import CleanerService, UnknownPartition
from diamant.cleaner.service.wakeup import Alarm
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

MAX_CENSUS_BYTES = 256 * 1024 * 1024
"""Bytes read at most to count the records of a partition; for a larger one the report gives no record counts."""

MAX_FAILED_ROUNDS = 32
"""Rounds in a row that end without a result, before a call gives up: more than a quarantine takes segments."""

CENSUS_TRIES = 3
"""Restarts of a count that meets files being replaced."""

OnStage: TypeAlias = Callable[[str], object]
"""Is told what is being done, in a few words."""


def no_stage(_stage: str) -> None:
    """Discard the report."""


class Compactor:
    """Compacts partitions on request. Belongs to the loop thread; all calls share what was counted."""

    def __init__(self, env: Env, service: CleanerService) -> None:
        self._env = env
        self._service = service
        self._censuses: dict[TopicPartition, LogCensus] = {}
        self._next_tidying = 16
        """Beyond so many, those of deleted logs are dropped."""

    def census_of(self, log: Log) -> LogCensus:
        """Return what was counted of a log's segments."""
        found = self._censuses.get((log.topic, log.partition))
        if found is None or found.log is not log:
            found = self._censuses[log.topic, log.partition] = LogCensus(log, self._service.blocking)
            if len(self._censuses) > self._next_tidying:
                self._censuses = {name: one for name, one in self._censuses.items() if not one.log.is_deleted}
                self._next_tidying = 2 * len(self._censuses)
        return found

    async def compact(
        self,
        log: Log,
        *,
        until: str = CLEAN,
        is_forced: bool = False,
        return_at_horizon: bool = False,
        engine: str | None = None,
        on_stage: OnStage = no_stage,
    ) -> PartitionCompaction:
        """Compact a partition and wait; see the module. What went wrong is in the report.

        `is_forced`: whatever `min.compaction.lag.ms` says. `return_at_horizon`: come back with the time of the last horizon in
        place of waiting for it. `engine`: the runner that is to do it (`service.cleaner_slot.ENGINES`).
        """
        call = _Call(
            self._env, self._service, self.census_of(log), until, is_forced, return_at_horizon, engine, on_stage
        )
        return await call.run()


class _Failed(Exception):
    """Ends a call."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _Call:
    """One call."""

    def __init__(
        self,
        env: Env,
        service: CleanerService,
        census: LogCensus,
        until: str,
        is_forced: bool,
        return_at_horizon: bool,
        engine: str | None,
        on_stage: OnStage,
    ) -> None:
        self._env = env
        self._service = service
        self._census = census
        self._log = census.log
        self._partition = (self._log.topic, self._log.partition)
        self._until = until
        self._is_forced = is_forced
        self._return_at_horizon = return_at_horizon
        self._engine = engine
        self._on_stage = on_stage
        self._watch = service.watch(self._partition)
        self._asked_offset = self._log.log_end_offset
        self._first_dirty: int | None = None
        self._found: CleanableRange | None = None
        self._last_horizon_ms: int | None = None
        self._failed_rounds = 0
        self._start_s = asyncio.get_running_loop().time()
        self._started_ms = env.clock.now_ms()

    async def run(self) -> PartitionCompaction:
        """Carry it out."""
        failure: _Failed | None = None
        before = self._asked_segments()
        bytes_before = sum(segment.size for segment in before)
        try:
            await self._compact()
        except _Failed as failed:
            failure = failed
        except UnknownPartition as error:
            failure = _Failed(DELETED, str(error))
        finally:
            self._service.unwatch(self._partition, self._watch)
        return await self._report(len(before), bytes_before, failure)

    # -- what is done ------------------------------------------------------------------------------------------------

    async def _compact(self) -> None:
        self._check()
        self._roll()
        # Noted by position: what is appended while others have their turns is not waited for.
        while True:
            await self._clean()
            horizon_ms = await self._remove_expired()
            if self._until == CLEAN or self._return_at_horizon or horizon_ms is None:
                return
            if horizon_ms <= self._env.clock.now_ms():
                return  # a round had its chance, and something else keeps it
            await self._wait_for(horizon_ms)

    def _check(self) -> None:
        """Raise if there can be no round."""
        if self._watch.ended.done():
            self._fail(self._watch.ended.result())
        reason = why_not(self._log)
        if reason is not None:
            code = DELETED if self._log.is_deleted else NOT_COMPACTED
            if self._log.config.is_compacted and not self._log.is_deleted:
                code = UNCLEANABLE
            raise _Failed(code, f"{self._name}: {reason}")

    def _fail(self, reason: Exception) -> NoReturn:
        if isinstance(reason, UnknownPartition):
            raise _Failed(DELETED, str(reason))
        if isinstance(reason, CleaningAborted):
            raise _Failed(STOPPING, f"{self._name}: {reason}")
        raise _Failed(NOT_COMPACTED, str(reason))

    def _roll(self) -> None:
        if not self._log.active.size:
            return
        try:
            self._log.roll()
        except (StorageError, OSError) as error:
            raise _Failed(UNCLEANABLE, f"{self._name}: the active segment cannot be closed: {error}") from error

    async def _clean(self) -> None:
        """Run rounds until nothing is dirty that may be touched."""
        while True:
            self._check()
            if self._first_dirty is None:
                self._look()
            if self._service.states.is_under_way(self._partition):
                self._on_stage("waiting for the round in progress")
                await self._watch.until_next()
                continue
            found = self._look()
            if found.first_dirty_offset >= self._asked_offset or not found.cleanable_bytes:
                break
            await self._round(is_for_horizons=False)
        if quarantined := self._service.quarantined(self._partition):
            raise _Failed(
                QUARANTINED,
                f"{self._name}: what cannot be read is left as it is, the rest is clean: {'; '.join(quarantined)}",
            )

    def _look(self) -> CleanableRange:
        found = self._service.look(self._log, is_forced=self._is_forced)
        if found is None:
            self._fail_uncleanable("it cannot be told what there is to clean")
        self._found = found
        if self._first_dirty is None:
            self._first_dirty = found.first_dirty_offset
        return found

    async def _remove_expired(self) -> int | None:
        """Have rounds until nothing is left whose horizon is over; the last horizon of those that are left."""
        tried: tuple[int, int] | None = None
        while True:
            self._check()
            horizons = await self._horizons()
            if horizons is None:
                self._last_horizon_ms = None
                return None
            self._last_horizon_ms = horizons[1]
            if horizons[0] > self._env.clock.now_ms() or horizons == tried:
                return horizons[1]
            tried = horizons
            await self._round(is_for_horizons=True)
            self._look()

    async def _round(self, *, is_for_horizons: bool) -> None:
        """Run a round that begins after this call, shared with all that want one."""
        self._on_stage("removing what has expired" if is_for_horizons else "cleaning")
        future = self._service.request(
            self._partition, is_forced=self._is_forced, is_for_horizons=is_for_horizons, engine=self._engine
        )
        # No one may be waiting for it any more when it fails.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._watch.until_done(future)
        self._check()
        report = future.result()
        if report.is_cleaned:
            self._failed_rounds = 0
            return
        self._failed_rounds += 1
        is_given_up = self._service.states.is_uncleanable(self._partition, self._env.clock.now_ms())
        if is_given_up or self._failed_rounds > MAX_FAILED_ROUNDS:
            self._fail_uncleanable(report.error or "no round was possible")

    def _fail_uncleanable(self, reason: str) -> NoReturn:
        known = self._service.states.uncleanable.get(self._partition)
        raise _Failed(UNCLEANABLE, f"{self._name} could not be cleaned: {reason if known is None else known.reason}")

    async def _wait_for(self, time_ms: int) -> None:
        self._on_stage("waiting for the horizon of tombstones")
        alarm = Alarm(self._env.clock)

        def wake(_ended: object) -> None:
            alarm.poke()

        alarm.start()
        self._watch.ended.add_done_callback(wake)
        try:
            while not await alarm.wait(time_ms):
                pass
        finally:
            self._watch.ended.remove_done_callback(wake)
            alarm.stop()

    # -- what is found -----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{self._log.topic}-{self._log.partition}"

    def _asked_segments(self) -> list[Segment]:
        return [segment for segment in self._log.segments if segment.base_offset < self._asked_offset]

    @property
    def _cleaned_to(self) -> int:
        assert self._found is not None
        return min(self._asked_offset, self._found.first_dirty_offset)

    def _cleaned_segments(self) -> list[Segment]:
        return [segment for segment in self._log.segments[:-1] if segment.base_offset < self._cleaned_to]

    async def _horizons(self) -> tuple[int, int] | None:
        """Return the first and the last horizon of a tombstone in the clean part; None if there is none."""
        census = await self._count(self._cleaned_segments)
        if census is None:
            return await self._filed_horizons()
        if census.first_horizon_ms is None or census.last_horizon_ms is None:
            return None
        return census.first_horizon_ms, census.last_horizon_ms

    async def _filed_horizons(self) -> tuple[int, int] | None:
        """As `_horizons`, of a log too large to be counted; markers count, too.

        In mode kafka, which files no facts, that means a look through the whole log: only for a call that waits for
        horizons.
        """
        if self._service.settings.mode == KAFKA and self._until == CLEAN:
            return None
        work = [(segment.base_offset, segment.size) for segment in self._cleaned_segments()]
        found = await asyncio.get_running_loop().run_in_executor(
            self._service.blocking, _read_horizons, self._env, self._log.path, work
        )
        return (min(found), max(found)) if found else None

    async def _count(self, segments: Callable[[], list[Segment]]) -> SegmentCensus | None:
        for _ in range(CENSUS_TRIES):
            if (found := await self._census.count(segments(), max_bytes=MAX_CENSUS_BYTES)) is not None:
                return found
            if self._census.unknown_bytes(segments()) > MAX_CENSUS_BYTES:
                return None
            if self._service.states.is_under_way(self._partition):
                await self._watch.until_next()
        return None

    def _held_back(self) -> HeldBack | None:
        """Return the part of the asked offsets that no round may touch."""
        log, found = self._log, self._found
        if found is None or found.first_dirty_offset >= self._asked_offset:
            return None
        first = max(found.first_dirty_offset, found.first_uncleanable_offset)
        held = [segment for segment in inactive_from(log, first) if segment.base_offset < self._asked_offset]
        size = sum(segment.size for segment in held)
        if first >= self._asked_offset or not size:
            return None
        now_ms = self._env.clock.now_ms()
        bounds = limits(log, found.first_dirty_offset, now_ms, is_forced=self._is_forced)
        is_young = bounds.young_segment is not None and bounds.young_segment <= round_down(
            log, bounds.last_stable_offset
        )
        if is_young:
            until_ms = max(old_enough_ms(segment, log.config) for segment in held)
            return HeldBack(MIN_COMPACTION_LAG, first, self._asked_offset, size, until_ms=until_ms)
        owner = next(
            (
                entry.producer_id
                for entry in log.producers.active_producers
                if entry.current_txn_first_offset == bounds.last_stable_offset
            ),
            None,
        )
        return HeldBack(OPEN_TRANSACTION, first, self._asked_offset, size, owner, bounds.last_stable_offset)

    async def _report(self, segments_before: int, bytes_before: int, failure: _Failed | None) -> PartitionCompaction:
        removed: Counter[str] = Counter()
        removed_bytes: Counter[str] = Counter()
        runners: dict[str, None] = {}
        rounds = 0
        for report in self._watch.reports:
            if report.result is not None and report.is_cleaned:
                rounds += 1
                runners[report.result.runner] = None
                removed.update(report.result.stats.removed)
                removed_bytes.update(report.result.stats.removed_bytes)
        held = None if self._log.is_deleted else self._held_back()
        kept = markers_after = records_after = None
        if failure is None and (kept := await self._kept(held)) is not None:
            markers_after = kept[MARKER]
            records_after = sum(kept.values()) - markers_after
        after = self._asked_segments()
        return PartitionCompaction(
            topic=self._log.topic,
            partition=self._log.partition,
            first_dirty_offset=self._first_dirty,
            cleaned_to_offset=None if self._found is None else self._cleaned_to,
            asked_offset=self._asked_offset,
            rounds=rounds,
            runners=tuple(runners),
            segments_before=segments_before,
            segments_after=len(after),
            bytes_before=bytes_before,
            bytes_after=sum(segment.size for segment in after),
            records_before=None if records_after is None else records_after + removed.total() - removed[result.MARKER],
            records_after=records_after,
            markers_before=None if markers_after is None else markers_after + removed[result.MARKER],
            markers_after=markers_after,
            removed=dict(removed),
            removed_bytes=dict(removed_bytes),
            kept=kept,
            held_back=held,
            horizon_ms=self._last_horizon_ms,
            started_ms=self._started_ms,
            ended_ms=self._env.clock.now_ms(),
            duration_ms=(asyncio.get_running_loop().time() - self._start_s) * 1000,
            error_code=None if failure is None else failure.code,
            error=None if failure is None else str(failure),
        )

    async def _kept(self, held: HeldBack | None) -> dict[str, int] | None:
        clean = await self._count(self._cleaned_segments)
        if clean is None:
            return None
        kept = {LIVE: clean.values, TOMBSTONE: clean.tombstones, MARKER: clean.markers}
        if held is not None:
            first = held.first_offset
            young = await self._count(lambda: [one for one in self._asked_segments() if one.base_offset >= first])
            if young is None:
                return None
            kept[held.reason] = young.records
            kept[MARKER] += young.markers
        return kept


def _read_horizons(env: Env, directory: str, segments: list[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    for base_offset, size in segments:
        try:
            found += [one.horizon_ms for one in read_facts(env, directory, base_offset, size).horizons]
        except (StorageError, OSError):
            continue  # replaced since, or an error that a round will meet
    return found
