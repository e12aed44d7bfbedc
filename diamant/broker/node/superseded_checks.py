"""Checks whether logs with old dirty records hold superseded records, and keeps the results.

A log is not read until its oldest dirty record is older than three quarters of `diamant.erasure.deadline.ms`. A result is dropped
when a round has cleaned the log. If a check found no superseded record, the log is checked again only if records were appended
since, and only once the check itself has reached that age, since the appended records cannot be older. If a check found one, or
was inconclusive, the log is checked again after `PAUSE_MS` of the broker's clock.

Bounds: a check reads at most `MAX_BYTES` of a log. Once the checks of one call have read `MAX_BYTES` in total, the call starts no
more; the remaining logs are uncertain until the next call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.cleaner.service.service import CleanerService

MAX_BYTES = 32 * 1024 * 1024
MAX_KEYS = 100_000
PAUSE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one log."""

    oldest_ms: int | None
    """The time since which the log has held a superseded record, or an earlier time; None if it holds none."""
    is_certain: bool
    """False if it is unknown whether the log holds a superseded record."""


@dataclass(frozen=True, slots=True)
class _Seen:
    first_dirty_offset: int
    end_offset: int
    at_ms: int
    result: CheckResult
    bytes_read: int


class SupersededChecks:
    """The checks of all logs of a broker. Belongs to the loop thread."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_keys: int = MAX_KEYS) -> None:
        """`max_bytes`, `max_keys`: the bounds of one check."""
        self._max_bytes = max_bytes
        self._max_keys = max_keys
        self._seen: dict[Log, _Seen] = {}
        self._turn = asyncio.Lock()

    async def check(
        self, service: CleanerService, logs: dict[Log, tuple[int, int]], now_ms: int, patience_ms: int
    ) -> dict[Log, CheckResult]:
        """Return for each log whether it holds superseded records.

        `logs`: the first dirty offset of each log, and the time of its oldest dirty record; results of other logs are dropped.
        `patience_ms`: until a check that found nothing is this old, records appended since are assumed to be superseded.
        """
        async with self._turn:
            self._seen = {log: seen for log, seen in self._seen.items() if log in logs}
            read = 0
            results = {}
            for log, (first_dirty, oldest_ms) in logs.items():
                seen = self._seen.get(log)
                if seen is None or _is_stale(seen, log, first_dirty, now_ms, patience_ms):
                    if read >= self._max_bytes:
                        results[log] = CheckResult(oldest_ms, False)
                        continue
                    seen = await self._look(service, log, first_dirty, oldest_ms, now_ms)
                    self._seen[log] = seen
                    read += seen.bytes_read
                results[log] = seen.result
                if log.log_end_offset > seen.end_offset and seen.result.is_certain:
                    results[log] = CheckResult(
                        seen.at_ms if seen.result.oldest_ms is None else seen.result.oldest_ms, True
                    )
            return results

    async def _look(self, service: CleanerService, log: Log, first_dirty: int, oldest_ms: int, now_ms: int) -> _Seen:
        from diamant.cleaner.facts.superseded_check import BoundExceeded, LookedAtSegment, LookPlan, look
        from diamant.cleaner.rules.time_based_roll import first_append_ms

        end_offset = log.log_end_offset
        try:
            plan = LookPlan(
                directory=log.path,
                segments=[
                    LookedAtSegment(
                        segment.base_offset,
                        segment.path,
                        segment.size,
                        first_append_ms(log, segment, now_ms),
                        segment.last_append_ms,
                    )
                    for segment in log.segments
                    if segment.size
                ],
                first_dirty_offset=first_dirty,
                log_start_offset=log.log_start_offset,
                timestamp_ahead_ms=log.config.message_timestamp_after_max_ms,
                hash_key=service.view(log).hash_key,
                max_bytes=self._max_bytes,
                max_keys=self._max_keys,
            )
            report = await asyncio.to_thread(look, log.env, plan)
        except BoundExceeded:
            result, read = CheckResult(oldest_ms, False), self._max_bytes
        except OSError:  # A round or retention has replaced a segment since.
            result, read = CheckResult(oldest_ms, False), 0
        except CorruptLog:
            # Records in the damaged segment may supersede others, and nothing proves that those were removed.
            result, read = CheckResult(oldest_ms, True), 0
        else:
            found_ms = report.oldest_ms
            result = CheckResult(None if found_ms is None else max(found_ms, oldest_ms), True)
            read = report.bytes_read
        return _Seen(first_dirty, end_offset, now_ms, result, read)


def _is_stale(seen: _Seen, log: Log, first_dirty: int, now_ms: int, patience_ms: int) -> bool:
    if seen.first_dirty_offset != first_dirty:
        return True
    age_ms = now_ms - seen.at_ms
    if seen.result == CheckResult(None, True):
        return log.log_end_offset > seen.end_offset and age_ms > patience_ms
    return age_ms >= PAUSE_MS
