"""The records that a compaction leaves in a log: their kinds, the horizons of tombstones, and records that no round may touch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diamant.cleaner.facts.facts_file import read_facts
from diamant.cleaner.on_demand.header_counts import CountedLogs, SegmentCounts
from diamant.cleaner.on_demand.report import MIN_COMPACTION_LAG, OPEN_TRANSACTION, HeldBack
from diamant.cleaner.rules.eligibility import CleanableRange, inactive_from, limits, old_enough_ms, round_down
from diamant.cleaner.rules.record_kinds import LIVE, MARKERS, TOMBSTONES
from diamant.cleaner.rules.time_based_roll import ages_in
from diamant.cleaner.service.round_requests import RoundWatch
from diamant.cleaner.service.service import CleanerService
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

COUNT_TRIES = 3
"""Number of attempts to count records while files are being replaced."""


@dataclass(frozen=True, slots=True)
class RemainingRecords:
    """The records of a log below its end at the time of the request."""

    service: CleanerService
    counted: CountedLogs
    log: Log
    watch: RoundWatch
    """Observes the rounds of the partition."""
    asked_offset: int
    max_counted_bytes: int

    def segments(self) -> list[Segment]:
        """Return the segments with offsets that existed at the time of the request."""
        return [segment for segment in self.log.segments if segment.base_offset < self.asked_offset]

    def cleaned(self, end_offset: int) -> list[Segment]:
        """Return the closed segments that begin below `end_offset`."""
        return [segment for segment in self.log.segments[:-1] if segment.base_offset < end_offset]

    async def horizons(self, end_offset: int, *, reads_all: bool) -> tuple[int, int] | None:
        """Return the earliest and latest horizon of the tombstones below `end_offset`; None if there are none.

        If the log is too large to be counted, returns None unless `reads_all`; then the horizons of markers are included.
        """
        found = await self._count(lambda: self.cleaned(end_offset))
        if found is None:
            return await self._filed_horizons(end_offset) if reads_all else None
        if found.first_horizon_ms is None or found.last_horizon_ms is None:
            return None
        return found.first_horizon_ms, found.last_horizon_ms

    async def kept(self, end_offset: int, held: HeldBack | None) -> dict[str, int] | None:
        """Return the counts of records below `end_offset` by kind, and of held-back records by reason; None if unknown."""
        clean = await self._count(lambda: self.cleaned(end_offset))
        if clean is None:
            return None
        kept = {LIVE: clean.values, TOMBSTONES: clean.tombstones, MARKERS: clean.markers}
        if held is not None:
            first = held.first_offset
            young = await self._count(lambda: [one for one in self.segments() if one.base_offset >= first])
            if young is None:
                return None
            kept[held.reason] = young.records
            kept[MARKERS] += young.markers
        return kept

    async def _filed_horizons(self, end_offset: int) -> tuple[int, int] | None:
        work = [(segment.base_offset, segment.size) for segment in self.cleaned(end_offset)]
        found = await asyncio.get_running_loop().run_in_executor(
            self.service.blocking, _read_horizons, self.log.env, self.log.path, work
        )
        return (min(found), max(found)) if found else None

    async def _count(self, segments: Callable[[], list[Segment]]) -> SegmentCounts | None:
        counts = self.counted.of(self.log)
        for _ in range(COUNT_TRIES):
            if (found := await counts.count(segments(), max_bytes=self.max_counted_bytes)) is not None:
                return found
            if counts.unknown_bytes(segments()) > self.max_counted_bytes:
                return None
            if self.service.states.is_in_progress((self.log.topic, self.log.partition)):
                await self.watch.until_next()
        return None


def _read_horizons(env: Env, directory: str, segments: Sequence[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    for base_offset, size in segments:
        try:
            found += [one.horizon_ms for one in read_facts(env, directory, base_offset, size).horizons]
        except (StorageError, OSError):
            continue  # The file was replaced, or has an error that a round will report.
    return found


def held_back(
    log: Log, found: CleanableRange, asked_offset: int, now_ms: int, mode: str, *, force: bool
) -> HeldBack | None:
    """Return those of the requested offsets that no round may touch; None if there are none. `found`: the cleanable range."""
    if found.first_dirty_offset >= asked_offset:
        return None
    first = max(found.first_dirty_offset, found.first_uncleanable_offset)
    held = [segment for segment in inactive_from(log, first) if segment.base_offset < asked_offset]
    size = sum(segment.size for segment in held)
    if first >= asked_offset or not size:
        return None
    ages = ages_in(mode)
    bounds = limits(log, found.first_dirty_offset, now_ms, ages, force=force)
    is_young = bounds.young_segment is not None and bounds.young_segment <= round_down(log, bounds.last_stable_offset)
    if is_young:
        until_ms = max(old_enough_ms(segment, log.config, ages) for segment in held)
        return HeldBack(MIN_COMPACTION_LAG, first, asked_offset, size, until_ms=until_ms)
    owner = next(
        (
            entry.producer_id
            for entry in log.producers.active_producers
            if entry.current_txn_first_offset == bounds.last_stable_offset
        ),
        None,
    )
    return HeldBack(OPEN_TRANSACTION, first, asked_offset, size, owner, bounds.last_stable_offset)
