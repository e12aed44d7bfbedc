"""Computes the times of a log's next rounds by applying the cleaner's own rules to later times.

No record is read and nothing is rewritten, so this takes milliseconds (`whatif` instead runs every round in an overlay). The
size of the log after a round, on which the next dirty ratio depends, is unknown. So two courses are computed: in one, rounds do
not shrink the log (`is_early` False); in the other, they remove everything. The truth lies in between; usually both agree.

Assumptions: nothing is appended, no configuration changes, no transaction ends except by the coordinator's timeout, and a thread
of the cleaner is free. A real round starts within one loop of the cleaner (`log.cleaner.backoff.ms`) after the computed time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.rules import time_based_roll
from diamant.cleaner.rules.eligibility import (
    BY_LAG,
    BY_RATIO,
    CleanableRange,
    cleanable_range,
    inactive_from,
    is_candidate,
    old_enough_ms,
)
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.service.partition_view import CleanerView
from diamant.storage.config_key import LONG_MAX

MAX_MOMENTS = 256
"""Maximum number of times that are considered: the first ones and the last one."""
_FAR_MS = 1 << 60
"""Times from here on count as never; this is some 36 million years after 1970."""


@dataclass(frozen=True, slots=True)
class UpcomingRound:
    """A future round."""

    at_ms: int
    first_dirty_offset: int
    end_offset: int
    """Exclusive end: the round maps the offsets from `first_dirty_offset` up to here, and rewrites all segments below."""
    because: str
    """`BY_RATIO` or `BY_LAG`."""


def look(state: LogState, view: CleanerView, now_ms: int, first_dirty: int | None = None) -> CleanableRange:
    """Return what is cleanable at `now_ms`; `first_dirty` replaces the cleaner's checkpoint."""
    ages = time_based_roll.ages_in(view.mode)
    return cleanable_range(state, view.checkpoint if first_dirty is None else first_dirty, now_ms, ages=ages)


def course(state: LogState, view: CleanerView, now_ms: int, *, is_early: bool = True) -> tuple[UpcomingRound, ...]:
    """Return the upcoming rounds for dirty records in order of time, without rounds that are only for horizons.

    `is_early`: True for the earliest possible times, False for the latest.
    """
    if not view.is_enabled or state.is_deleted or state.write_failure is not None or view.is_paused:
        return ()
    if not state.config.is_compacted:
        return ()
    first_dirty: int | None = None
    rounds: list[UpcomingRound] = []
    for at_ms in moments(state, view, now_ms):
        state = state.aborted(at_ms)
        if view.is_prompt and time_based_roll.should_roll(state, at_ms):
            state = state.rolled()
        if view.uncleanable is not None and not rounds:
            retry_ms = view.uncleanable.retry_ms
            if retry_ms is None or at_ms < retry_ms:
                continue
        if is_early:
            # A smaller clean part makes the ratio higher.
            state = state.without_oldest(deletable_segments(state, at_ms))
        cleanable = look(state, view, at_ms, first_dirty)
        if is_early and view.horizon_ms is not None and view.horizon_ms <= at_ms:
            clean_end = state.segments[max(0, state.floor_segment(cleanable.first_dirty_offset))].base_offset
            state = state.emptied_below(clean_end)
            cleanable = look(state, view, at_ms, first_dirty)
        while is_candidate(state, cleanable) and cleanable.is_eligible:
            because = BY_RATIO if cleanable.dirty_ratio > cleanable.min_dirty_ratio else BY_LAG
            rounds.append(
                UpcomingRound(at_ms, cleanable.first_dirty_offset, cleanable.first_uncleanable_offset, because)
            )
            first_dirty = cleanable.first_uncleanable_offset
            if is_early:
                state = state.emptied_below(first_dirty)
            cleanable = look(state, view, at_ms, first_dirty)
    return tuple(rounds)


def next_round_ms(state: LogState, view: CleanerView, now_ms: int) -> int | None:
    """Return the time of the next round, for dirty or for expired records; None: never."""
    dirty = next((upcoming.at_ms for upcoming in course(state, view, now_ms)), None)
    expires = view.horizon_ms
    if not view.is_enabled or not state.config.is_compacted or view.is_paused or view.uncleanable is not None:
        expires = None
    times = [dirty, None if expires is None else max(expires, now_ms)]
    return min((time for time in times if time is not None), default=None)


def without_lags(state: LogState) -> LogState:
    """Return the state as if no record were too young, undecided or in the active segment."""
    return replace(state.rolled().decided(), config=replace(state.config, min_compaction_lag_ms=0))


def moments(state: LogState, view: CleanerView, now_ms: int) -> list[int]:
    """Return the times from now on at which something may become due, ascending."""
    config, ages = state.config, time_based_roll.ages_in(view.mode)
    first_dirty = look(state, view, now_ms).first_dirty_offset
    rolled = state.rolled()
    times: set[int | None] = {now_ms, *(transaction.abort_ms for transaction in state.open_transactions)}
    if view.uncleanable is not None:
        times.add(view.uncleanable.retry_ms)
    if view.is_prompt:
        times |= {time_based_roll.roll_due_ms(state, now_ms), view.horizon_ms}
    dirty = {segment.base_offset for segment in inactive_from(rolled, first_dirty)}
    for segment in rolled.segments[:-1]:
        if config.is_deleted and config.retention_ms >= 0:
            times.add(segment.largest_timestamp + config.retention_ms + 1)
        if segment.base_offset not in dirty:
            continue
        if config.min_compaction_lag_ms > 0:
            times.add(old_enough_ms(segment, config, ages))
        if config.max_compaction_lag_ms < LONG_MAX and segment.size:
            times.add(segment.first_timestamp + config.max_compaction_lag_ms + 1)
            if view.is_prompt:
                appended_ms = time_based_roll.first_append_ms(rolled, segment, now_ms)
                times.add(appended_ms + config.max_compaction_lag_ms + 1)
    ahead = sorted(time for time in times if time is not None and now_ms <= time < _FAR_MS)
    return ahead if len(ahead) <= MAX_MOMENTS else [*ahead[: MAX_MOMENTS - 1], ahead[-1]]
