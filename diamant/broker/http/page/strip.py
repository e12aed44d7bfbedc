"""A partition as a strip: its segments side by side, as wide as they are large, divided by the kinds of their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from diamant.broker.operations.segment_figures import CountedPartition
from diamant.cleaner.evidence.certificates.page_words import counted as word
from diamant.cleaner.evidence.certificates.page_words import moment, number, size
from diamant.cleaner.queries.segment_census import SegmentRecords
from diamant.cleaner.service.metrics import PartitionStatus, RoundStatus
from diamant.storage.log.log import Log

WIDTH, HEIGHT = 1000, 60
MAX_BINS = 240
"""Of a strip. Neighbours of a log with more segments share one."""
KINDS = (
    ("live", "live"),
    ("tombstones", "tombstones"),
    ("expired", "expired tombstones"),
    ("superseded", "superseded"),
    ("aborted", "aborted"),
    ("undecided", "transaction open"),
    ("keyless", "without a key"),
    ("markers", "markers"),
    ("unknown", "not counted"),
)
"""From the bottom to the top; the labels of the legend. All tombstones of a segment count as expired once the last has."""
COUNTED = tuple(kind for kind, _ in KINDS if kind != "unknown")
TICKS = 4
"""On the axis, from the left, as far apart as the others."""


class ShownSegment(NamedTuple):
    """A segment in the table."""

    base_offset: int
    size: int
    newest_ms: int
    counts: Mapping[str, int] | None
    """None: not counted since it changed."""
    state: str
    is_active: bool
    is_dirty: bool
    is_in_round: bool


class Bin(NamedTuple):
    """A piece of the strip: a segment, or several neighbours."""

    x: float
    width: float
    bands: tuple[tuple[str, float, float], ...]
    """Kind, y, height."""
    classes: str
    title: str
    base_offset: int


class Tick(NamedTuple):
    """A place on the axis; without texts beyond the end of the log."""

    offset: int | None
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Strip:
    """One partition."""

    partition: int
    bytes: int
    log_start_offset: int
    log_end_offset: int
    segments: tuple[ShownSegment, ...]
    bins: tuple[Bin, ...]
    marks: tuple[tuple[str, float], ...]
    """Log start, first dirty and last stable offset, where they lie: kind, x."""
    label: str
    figures: str
    ticks: tuple[Tick, ...]
    newest_ms: int
    round: RoundStatus | None
    is_exchanging: bool
    trouble: str | None
    outputs: tuple[tuple[float, float], ...] = ()
    """What the round in progress has written so far: x, width."""
    written_bytes: int = 0
    ghost: tuple[float, float] | None = None
    """What a round has just freed: x, width."""
    ghost_text: str = ""
    reading: tuple[float, float] | None = None
    """The segments that the round in progress is over: x, width."""


def make_strip(
    log: Log,
    counted: CountedPartition | None,
    status: PartitionStatus | None,
    round_: RoundStatus | None,
    first_dirty: int,
    scale_bytes: int,
    now_ms: int,
    written: Sequence[int] = (),
    bytes_before: int | None = None,
) -> Strip:
    """Return the strip of a log.

    `scale_bytes` is what the whole width stands for, `written` are the sizes of what a round has written and not yet put into
    place, `bytes_before` is the size before a round that has just ended.
    """
    known = {} if counted is None else counted.by_base_offset
    segments = tuple(_segments(log, known, round_, first_dirty, now_ms))
    scale = WIDTH / max(1, scale_bytes)
    total = sum(one.size for one in segments)
    figures = _figures(segments)
    outputs = []
    x = 0.0
    for one_size in written:
        outputs.append((round(x, 2), round(max(one_size * scale, 0.5), 2)))
        x += one_size * scale
    freed = 0 if bytes_before is None else bytes_before - total
    return Strip(
        log.partition,
        total,
        log.log_start_offset,
        log.log_end_offset,
        segments,
        tuple(_bins(segments, scale)),
        tuple(_marks(log, segments, scale, first_dirty)),
        f"Partition {log.partition}: {size(total)} in {word(len(segments), 'segment')}; {figures or 'not counted'}",
        figures,
        tuple(_ticks(log, segments, scale_bytes)),
        max((one.newest_ms for one in segments), default=-1),
        round_,
        log.is_exchanging,
        _trouble(log, status),
        tuple(outputs),
        sum(written),
        (round(total * scale, 2), round(freed * scale, 2)) if freed > 0 else None,
        f"A round has freed {size(freed)} of {size(bytes_before or 0)}." if freed > 0 else "",
        _reading(segments, scale),
    )


def _reading(segments: Sequence[ShownSegment], scale: float) -> tuple[float, float] | None:
    places, x = [], 0
    for one in segments:
        if one.is_in_round:
            places.append((x, x + one.size))
        x += one.size
    if not places:
        return None
    return round(places[0][0] * scale, 2), round((places[-1][1] - places[0][0]) * scale, 2)


def _trouble(log: Log, status: PartitionStatus | None) -> str | None:
    if log.write_failure is not None:
        return f"It takes no more writes: {log.write_failure}"
    if status is None or status.trouble is None:
        return None
    return f"{'Not cleaned' if status.uncleanable_reason is not None else 'In quarantine'}: {status.trouble}"


def _ticks(log: Log, segments: Sequence[ShownSegment], scale_bytes: int) -> Iterator[Tick]:
    """Yield the offsets at the same distances along the whole width."""
    ends = [one.base_offset for one in segments[1:]] + [log.log_end_offset]
    for step in range(TICKS):
        place, x = step * scale_bytes / TICKS, 0
        for one, end in zip(segments, ends, strict=True):
            if x <= place < x + one.size:
                share = (place - x) / one.size
                offset = (
                    max(log.log_start_offset, one.base_offset)
                    if not step
                    else one.base_offset + share * (end - one.base_offset)
                )
                yield Tick(int(offset), one.newest_ms)
                break
            x += one.size
        else:
            yield Tick(None, -1)


def _segments(
    log: Log, known: Mapping[int, SegmentRecords], round_: RoundStatus | None, first_dirty: int, now_ms: int
) -> Iterator[ShownSegment]:
    for segment in log.segments:
        one = known.get(segment.base_offset)
        if not segment.size:
            one = SegmentRecords(segment.base_offset, 0)
        is_current = one is not None and one.size == segment.size
        is_active = segment is log.active
        is_dirty = segment.base_offset >= first_dirty
        is_in_round = round_ is not None and round_.first_offset <= segment.base_offset < round_.end_offset
        words = ["active"] if is_active else ["dirty" if is_dirty else "cleaned"] if log.config.is_compacted else []
        if is_in_round:
            words.append("in a round")
        if is_current and one is not None and one.last_horizon_ms is not None:
            words.append(_horizon(one, now_ms))
        yield ShownSegment(
            segment.base_offset,
            segment.size,
            segment.largest_timestamp,
            _counts(one, now_ms) if is_current and one is not None else None,
            ", ".join(words),
            is_active,
            is_dirty,
            is_in_round,
        )


def _counts(one: SegmentRecords, now_ms: int) -> Mapping[str, int]:
    found = {kind: getattr(one, kind) for kind in COUNTED if kind != "expired"}
    is_expired = one.last_horizon_ms is not None and one.last_horizon_ms <= now_ms
    # In the order of KINDS, in which they are drawn.
    return {
        kind: (found["tombstones"] if is_expired else 0) if kind == "expired"
        else 0 if kind == "tombstones" and is_expired
        else found[kind]
        for kind in COUNTED
    }  # fmt: skip


def _horizon(one: SegmentRecords, now_ms: int) -> str:
    assert one.first_horizon_ms is not None
    assert one.last_horizon_ms is not None
    if one.last_horizon_ms <= now_ms:
        return "its tombstones have expired"
    if one.first_horizon_ms <= now_ms:
        return f"some tombstones have expired, the last expire at {moment(one.last_horizon_ms)}"
    return f"tombstones wait until {moment(one.first_horizon_ms)}"


def _figures(segments: Sequence[ShownSegment]) -> str:
    counted = [one.counts for one in segments if one.counts is not None]
    if not counted:
        return ""
    sums = {kind: sum(one[kind] for one in counted) for kind in COUNTED}
    text = ", ".join(f"{number(sums[kind])} {label}" for kind, label in KINDS if sums.get(kind))
    left = len(segments) - len(counted)
    return (text or "no records") + (f"; {word(left, 'segment')} not counted" if left else "")


def _bins(segments: Sequence[ShownSegment], scale: float) -> Iterator[Bin]:
    total = max(1, sum(one.size for one in segments))
    if len(segments) <= MAX_BINS:
        groups = [[one] for one in segments]
    else:
        at = 0
        places = []
        for one in segments:
            places.append((min(MAX_BINS - 1, at * MAX_BINS // total), one))
            at += one.size
        groups = [[one for _, one in group] for _, group in groupby(places, key=lambda place: place[0])]
    x = 0.0
    for group in groups:
        width = sum(one.size for one in group) * scale
        yield Bin(
            round(x, 2),
            round(max(width, 0.5), 2),
            tuple(_bands(group)),
            _classes(group),
            _title(group),
            group[0].base_offset,
        )
        x += width


def _bands(group: Sequence[ShownSegment]) -> Iterator[tuple[str, float, float]]:
    counted = [one.counts for one in group if one.counts is not None]
    sums = {kind: sum(one[kind] for one in counted) for kind in COUNTED}
    total = sum(sums.values())
    if not total or len(counted) < len(group):
        if any(one.size for one in group):
            yield "unknown", 0, HEIGHT
        return
    below = float(HEIGHT)
    for kind, count in sums.items():
        if count:
            height = count / total * HEIGHT
            below -= height
            yield kind, round(max(below, 0), 2), round(height, 2)


def _classes(group: Sequence[ShownSegment]) -> str:
    found = []
    if any(one.is_in_round for one in group):
        found.append("in-round")
    if any(one.is_active for one in group):
        found.append("active")
    return " ".join(found)


def _title(group: Sequence[ShownSegment]) -> str:
    first = group[0]
    lines = [
        f"Segment {number(first.base_offset)}, {size(first.size)}"
        if len(group) == 1
        else f"{number(len(group))} segments from offset {number(first.base_offset)}, {size(sum(one.size for one in group))}"
    ]
    counted = [one.counts for one in group if one.counts is not None]
    for kind, label in KINDS:
        if count := sum(one.get(kind, 0) for one in counted):
            lines.append(f"{number(count)} {label}")
    if len(counted) < len(group):
        lines.append("not counted")
    if len(group) == 1 and first.state:
        lines.append(first.state)
    return "\n".join(lines)


def _marks(log: Log, segments: Sequence[ShownSegment], scale: float, first_dirty: int) -> Iterator[tuple[str, float]]:
    if segments and log.log_start_offset > segments[0].base_offset:
        yield "start", _place(log, segments, scale, log.log_start_offset)
    if log.config.is_compacted and first_dirty > log.log_start_offset:
        yield "dirty", _place(log, segments, scale, first_dirty)
    if log.last_stable_offset < log.log_end_offset:
        yield "stable", _place(log, segments, scale, log.last_stable_offset)


def _place(log: Log, segments: Sequence[ShownSegment], scale: float, offset: int) -> float:
    """Return the x of an offset: within a segment as if its records were equally large."""
    x = 0.0
    for number_, one in enumerate(segments):
        end = segments[number_ + 1].base_offset if number_ + 1 < len(segments) else log.log_end_offset
        if offset < end:
            share = max(0.0, (offset - one.base_offset) / max(1, end - one.base_offset))
            return round((x + one.size * share) * scale, 2)
        x += one.size
    return round(x * scale, 2)
