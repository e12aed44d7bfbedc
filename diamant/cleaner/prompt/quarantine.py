"""Cleaning a log around segments that cannot be read (mode prompt).

In Kafka a corrupt batch ends the cleaning of its partition until the broker is restarted, and then again. Here the segment alone
is left out: it is neither read nor replaced, while the segments before and after it are cleaned.

What is in it must not come back to life, and must not be lost:

* Above its base no tombstone and no marker expires (`horizons_frozen_above`): an older record of the tombstone's key may be in
  it, or a batch of the marker's transaction. Markers keep their entries in the index of aborted transactions, without which
  the records in it would count as committed.
* An aborted transaction whose marker lies in it ends there all the same: what its producer wrote afterwards is another one.
* Its keys are not in the map, so that older records of them stay; and its own records stay.
* The checkpoint on disk stays where the segment was cleaned last, or at its base, also across restarts. Once it can be read
  again, the next round maps all that lies above, and so removes from it what was superseded since. In the memory of the
  broker the rounds continue from where they ended, so that the same range is not cleaned again and again.
* After that round nothing expires for `delete.retention.ms` yet: a reader of an old record from the segment finds the
  tombstone.

A segment is let out when its file is another one (repaired, restored), when the configuration changes, and when it is gone. It
stays where it is as long as there is no file, or one of another size: the broker knows where the segment ends, so in a shorter
one readers would run past the end, and of a longer one the next round would drop the rest. A file of the right size that comes
after such a one counts as another one, whatever its times.
That is all kept in memory: after a restart the first round meets the corruption again before it has replaced anything above it.
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
"""With more corrupt segments than these a log is not cleaned: there is something wrong beyond them."""


@dataclass(frozen=True, slots=True)
class CorruptSegment:
    """A segment that could not be read, and its file as it was then."""

    base_offset: int
    modified_ms: int
    birth_ms: int | None
    position: int
    reason: str
    since_ms: int
    clean_to: int
    """Up to here all keys were mapped when it was cleaned last; its base offset if it never was."""
    size: int = 0
    """Of the segment, in bytes."""
    obstacle: str = ""
    """Why its file could not be the segment's the last time: it was not there, or has another size."""

    def __str__(self) -> str:
        name = os.path.basename(names.log_file("", self.base_offset))
        return f"{name} at {self.position}: {'; '.join(filter(None, (self.reason, self.obstacle)))}"


def plan_around(plan: CleanPlan, corrupt: Collection[int], frozen_above: int | None = None) -> CleanPlan:
    """Return the plan with some segments left out, given by their base offsets, and nothing expiring above the lowest.

    `frozen_above` is a lower limit still. A plan without any of this is returned as it is.
    """
    present = frozenset(segment.base_offset for segment in plan.segments) & frozenset(corrupt)
    limits = [*present] if frozen_above is None else [*present, frozen_above]
    if not limits:
        return plan
    if plan.is_kafka:
        raise ValueError(f"{plan.directory}: in mode kafka a corrupt segment ends the cleaning")
    return replace(plan, quarantined=present, horizons_frozen_above=min(limits))


def corrupt_base(error: CorruptLog) -> int | None:
    """Return the base offset of the segment that an error is about; None if it is about another file."""
    parsed = names.parse_segment_file(os.path.basename(error.path))
    return parsed.offset if parsed is not None and parsed[1:] == (names.LOG_SUFFIX, "") else None


def _file_times(env: Env, path: str) -> tuple[int, int | None]:
    """Return when a file was written and made."""
    return env.mtime_ms(path), env.birth_ms(path)


def _look(env: Env, segment: Segment) -> tuple[int, int | None] | str:
    """Return the times of a segment's file; why it cannot be this segment's, if it cannot."""
    try:
        size = env.file_size(segment.path)
        if size == segment.size:
            return _file_times(env, segment.path)
    except OSError as error:
        return f"it has no file now, and waits for one: {error}"
    return f"{segment.path} has {size} bytes, {segment.size} expected: restore one of that size, or restart the broker to take it"


