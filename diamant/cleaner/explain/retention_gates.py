"""What keeps a segment from retention: `retention.ms` until a time, `retention.bytes` until so many bytes more."""

from __future__ import annotations

from diamant.cleaner.explain.explanation import RETENTION_SIZE, RETENTION_TIME, Gate
from diamant.cleaner.explain.log_snapshot import LogState
from diamant.cleaner.explain.round_gates import least
from diamant.cleaner.rules.retention import deletable_segments


def retention_ms(state: LogState, index: int, now_ms: int) -> int | None:
    """Return from when on retention removes the segment at `index`; None: never, as things are."""
    config = state.config
    times = {now_ms}
    if config.is_deleted and config.retention_ms >= 0:
        # The oldest go first, so an older segment with later timestamps keeps those behind it.
        times |= {segment.largest_timestamp + config.retention_ms + 1 for segment in state.segments[: index + 1]}
    ahead = sorted(time for time in times if time >= now_ms)
    return next((time for time in ahead if deletable_segments(state, time) > index), None)


def retention_gates(state: LogState, index: int, now_ms: int) -> list[Gate]:
    """Return what keeps the segment at `index`; nothing if it may go now, or retention is not for this log."""
    config = state.config
    if not config.is_deleted or deletable_segments(state, now_ms) > index:
        return []
    gates = []
    until_ms = retention_ms(state, index, now_ms)
    if config.retention_ms >= 0:
        text = f"the segment goes as a whole, by retention.ms={config.retention_ms} after its newest record"
        gates.append(Gate(RETENTION_TIME, text, until_ms=until_ms))
    else:
        gates.append(Gate(RETENTION_TIME, "the segment never goes by its age: retention.ms=-1"))
    if config.retention_bytes >= 0:
        grown = state.rolled()
        more = least(lambda count: deletable_segments(grown.grown(count), now_ms) > index)
        text = f"the segment goes by retention.bytes={config.retention_bytes}"
        text += "" if more is None else f" after {more:,} more bytes"
        gates.append(Gate(RETENTION_SIZE, text, bytes_more=more))
    return gates
