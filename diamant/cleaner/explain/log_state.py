"""A snapshot of a log: the state that the cleaner's rules need, as values that any thread can use.

`eligibility`, `time_based_roll` and `retention` accept it in place of a log, so they can be applied as of another time, or to a
changed log: with its active segment closed, with more bytes, or with other settings.

    state = LogState.of(log, now_ms, first_dirty)          owner's thread, in one turn
    cleanable_range(state.rolled(), checkpoint, later_ms)  any thread
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diamant.cleaner.rules import time_based_roll
from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.storage.env.env import Env
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment

MARKER_BYTES = 78
"""Size of a batch with a transaction marker."""


@dataclass(slots=True)
class SegmentState:
    """One segment; see `storage.segments.segment.Segment`. Never changed, except to fill in a `first_append_ms` of None."""

    base_offset: int
    size: int
    largest_timestamp: int
    first_timestamp: int
    first_append_ms: int | None
    last_append_ms: int
    jitter_ms: int
    path: str


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a log. The last of `segments` is the active one. `open_transactions` ascend by first offset."""

    topic: str
    partition: int
    path: str
    env: Env
    config: LogConfig
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    write_failure: OSError | None
    is_deleted: bool = False
    open_transactions: tuple[OpenTransaction, ...] = ()

    @classmethod
    def of(
        cls, log: Log, now_ms: int, first_dirty: int | None, open_transactions: Sequence[OpenTransaction] = ()
    ) -> LogState:
        """Return a snapshot of `log`. Only the log's owner may call this.

        Reads file times and first batch headers of dirty segments if they are unknown. To read the headers in a thread
        beforehand, call `service.round.look_at_first_timestamps`.
        """
        segments = log.segments
        ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset + 1]
        return cls(
            log.topic,
            log.partition,
            log.path,
            log.env,
            log.config,
            tuple(
                _segment_state(log, segment, now_ms, is_dirty=first_dirty is None or end > first_dirty)
                for segment, end in zip(segments, ends, strict=True)
            ),
            log.log_start_offset,
            log.log_end_offset,
            log.last_stable_offset,
            log.write_failure,
            log.is_deleted,
            tuple(sorted(open_transactions, key=lambda one: one.first_offset)),
        )

    @property
    def active(self) -> SegmentState:
        """The segment that takes appends."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def floor_segment(self, offset: int) -> int:
        """Return the index of the segment with the greatest base offset <= `offset`; -1 if there is none."""
        found = -1
        for index, segment in enumerate(self.segments):
            if segment.base_offset <= offset:
                found = index
        return found

    # -- the same log after a change -----------------------------------------------------------------------------

    def rolled(self) -> LogState:
        """Return the state with the active segment closed, unless it is empty."""
        if not self.active.size:
            return self
        empty = SegmentState(self.log_end_offset, 0, -1, -1, None, -1, 0, self.active.path)
        return replace(self, segments=(*self.segments, empty))

    def grown(self, size: int) -> LogState:
        """Return the state with `size` more bytes in the active segment."""
        active = replace(self.active, size=self.active.size + size)
        return replace(self, segments=(*self.segments[:-1], active))

    def without_oldest(self, count: int) -> LogState:
        """Return the state without the `count` oldest segments, as after `segment_removal.delete_oldest`."""
        if not count:
            return self
        left = (self.rolled() if count >= len(self.segments) else self).segments[count:] or self.segments[-1:]
        return replace(self, segments=left, log_start_offset=max(self.log_start_offset, left[0].base_offset))

    def emptied_below(self, offset: int) -> LogState:
        """Return the state after emptying the segments that begin below an offset."""
        segments = (replace(segment, size=0) if segment.base_offset < offset else segment for segment in self.segments)
        return replace(self, segments=tuple(segments))

    def decided(self) -> LogState:
        """Return the state without open transactions."""
        return replace(self, last_stable_offset=self.log_end_offset, open_transactions=())

    def aborted(self, now_ms: int) -> LogState:
        """Return the state with expired transactions aborted: their markers are appended, which may close the active segment."""
        left = tuple(
            transaction
            for transaction in self.open_transactions
            if transaction.abort_ms is None or transaction.abort_ms > now_ms
        )
        if len(left) == len(self.open_transactions):
            return self
        state = self
        for _ in range(len(self.open_transactions) - len(left)):
            state = state._with_marker(now_ms)
        stable = left[0].first_offset if left else state.log_end_offset
        return replace(state, last_stable_offset=stable, open_transactions=left)

    def _with_marker(self, now_ms: int) -> LogState:
        """Return the state with a marker appended, in a new segment if `Segment.should_roll` would require it."""
        config, active, state = self.config, self.active, self
        is_full = active.size > config.segment_bytes - MARKER_BYTES
        is_old = (
            active.first_timestamp >= 0 and now_ms - active.first_timestamp > config.max_segment_ms - active.jitter_ms
        )
        if is_full or is_old:
            state = self.rolled()
            active = state.active
        active = replace(
            active,
            size=active.size + MARKER_BYTES,
            largest_timestamp=max(active.largest_timestamp, now_ms),
            first_timestamp=active.first_timestamp if active.size else now_ms,
            first_append_ms=active.first_append_ms if active.size else now_ms,
            last_append_ms=now_ms,
        )
        return replace(state, segments=(*state.segments[:-1], active), log_end_offset=state.log_end_offset + 1)

    def with_config(self, settings: Mapping[str, Any]) -> LogState:
        """Return the state with changed settings, given by their names as fields of `LogConfig`."""
        return replace(self, config=replace(self.config, **settings))


def _segment_state(log: Log, segment: Segment, now_ms: int, *, is_dirty: bool) -> SegmentState:
    first_append_ms, last_append_ms = None, -1
    if segment.size and log.config.is_compacted and (is_dirty or segment is log.active):
        first_append_ms = time_based_roll.first_append_ms(log, segment, now_ms)
        last_append_ms = segment.last_append_ms
    return SegmentState(
        segment.base_offset,
        segment.size,
        segment.largest_timestamp,
        segment.first_timestamp if is_dirty else -1,
        first_append_ms,
        last_append_ms,
        segment.jitter_ms,
        segment.path,
    )
