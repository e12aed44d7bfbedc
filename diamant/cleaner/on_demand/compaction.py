"""Compacts one partition now, in one call that returns when the compaction is done.

The call records the end of the log, closes the active segment, and requests rounds from the cleaner until nothing is left to do
below that end. Calls that wait at the same time share rounds. If a round is in progress, a call first waits for it and counts it,
because it may do everything that is needed. A call does not wait for offsets that no round may touch yet (because of an open
transaction or, unless forced, `min.compaction.lag.ms`); the report gives the reason.

    for the dirty part           one round; further ones if needed, because the map may become full in mode kafka
    for what has expired         one round if horizons have passed; in mode kafka even without a dirty part
    until tombstones-gone        wait for the last horizon, then start again

Cancelling a waiting call does not stop the rounds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NoReturn, TypeAlias

from diamant.cleaner.on_demand.header_counts import CountedLogs
from diamant.cleaner.on_demand.remaining import RemainingRecords, held_back
from diamant.cleaner.on_demand.report import (
    CLEAN,
    DELETED,
    MAX_COUNTED_BYTES,
    NOT_COMPACTED,
    QUARANTINED,
    STOPPING,
    UNCLEANABLE,
    PartitionCompaction,
)
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.cleaner.rules.eligibility import CleanableRange
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.service.log_picker import why_not
from diamant.cleaner.service.loop import Wakeup
from diamant.cleaner.service.round_requests import RoundRequest, UnknownPartition
from diamant.cleaner.service.service import CleanerService
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

MAX_FAILED_ROUNDS = 32
"""Number of consecutive rounds that may fail before a call gives up. It exceeds the number of segments in a full quarantine."""

OnStage: TypeAlias = Callable[[str], object]
"""Takes the current stage, in a few words."""


def no_stage(_stage: str) -> None:
    """Discard the stage."""


class _Failed(Exception):
    """Ends the call because the compaction failed."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class PartitionJob:
    """The compaction of one partition for one caller. Must be used on the event loop. All calls share `counted`."""

    def __init__(
        self,
        service: CleanerService,
        counted: CountedLogs,
        log: Log,
        request: CompactRequest,
        on_stage: OnStage = no_stage,
        max_counted_bytes: int = MAX_COUNTED_BYTES,
    ) -> None:
        self._service = service
        self._log = log
        self._clock = log.env.clock
        self._partition = (log.topic, log.partition)
        self._request = request
        self._on_stage = on_stage
        self._watch = watch = service.callers.watch(self._partition)
        self._asked_offset = log.log_end_offset
        self._remaining = RemainingRecords(service, counted, log, watch, self._asked_offset, max_counted_bytes)
        self._first_dirty: int | None = None
        self._found: CleanableRange | None = None
        self._last_horizon_ms: int | None = None
        self._failed_rounds = 0
        self._start_s = asyncio.get_running_loop().time()
        self._started_ms = self._clock.now_ms()

    async def run(self) -> PartitionCompaction:
        """Request rounds until the request is fulfilled; return the report, which includes any error."""
        before, failure = [segment.size for segment in self._remaining.segments()], None
        try:
            try:
                self._check()
                self._roll()
                async with aclosing(self._needed()) as needed:
                    async for request in needed:
                        await self._next_round(request)
            except _Failed as failed:
                failure = failed
            except UnknownPartition as error:
                failure = _Failed(DELETED, str(error))
            return await self._report(before, failure)
        finally:
            self._service.callers.unwatch(self._partition, self._watch)

    async def _needed(self) -> AsyncGenerator[RoundRequest, None]:
        """Yield a request for each round that is needed."""
        force, engine = self._request.force, self._request.engine
        while True:
            while not await self._is_clean():
                self._on_stage("cleaning")
                yield RoundRequest(force, engine=engine)
            tried: tuple[int, int] | None = None
            while (horizons := await self._horizons()) is not None and horizons != tried:
                if horizons[0] > self._clock.now_ms():
                    break
                tried = horizons
                self._on_stage("removing what has expired")
                yield RoundRequest(force, True, engine)
                self._look()
            last_ms = self._last_horizon_ms
            if self._request.until == CLEAN or not self._request.wait or last_ms is None:
                return
            if last_ms <= self._clock.now_ms():
                return  # A round has run since the horizon, so something else keeps the tombstone.
            await self._wait_for(last_ms)

    def _check(self) -> None:
        """Raise `_Failed` if no round is possible."""
        if self._watch.ended.done():
            ended = self._watch.ended.result()
            if isinstance(ended, UnknownPartition):
                raise _Failed(DELETED, str(ended))
            if isinstance(ended, CleaningAborted):
                raise _Failed(STOPPING, f"{self._name}: {ended}")
            raise _Failed(NOT_COMPACTED, str(ended))
        reason = why_not(self._log)
        if reason is not None:
            code = DELETED if self._log.is_deleted else NOT_COMPACTED
            if self._log.config.is_compacted and not self._log.is_deleted:
                code = UNCLEANABLE
            raise _Failed(code, f"{self._name}: {reason}")

    def _roll(self) -> None:
        """Close the active segment, so that rounds can clean it. Later appends are not part of the call."""
        if not self._log.active.size:
            return
        try:
            self._log.roll()
        except (StorageError, OSError) as error:
            raise _Failed(UNCLEANABLE, f"{self._name}: the active segment cannot be closed: {error}") from error

    async def _is_clean(self) -> bool:
        """Wait for a round in progress, then tell whether everything that rounds may touch is clean."""
        while True:
            self._check()
            found = self._look()
            is_clean = found.first_dirty_offset >= self._asked_offset or not found.cleanable_bytes
            is_in_progress = self._service.states.is_in_progress(self._partition)
            if is_clean and (self._watch.reports or not is_in_progress):
                break
            if not is_in_progress:
                return False
            self._on_stage("waiting for the round in progress")
            await self._watch.until_next()
        if quarantined := self._service.quarantined(self._partition):
            raise _Failed(
                QUARANTINED,
                f"{self._name}: what cannot be read is left as it is, the rest is clean: {'; '.join(quarantined)}",
            )
        return True

    def _look(self) -> CleanableRange:
        found = self._service.picker.cleanable_range(self._log, self._clock.now_ms(), force=self._request.force)
        if found is None:
            self._fail_uncleanable("the part to clean cannot be determined")
        self._found = found
        if self._first_dirty is None:
            self._first_dirty = found.first_dirty_offset
        return found

    async def _horizons(self) -> tuple[int, int] | None:
        """Return the first and the last horizon of the remaining tombstones; None if none remain."""
        self._check()
        # In mode kafka there are no facts files, so the horizons of a large log are only read if the caller waits for them.
        reads_all = self._service.settings.mode != KAFKA or self._request.until != CLEAN
        horizons = await self._remaining.horizons(self._cleaned_to, reads_all=reads_all)
        self._last_horizon_ms = None if horizons is None else horizons[1]
        return horizons

    async def _next_round(self, request: RoundRequest) -> None:
        """Wait for a round that begins after this call. All calls that need such a round share it."""
        future = self._service.request(self._partition, request)
        # If the round fails, there may be no caller left to retrieve the exception.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([future, self._watch.ended], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        self._check()
        report = future.result()
        if report.is_cleaned:
            self._failed_rounds = 0
            return
        self._failed_rounds += 1
        is_given_up = self._service.states.is_uncleanable(self._partition, self._clock.now_ms())
        if is_given_up or self._failed_rounds > MAX_FAILED_ROUNDS:
            self._fail_uncleanable(report.error or "no round was possible")

    def _fail_uncleanable(self, reason: str) -> NoReturn:
        known = self._service.states.uncleanable.get(self._partition)
        raise _Failed(UNCLEANABLE, f"{self._name} could not be cleaned: {reason if known is None else known.reason}")

    async def _wait_for(self, time_ms: int) -> None:
        self._on_stage("waiting for the horizon of tombstones")
        wakeup = Wakeup(self._clock)

        def wake(_ended: object) -> None:
            wakeup.notify()

        wakeup.start()
        self._watch.ended.add_done_callback(wake)
        try:
            while not await wakeup.wait(time_ms):
                pass
        finally:
            self._watch.ended.remove_done_callback(wake)
            wakeup.stop()

    @property
    def _name(self) -> str:
        return f"{self._log.topic}-{self._log.partition}"

    @property
    def _cleaned_to(self) -> int:
        assert self._found is not None
        return min(self._asked_offset, self._found.first_dirty_offset)

    async def _report(self, sizes_before: list[int], failure: _Failed | None) -> PartitionCompaction:
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
        held = None
        if self._found is not None and not self._log.is_deleted:
            now_ms, force = self._clock.now_ms(), self._request.force
            held = held_back(
                self._log, self._found, self._asked_offset, now_ms, self._service.settings.mode, force=force
            )
        kept = await self._remaining.kept(self._cleaned_to, held) if failure is None else None
        after = self._remaining.segments()
        return PartitionCompaction(
            topic=self._log.topic,
            partition=self._log.partition,
            first_dirty_offset=self._first_dirty,
            cleaned_to_offset=None if self._found is None else self._cleaned_to,
            asked_offset=self._asked_offset,
            rounds=rounds,
            runners=tuple(runners),
            segments_before=len(sizes_before),
            segments_after=len(after),
            bytes_before=sum(sizes_before),
            bytes_after=sum(segment.size for segment in after),
            removed=dict(removed),
            removed_bytes=dict(removed_bytes),
            kept=kept,
            held_back=held,
            horizon_ms=self._last_horizon_ms,
            started_ms=self._started_ms,
            ended_ms=self._clock.now_ms(),
            duration_ms=(asyncio.get_running_loop().time() - self._start_s) * 1000,
            error_code=None if failure is None else failure.code,
            error=None if failure is None else str(failure),
        )
