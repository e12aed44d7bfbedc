"""The gates that keep the cleaner's rounds from covering an offset.

The rules are applied to the log as it is, and as it would be if another gate were open. For example, the dirty ratio for a record
in the active segment is computed as if that segment were closed.

Retention has two gates: one opens at a time (`retention.ms`), the other after a number of appended bytes (`retention.bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diamant.cleaner.explain.explanation import (
    ACTIVE_SEGMENT,
    BROKEN,
    CLEANER_DISABLED,
    DIRTY_RATIO,
    HELD,
    MIN_LAG,
    OPEN_TRANSACTION,
    PAUSED,
    RETENTION_SIZE,
    RETENTION_TIME,
    UNCLEANABLE,
    Gate,
)
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import FoundRecord
from diamant.cleaner.explain.upcoming_rounds import look, moments, without_lags
from diamant.cleaner.rules import time_based_roll
from diamant.cleaner.rules.eligibility import inactive_from, limits, old_enough_ms, round_down
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.cleaner.service.partition_view import CleanerView
from diamant.protocol.batches.header import CURRENT_MAGIC
from diamant.storage.config_key import LONG_MAX
from diamant.words import moment

MAX_BYTES = 1 << 50
"""A gate that opens only after more appended bytes counts as never opening."""


def least(condition: Callable[[int], bool], most: int = MAX_BYTES) -> int | None:
    """Return the smallest number from 0 to `most` for which a monotonic condition holds; None if there is none."""
    if not condition(most):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if condition(middle):
            high = middle
        else:
            low = middle + 1
    return low


def cleaner_gates(state: LogState, view: CleanerView, now_ms: int) -> list[Gate]:
    """Return the gates that keep the cleaner from cleaning anything in the log."""
    gates = []
    if not view.is_enabled:
        gates.append(Gate(CLEANER_DISABLED, "the cleaner is off (log.cleaner.enable=false): it works on request only"))
    if state.write_failure is not None:
        gates.append(Gate(BROKEN, f"the partition refuses writes since {state.write_failure}; restart the broker"))
    if view.is_paused:
        gates.append(Gate(PAUSED, "cleaning is paused here by another request"))
    uncleanable = view.uncleanable
    if uncleanable is not None and (uncleanable.retry_ms is None or now_ms < uncleanable.retry_ms):
        when = "not tried again before a restart" if uncleanable.retry_ms is None else "tried again later"
        rounds = "round" if uncleanable.failures == 1 else f"{uncleanable.failures} rounds"
        text = f"the last {rounds} failed, {when}" if uncleanable.failures else "a round fails"
        text += f": {uncleanable.reason}"
        detail = {"reason": uncleanable.reason, "since_ms": uncleanable.since_ms, "failures": uncleanable.failures}
        gates.append(Gate(UNCLEANABLE, text, until_ms=uncleanable.retry_ms, detail=detail))
    return gates


def round_gates(state: LogState, view: CleanerView, now_ms: int, offset: int) -> list[Gate]:
    """Return the gates that keep a round from covering `offset`; empty if such a round is due now."""
    first_dirty = look(state, view, now_ms).first_dirty_offset
    gates = cleaner_gates(state, view, now_ms)
    for gate in (
        _active_gate(state, view, now_ms, offset),
        _transaction_gate(state, offset),
        _young_gate(state, view, now_ms, first_dirty, offset),
        ratio_gate(state, view, now_ms),
    ):
        if gate is not None:
            gates.append(gate)
    return gates


def _active_gate(state: LogState, view: CleanerView, now_ms: int, offset: int) -> Gate | None:
    active, config = state.active, state.config
    if offset < limits(state, 0, now_ms).active_segment or not active.size:
        return None
    # `Segment.should_roll`: an append that would make the segment larger than segment.bytes begins another segment.
    more = max(0, config.segment_bytes - active.size) + 1
    detail: dict[str, object] = {"segment_bytes": config.segment_bytes, "size": active.size}
    limit = "segment.ms" if config.segment_ms <= config.max_compaction_lag_ms else "max.compaction.lag.ms"
    if view.is_prompt:
        due_ms = time_based_roll.roll_due_ms(state, now_ms)
        when = "by no time" if due_ms is None else f"by {limit}={config.max_segment_ms}"
        text = f"active segment: closed after {more:,} more bytes, or {when}"
        return Gate(ACTIVE_SEGMENT, text, until_ms=due_ms, bytes_more=more, detail=detail)
    text = f"active segment: closed by the append that exceeds segment.bytes, after {more:,} more bytes"
    if config.max_segment_ms < LONG_MAX and active.first_timestamp >= 0:
        after_ms = active.first_timestamp + config.max_segment_ms - active.jitter_ms
        detail["closed_by_timestamp_above_ms"] = after_ms
        text += f", or by the first with a timestamp after {moment(after_ms)} ({limit}={config.max_segment_ms})"
    return Gate(ACTIVE_SEGMENT, text, bytes_more=more, detail=detail)


def _transaction_gate(state: LogState, offset: int) -> Gate | None:
    stable = state.last_stable_offset
    # A round ends at a segment's base, so the whole segment with the transaction's first record waits.
    if stable >= state.log_end_offset or offset < round_down(state.rolled(), stable):
        return None
    text = f"a transaction is open since offset {stable:,} (last stable offset)"
    detail: dict[str, object] = {"last_stable_offset": stable}
    until_ms = None
    if state.open_transactions:
        first = state.open_transactions[0]
        text = f"{first.text}; {first.end_text}"
        command = first.abort_command(state.topic, state.partition)
        detail |= {"producer_id": first.producer_id, "transactional_id": first.transactional_id}
        detail |= {"since_ms": first.since_ms, "abort_command": command}
        until_ms = first.abort_ms
    return Gate(OPEN_TRANSACTION, text, until_ms=until_ms, detail=detail)


def _young_gate(state: LogState, view: CleanerView, now_ms: int, first_dirty: int, offset: int) -> Gate | None:
    config, ages = state.config, time_based_roll.ages_in(view.mode)
    if config.min_compaction_lag_ms <= 0:
        return None
    times = [
        old_enough_ms(segment, config, ages)
        for segment in inactive_from(state.rolled(), first_dirty)
        if segment.base_offset <= offset and segment.size
    ]
    until_ms = max(times, default=now_ms)
    if until_ms <= now_ms:
        return None
    lag_ms = config.min_compaction_lag_ms
    text = f"younger than min.compaction.lag.ms={lag_ms}, or behind such a segment"
    youngest_ms = until_ms - lag_ms
    text += "; its timestamp is in the future" if youngest_ms > now_ms else ""
    detail = {"min_compaction_lag_ms": lag_ms, "youngest_ms": youngest_ms}
    return Gate(MIN_LAG, text, until_ms=until_ms, detail=detail)


def ratio_gate(state: LogState, view: CleanerView, now_ms: int) -> Gate | None:
    """Return the gate of the dirty ratio; None if it is open.

    The gate is closed if, even with all dirty records cleanable, there are too few of them and none is overdue.
    """
    open_state = without_lags(state)
    found = look(open_state, view, now_ms)
    if found.is_eligible:
        return None
    more = least(lambda count: replace(found, cleanable_bytes=found.cleanable_bytes + count).is_eligible)
    later = (at_ms for at_ms in moments(open_state, view, now_ms) if look(open_state, view, at_ms).is_eligible)
    due_ms = next(later, None)
    text = f"dirty ratio {found.dirty_ratio:.3f}, not above min.cleanable.dirty.ratio={found.min_dirty_ratio:g}"
    text += "" if more is None else f": {more:,} more dirty bytes"
    text += "; no max.compaction.lag.ms" if due_ms is None else "; max.compaction.lag.ms makes it due"
    detail = {
        "dirty_ratio": found.dirty_ratio,
        "min_cleanable_dirty_ratio": found.min_dirty_ratio,
        "clean_bytes": found.clean_bytes,
        "dirty_bytes": found.cleanable_bytes,
    }
    return Gate(DIRTY_RATIO, text, until_ms=due_ms, bytes_more=more, detail=detail)


def add_hold_gate(
    gates: list[Gate], hold: TombstoneHold | None, record: FoundRecord, now_ms: int, horizon_ms: int
) -> int:
    """Return the time from which a record with a known horizon may be removed, and add a gate if groups hold it."""
    if hold is None or record.is_control or record.magic < CURRENT_MAGIC:
        return horizon_ms
    until_ms = hold.due_ms(horizon_ms, record.offset)
    if until_ms > max(horizon_ms, now_ms):
        text = f"held for group {hold.group_id} at offset {hold.committed_offset}"
        if hold.group_id is None:
            text = "held while not all groups are loaded: one of them may be behind"
        detail = {"group": hold.group_id, "committed_offset": hold.committed_offset, "max_ms": hold.max_ms}
        gates.append(Gate(HELD, f"{text} (diamant.tombstone.hold=groups)", until_ms=until_ms, detail=detail))
    return until_ms


def retention_ms(state: LogState, index: int, now_ms: int) -> int | None:
    """Return the time from which retention removes the segment at `index`; None: never, under the present conditions."""
    config = state.config
    times = {now_ms}
    if config.is_deleted and config.retention_ms >= 0:
        # Retention removes the oldest segment first, so an older segment with later timestamps keeps all segments after it.
        times |= {segment.largest_timestamp + config.retention_ms + 1 for segment in state.segments[: index + 1]}
    ahead = sorted(time for time in times if time >= now_ms)
    return next((time for time in ahead if deletable_segments(state, time) > index), None)


def retention_gates(state: LogState, index: int, now_ms: int) -> list[Gate]:
    """Return the gates that keep the segment at `index`; empty if it may be removed now, or if the log has no retention."""
    config = state.config
    if not config.is_deleted or deletable_segments(state, now_ms) > index:
        return []
    gates = []
    until_ms = retention_ms(state, index, now_ms)
    if config.retention_ms >= 0:
        text = f"the segment is removed as a whole, by retention.ms={config.retention_ms} after its newest record"
        if max(segment.largest_timestamp for segment in state.segments[: index + 1]) > now_ms:
            text += "; a timestamp in the future postpones that"
        gates.append(Gate(RETENTION_TIME, text, until_ms=until_ms))
    else:
        gates.append(Gate(RETENTION_TIME, "the segment is never removed by its age: retention.ms=-1"))
    if config.retention_bytes >= 0:
        grown = state.rolled()
        more = least(lambda count: deletable_segments(grown.grown(count), now_ms) > index)
        text = f"the segment is removed by retention.bytes={config.retention_bytes}"
        text += "" if more is None else f" after {more:,} more bytes"
        gates.append(Gate(RETENTION_SIZE, text, bytes_more=more))
    return gates
