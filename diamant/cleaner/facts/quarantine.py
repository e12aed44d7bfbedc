"""Cleans a log around segments that cannot be read (mode prompt).

In Kafka, a corrupt batch stops the cleaning of its partition, and does so again after a restart. Here only the segment is left
out: it is neither read nor replaced, and the segments before and after it are cleaned.

No deleted record in the segment may reappear, and no record may be lost:

* Above the segment's base offset, no tombstone or marker expires (`horizons_frozen_above`), because the segment may contain an
  older record of the tombstone's key, or a batch of the marker's transaction. Markers keep their entries in the index of aborted
  transactions, without which the records in the segment would count as committed.
* An aborted transaction whose marker is in the segment still ends there: later batches of its producer belong to other
  transactions.
* The segment's keys are not in the map, so older records of these keys remain, like the records of the segment itself.
* The checkpoint on disk stays where it was when the segment was last cleaned, or at the segment's base offset, even across
  restarts. When the segment can be read again, the next round maps everything above the checkpoint, and so removes the segment's
  records that have been superseded. In memory, the broker keeps the offset at which each round ended, and continues from there,
  so that the same range is not cleaned again and again.
* After that round, nothing expires for another `delete.retention.ms`, so that a consumer that has read an old record from the
  segment still finds the tombstone.

A segment leaves quarantine when its file is replaced (repaired, restored), when it is deleted, or when the configuration changes.
It stays in quarantine while its file is missing or has another size. The broker knows where the segment ends, so readers would
run past the end of a shorter file, and the next round would lose the rest of a longer one. When a file of the right size then
appears, it counts as a replacement, whatever its times.
All of this is kept in memory: after a restart the first round meets the corruption again before it replaces anything above it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from diamant.cleaner.rules.plan import CleanPlan
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

logger = logging.getLogger(__name__)

MAX_SEGMENTS = 16
"""Maximum number of corrupt segments in a log. A log with more is not cleaned, because they probably have a common cause."""


@dataclass(frozen=True, slots=True)
class CorruptSegment:
    """A segment that could not be read, and the state of its file at that time."""

    base_offset: int
    modified_ms: int
    birth_ms: int | None
    position: int
    reason: str
    since_ms: int
    clean_to: int
    """All keys up to this offset had been mapped when the segment was last cleaned. The base offset if it was never cleaned."""
    size: int = 0
    """Size of the segment, in bytes."""
    obstacle: str = ""
    """Reason why the segment's file could not be used at the last check: for example, it was missing or had another size."""

    def __str__(self) -> str:
        name = os.path.basename(names.log_file("", self.base_offset))
        return f"{name} at {self.position}: {'; '.join(filter(None, (self.reason, self.obstacle)))}"


def plan_around(plan: CleanPlan, corrupt: Collection[int], frozen_above: int | None = None) -> CleanPlan:
    """Return a plan that leaves out the segments at these base offsets, and lets nothing expire above the lowest of them.

    `frozen_above` may lower that limit. If there is nothing to leave out or freeze, the plan is returned unchanged.
    """
    present = frozenset(segment.base_offset for segment in plan.segments) & frozenset(corrupt)
    limits = [*present] if frozen_above is None else [*present, frozen_above]
    if not limits:
        return plan
    if plan.is_kafka:
        raise ValueError(f"{plan.directory}: in mode kafka a corrupt segment ends the cleaning")
    return replace(plan, quarantined=present, horizons_frozen_above=min(limits))


def corrupt_base(error: CorruptLog) -> int | None:
    """Return the base offset of the segment whose `.log` file an error refers to; None for other files."""
    parsed = names.parse_segment_file(os.path.basename(error.path))
    return parsed.offset if parsed is not None and parsed[1:] == (names.LOG_SUFFIX, "") else None


def _file_times(env: Env, path: str) -> tuple[int, int | None]:
    """Return the modification and birth times of a file."""
    return env.mtime_ms(path), env.birth_ms(path)


def _look(env: Env, segment: Segment) -> tuple[int, int | None] | str:
    """Return the times of a segment's file, or the reason why it cannot be used."""
    try:
        size = env.file_size(segment.path)
        if size == segment.size:
            return _file_times(env, segment.path)
    except FileNotFoundError:
        return f"{segment.path} is missing: restore it"
    except OSError as error:
        return f"its file cannot be examined: {error}"
    return f"{segment.path} has {size} bytes, {segment.size} expected: restore such a file, or restart the broker to use this one"