class Quarantine:
    """The corrupt segments of one log. Belongs to the log's owner."""

    def __init__(self) -> None:
        self._corrupt: dict[int, CorruptSegment] = {}
        self._let_out: dict[int, int] = {}
        """Base offset to `clean_to` of segments that no round has read since they could be."""
        self._healing: dict[int, int] = {}
        """Base offset to when tombstones above may expire again."""
        self._cleaned_to: int | None = None
        """End of the last round that left out something; None if the checkpoint says it."""
        self._is_behind = False
        """True if there was such a round since a round has read everything."""

    @property
    def segments(self) -> list[CorruptSegment]:
        """Return what is in quarantine, ascending."""
        return [self._corrupt[base_offset] for base_offset in sorted(self._corrupt)]

    @property
    def is_over(self) -> bool:
        """True if nothing needs to be remembered, as far as it does not depend on the time."""
        return not self._corrupt and not self._let_out and not self._healing

    def add(self, log: Log, error: CorruptLog, first_dirty_offset: int, now_ms: int) -> CorruptSegment | None:
        """Put the segment into quarantine that a round could not read; None if that is no remedy.

        `first_dirty_offset` is that of the round. It is no remedy for other files, for the active segment, for one that is
        in quarantine already, and for one too many.
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
        found = CorruptSegment(
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
        self._corrupt[base_offset] = found
        return found

    def refresh(self, log: Log) -> list[CorruptSegment]:
        """Let out the segments whose files have changed, forget those that are gone from the log; return both."""
        changed = []
        present = {segment.base_offset: segment for segment in log.segments}
        for one in self.segments:
            segment = present.get(one.base_offset)
            if segment is None:
                changed.append(self._corrupt.pop(one.base_offset))
                continue
            found = _look(log.env, segment)
            if isinstance(found, str):
                if found != one.obstacle:
                    self._corrupt[one.base_offset] = replace(one, obstacle=found)
                    logger.warning("%s: the segment at %d stays in quarantine: %s", log.path, one.base_offset, found)
            elif one.obstacle or found != (one.modified_ms, one.birth_ms):
                changed.append(one)
                segment.let_go_of_file()  # readers, too, get the other one
                self._release(one.base_offset)
        for base_offset in [*self._let_out, *self._healing]:
            if base_offset < log.segments[0].base_offset:
                self._let_out.pop(base_offset, None)
                self._healing.pop(base_offset, None)
        return changed

    def release(self, log: Log) -> None:
        """Let all segments out whose files can be theirs, so that the next round tries them again."""
        for segment in log.segments:
            one = self._corrupt.get(segment.base_offset)
            if one is None or isinstance(found := _look(log.env, segment), str):
                continue
            if one.obstacle or found != (one.modified_ms, one.birth_ms):
                segment.let_go_of_file()  # as in `refresh`, which no longer sees it
            self._release(one.base_offset)

    def _release(self, base_offset: int) -> None:
        one = self._corrupt.pop(base_offset)
        if self._cleaned_to is not None or self._is_behind:
            self._let_out[base_offset] = one.clean_to
            # Others let out at the same time are as far behind.
            self._is_behind = True
            self._cleaned_to = None

    def first_dirty(self, checkpoint: int | None) -> int | None:
        """Return where the next round begins, given the checkpoint."""
        if not self._corrupt or self._cleaned_to is None:
            return checkpoint
        return self._cleaned_to if checkpoint is None else max(checkpoint, self._cleaned_to)

    def frozen_above(self, now_ms: int) -> int | None:
        """Return above which offset nothing expires; None if nothing is frozen."""
        self._healing = {base: until_ms for base, until_ms in self._healing.items() if now_ms < until_ms}
        return min([*self._corrupt, *self._let_out, *self._healing], default=None)

    def plan_around(self, plan: CleanPlan) -> CleanPlan:
        """Return the plan of a round as the quarantine wants it."""
        return plan if self.is_over else plan_around(plan, self._corrupt, self.frozen_above(plan.now_ms))

    def end_round(self, plan: CleanPlan, end_offset: int) -> int:
        """Record that a round was completed; return its checkpoint. Not for rounds without a dirty range."""
        if plan.first_dirty_offset >= plan.first_uncleanable_offset:
            raise ValueError(f"{plan.directory}: the round had no dirty range, so its end is no checkpoint")
        read = {segment.base_offset for segment in plan.segments} - plan.quarantined
        for base_offset, clean_to in list(self._let_out.items()):
            if base_offset in read and plan.first_dirty_offset <= clean_to:
                del self._let_out[base_offset]
                self._healing[base_offset] = plan.now_ms + plan.delete_retention_ms
        self._is_behind = bool(self._corrupt or self._let_out)
        self._cleaned_to = end_offset if self._is_behind else None
        return min([end_offset, *(one.clean_to for one in self._corrupt.values()), *self._let_out.values()])
