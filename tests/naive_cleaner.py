"""A round of the cleaner as sets, written apart from the code it checks: slow, obvious, and without bytes.

It looks at a whole log at once instead of following it: which transactions were aborted is read off the markers, what is
superseded off the greatest offset of each key. It knows neither segments nor a limit of keys, and it holds for rounds that begin
at a segment's base and reach to their bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class NaiveRecord(NamedTuple):
    """One record; markers have their kind in `marker`."""

    offset: int
    key: bytes | None
    value: bytes | None
    marker: str = ""


class NaiveBatch(NamedTuple):
    """One batch, or what a round leaves of it."""

    base: int
    last: int
    records: tuple[NaiveRecord, ...]
    producer: int = -1
    epoch: int = -1
    is_transactional: bool = False
    is_control: bool = False
    horizon_ms: int | None = None


class Protected(NamedTuple):
    """An active producer: its epoch, and the last offset of its newest batch in it."""

    epoch: int
    last_offset: int | None


def naive_round(
    log: Sequence[NaiveBatch],
    *,
    first_dirty: int,
    bound: int,
    header_end: int,
    now_ms: int,
    retention_ms: int,
    protected: Mapping[int, Protected],
) -> list[NaiveBatch]:
    """Return the batches that a round over `[0, bound)` leaves; `log` also has what lies behind.

    `header_end`: `bound` for Kafka until 4.3, the log's end since 4.4.
    """
    aborted = {batch.base for batch in log if _fate(log, batch) == "abort"}
    newest = _newest(batch for batch in log if batch.base not in aborted and first_dirty <= batch.last < bound)
    out = []
    for batch in log:
        if batch.last >= bound:
            continue
        is_idle_marker = batch.is_control and not _has_data(log, batch)
        is_over = batch.horizon_ms is not None and now_ms >= batch.horizon_ms
        if batch.is_control:
            kept = () if is_idle_marker and (is_over or not batch.records) else batch.records
        elif batch.base in aborted:
            kept = ()
        else:
            kept = tuple(
                record
                for record in batch.records
                if record.key is not None
                and record.offset >= newest.get(record.key, -1)
                and not (record.value is None and is_over)
            )
        if kept:
            is_to_stamp = is_idle_marker or any(record.value is None for record in kept)
            horizon_ms = batch.horizon_ms
            if horizon_ms is None and is_to_stamp:
                horizon_ms = now_ms + retention_ms
            out.append(batch._replace(records=kept, horizon_ms=horizon_ms))
        elif batch.last + 1 == header_end or _is_protected(batch, protected):
            out.append(batch._replace(records=(), horizon_ms=None))
    return out


def _newest(batches: Iterable[NaiveBatch]) -> dict[bytes, int]:
    """Return the greatest offset of each key."""
    records = [record for batch in batches if not batch.is_control for record in batch.records]
    return {
        key: max(record.offset for record in records if record.key == key)
        for key in {record.key for record in records}
        if key is not None
    }


def _markers(log: Sequence[NaiveBatch], producer: int) -> list[NaiveBatch]:
    return [batch for batch in log if batch.producer == producer and batch.is_control and batch.records]


def _fate(log: Sequence[NaiveBatch], batch: NaiveBatch) -> str:
    """Return the end of a data batch's transaction: "commit", "abort", or "" for none or one that is open."""
    if not batch.is_transactional or batch.is_control:
        return ""
    later = [marker for marker in _markers(log, batch.producer) if marker.base > batch.base]
    return later[0].records[0].marker if later else ""


def _has_data(log: Sequence[NaiveBatch], marker: NaiveBatch) -> bool:
    """True if any batch, empty or not, lies between a marker and its producer's previous one."""
    if not marker.records:
        return False
    earlier = [one.base for one in _markers(log, marker.producer) if one.base < marker.base]
    start = max(earlier, default=-1)
    return any(
        batch.producer == marker.producer
        and batch.is_transactional
        and not batch.is_control
        and start < batch.base < marker.base
        for batch in log
    )


def _is_protected(batch: NaiveBatch, protected: Mapping[int, Protected]) -> bool:
    known = protected.get(batch.producer)
    if known is None:
        return False
    if known.last_offset is not None:
        return batch.last == known.last_offset
    return batch.is_control and batch.epoch == known.epoch