class Quarantine:
    """The corrupt segments of one log. Belongs to the log's owner."""

    def __init__(self) -> None:
        self._corrupt: dict[int, CorruptSegment] = {}
        self._let_out: dict[int, int] = {}
        """Maps the base offset of each released segment that no round has read yet to its `clean_to`."""
        self._healing: dict[int, int] = {}
        """Maps the base offset of each segment that is clean again to the time from which tombstones above it may expire."""
        self._cleaned_to: int | None = None
        """End of the last round, if that left out a segment; None if the next round begins at the checkpoint."""
        self._is_behind = False
        """True if a segment has been left out since the last round that read everything."""

    @property
    def segments(self) -> list[CorruptSegment]:
        """The quarantined segments, ascending."""
        return [self._corrupt[base_offset] for base_offset in sorted(self._corrupt)]

    @property
    def is_over(self) -> bool:
        """True if no segment is in quarantine, or has to catch up after it, or still keeps tombstones from expiring."""
        return not self._corrupt and not self._let_out and not self._healing

    def add(self, log: Log, error: CorruptLog, first_dirty_offset: int, now_ms: int) -> CorruptSegment | None:
        """Quarantine the segment that a round from `first_dirty_offset` on could not read; return None if that does not help.

        It does not help if the error is about another kind of file, the active segment or a segment that is already in
        quarantine, nor if `MAX_SEGMENTS` segments are in quarantine.
        """
        base_offset = corrupt_base(error)
        if base_offset is None or base_offset in self._corrupt or len(self._corrupt) >= MAX_SEGMENTS:
            return None
        segment = next((one for one in log.segments[:-1] if one.base_offset == base_offset), None)
        if segment is None:
            return None
        try:
            times = _file_times(log.env, segment.path)
        except OSError:
            return None
        corrupt_segment = CorruptSegment(
            base_offset,
            *times,
            error.position,
            error.reason,
            now_ms,
            clean_to=min(
                max(base_offset, first_dirty_offset),
                self._let_out.pop(base_offset, max(base_offset, first_dirty_offset)),
            ),
            size=segment.size,
        )
        self._corrupt[base_offset] = corrupt_segment
        return corrupt_segment

    def refresh(self, log: Log) -> list[CorruptSegment]:
        """Release segments whose files have changed, and forget segments that are no longer in the log; return both."""
        changed = []
        present = {segment.base_offset: segment for segment in log.segments}
        for corrupt_segment in self.segments:
            segment = present.get(corrupt_segment.base_offset)
            if segment is None:
                changed.append(self._corrupt.pop(corrupt_segment.base_offset))
                continue
            found = _look(log.env, segment)
            if isinstance(found, str):
                if found != corrupt_segment.obstacle:
                    self._corrupt[corrupt_segment.base_offset] = replace(corrupt_segment, obstacle=found)
                    logger.warning(
                        "%s: the segment at %d stays in quarantine: %s", log.path, corrupt_segment.base_offset, found
                    )
            elif corrupt_segment.obstacle or found != (corrupt_segment.modified_ms, corrupt_segment.birth_ms):
                changed.append(corrupt_segment)
                segment.release_file()  # so that readers also open the new file
                self._release(corrupt_segment.base_offset)
        for base_offset in [*self._let_out, *self._healing]:
            if base_offset < log.segments[0].base_offset:
                self._let_out.pop(base_offset, None)
                self._healing.pop(base_offset, None)
        return changed

    def release(self, log: Log) -> None:
        """Release all segments whose files can be used, so that the next round tries them again."""
        for segment in log.segments:
            corrupt_segment = self._corrupt.get(segment.base_offset)
            if corrupt_segment is None or isinstance(found := _look(log.env, segment), str):
                continue
            if corrupt_segment.obstacle or found != (corrupt_segment.modified_ms, corrupt_segment.birth_ms):
                segment.release_file()  # as in `refresh`, which does not examine a released segment
            self._release(corrupt_segment.base_offset)

    def _release(self, base_offset: int) -> None:
        segment = self._corrupt.pop(base_offset)
        if self._cleaned_to is not None or self._is_behind:
            self._let_out[base_offset] = segment.clean_to
            # If other segments are released at the same time, they also have to catch up.
            self._is_behind = True
            self._cleaned_to = None

    def first_dirty(self, checkpoint: int | None) -> int | None:
        """Return the start of the next round, given the checkpoint."""
        if not self._corrupt or self._cleaned_to is None:
            return checkpoint
        return self._cleaned_to if checkpoint is None else max(checkpoint, self._cleaned_to)

    def frozen_above(self, now_ms: int) -> int | None:
        """Return the offset above which nothing expires; None if there is no such limit."""
        self._healing = {base: until_ms for base, until_ms in self._healing.items() if now_ms < until_ms}
        return min([*self._corrupt, *self._let_out, *self._healing], default=None)

    def plan_around(self, plan: CleanPlan) -> CleanPlan:
        """Return a plan that leaves out the quarantined segments."""
        return plan if self.is_over else plan_around(plan, self._corrupt, self.frozen_above(plan.now_ms))

    def end_round(self, plan: CleanPlan, end_offset: int) -> int:
        """Record that a round with a dirty range has been completed; return the new checkpoint."""
        if plan.first_dirty_offset >= plan.first_uncleanable_offset:
            raise ValueError(f"{plan.directory}: the round had no dirty range, so its end is not a checkpoint")
        read = {segment.base_offset for segment in plan.segments} - plan.quarantined
        for base_offset, clean_to in list(self._let_out.items()):
            if base_offset in read and plan.first_dirty_offset <= clean_to:
                del self._let_out[base_offset]
                self._healing[base_offset] = plan.now_ms + plan.delete_retention_ms
        self._is_behind = bool(self._corrupt or self._let_out)
        self._cleaned_to = end_offset if self._is_behind else None
        return min([end_offset, *(segment.clean_to for segment in self._corrupt.values()), *self._let_out.values()])
