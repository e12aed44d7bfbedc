"""Strips of partitions: the segments side by side, sized in proportion, each divided by the kinds of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diamant.broker.http.page.making.segments import ShownSegment, figures_of, shown_segments
from diamant.broker.operations.figures.counted_partition import CountedPartition
from diamant.broker.operations.figures.strip_values import LABELS, UNKNOWN, pieces, shares, sums
from diamant.cleaner.rules.record_kinds import counted
from diamant.cleaner.service.metrics import PartitionStatus, RoundStatus
from diamant.progress import Progress
from diamant.storage.log.log import Log
from diamant.words import counted as word
from diamant.words import number, size

WIDTH = 1000
LEAST_ALIKE = 4
"""The minimum number of similar partitions that are shown as one strip."""
TICKS = 4
"""The number of ticks on the axis, at equal distances from the left."""


HEIGHT = 60
MAX_BINS = 240
"""The maximum number of bins in a strip. In a log with more segments, neighbouring segments share a bin."""


class Bin(NamedTuple):
    """One bin of a strip: a segment, or several neighbouring segments."""

    x: float
    width: float
    bands: tuple[tuple[str, float, float], ...]
    """The kind, y and height of each band."""
    classes: str
    title: str
    base_offset: int

    @property
    def text(self) -> str:
        """Return the title in one line."""
        return "; ".join(self.title.splitlines())


def bins_of(segments: Sequence[ShownSegment], scale: float) -> Iterator[Bin]:
    is_each_own = len(segments) <= MAX_BINS
    groups = [[one] for one in segments] if is_each_own else [group for _, group in pieces(segments, MAX_BINS)]
    x = 0.0
    for group in groups:
        width = sum(one.size for one in group) * scale
        yield joined(group, x, width)
        x += width


def joined(group: Sequence[ShownSegment], x: float, width: float) -> Bin:
    """Return one bin for all of these segments."""
    return Bin(
        round(x, 2),
        round(max(width, 0.5), 2),
        tuple(_bands(group)),
        _classes(group),
        _title(group),
        group[0].base_offset,
    )


def _bands(group: Sequence[ShownSegment]) -> Iterator[tuple[str, float, float]]:
    if not any(one.size for one in group):
        return
    found = shares(group)
    total, below = sum(found.values()), float(HEIGHT)
    for kind, count in found.items():
        height = count / total * HEIGHT
        below -= height
        yield kind, round(max(below, 0), 2), round(height, 2)


def _classes(group: Sequence[ShownSegment]) -> str:
    found = []
    if any(one.is_in_round for one in group):
        found.append("in-round")
    if any(one.is_active for one in group):
        found.append("active")
    if any(one.is_quarantined for one in group):
        found.append("quarantined")
    return " ".join(found)


def _title(group: Sequence[ShownSegment]) -> str:
    first = group[0]
    lines = [
        f"Segment {number(first.base_offset)}, {size(first.size)}"
        if len(group) == 1
        else f"{number(len(group))} segments from offset {number(first.base_offset)}, {size(sum(one.size for one in group))}"
    ]
    lines += [counted(count, LABELS[kind]) for kind, count in sums(group).items()]
    if any(one.counts is None for one in group):
        lines.append(LABELS[UNKNOWN])
    if len(group) == 1 and first.state:
        lines.append(first.state)
    return "\n".join(lines)


class Tick(NamedTuple):
    """A tick on the axis. Beyond the end of the log, it has no offset and no time."""

    offset: int | None
    newest_ms: int


class JoinedStrips(NamedTuple):
    """One strip that shows several similar partitions together."""

    partitions: str
    partition_count: int
    bytes: int
    smallest: int
    largest: int
    segments: int
    """The number of segments in each partition."""
    figures: str
    bin: Bin
    busy: str
    """The partitions with a round in progress or in trouble."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The strip of one partition."""

    partition: int
    bytes: int
    log_start_offset: int
    log_end_offset: int
    segments: tuple[ShownSegment, ...]
    bins: tuple[Bin, ...]
    marks: tuple[tuple[str, float], ...]
    """The kind and x of each mark: log start, first dirty and last stable offset."""
    label: str
    figures: str
    ticks: tuple[Tick, ...]
    newest_ms: int
    round: RoundStatus | None
    is_exchanging: bool
    trouble: str | None
    outputs: tuple[tuple[float, float], ...] = ()
    """The x and width of each output written so far by the round in progress."""
    written_bytes: int = 0
    ghost: tuple[float, float] | None = None
    """The x and width of space just freed by a round."""
    ghost_text: str = ""
    reading: tuple[float, float] | None = None
    """The x and width of the segments covered by the round in progress."""
    counting: str = ""
    """The progress of counting the partition's records; empty if no count is in progress."""

    @property
    def is_busy(self) -> bool:
        """True if a round is in progress or has just freed space, or if the partition is in trouble."""
        return self.round is not None or self.is_exchanging or self.ghost is not None or self.trouble is not None


def are_alike(strips: Sequence[Strip]) -> bool:
    """Return whether one strip can show these partitions: enough of them, of similar size, equal in segments, and none busy."""
    sizes = [one.bytes for one in strips]
    return (
        len(strips) >= LEAST_ALIKE
        and len({len(one.segments) for one in strips}) == 1
        and max(sizes) <= 2 * min(sizes)
        and not any(one.is_busy for one in strips)
    )


def total_of(strips: Sequence[Strip]) -> JoinedStrips:
    """Return one strip for all of these partitions."""
    segments = [segment for one in strips for segment in one.segments]
    sizes = [one.bytes for one in strips]
    return JoinedStrips(
        ranges(one.partition for one in strips),
        len(strips),
        sum(sizes),
        min(sizes),
        max(sizes),
        len(strips[0].segments),
        figures_of(segments),
        joined(segments, 0, WIDTH if sum(sizes) else 0),
        ranges(one.partition for one in strips if one.is_busy),
    )


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text: `0 to 3, 5`."""
    found: list[list[int]] = []
    for one in numbers:
        if found and found[-1][1] == one - 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(
        str(first) if first == last else f"{first}{' to ' if last > first + 1 else ', '}{last}" for first, last in found
    )


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
    counting: Progress | None = None,
) -> Strip:
    """Return the strip of a log.

    `scale_bytes`: the number of bytes that fill the whole width. `written`: the sizes of a round's outputs not yet swapped in.
    `bytes_before`: the size before a round that has just ended. `counting`: the progress of counting the log's records.
    """
    known = {} if counted is None else counted.by_base_offset
    quarantined = () if status is None else status.quarantined
    segments = tuple(shown_segments(log, known, round_, first_dirty, now_ms, quarantined))
    scale = WIDTH / max(1, scale_bytes)
    total = sum(one.size for one in segments)
    figures = figures_of(segments)
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
        tuple(bins_of(segments, scale)),
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
        _counting_text(counting),
    )


def _counting_text(counting: Progress | None) -> str:
    if counting is None or not counting.total or counting.done < 0.01 * counting.total:
        return "" if counting is None else "being counted"
    return f"being counted: {100 * counting.done // counting.total} %"


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
        return f"This partition refuses writes: {log.write_failure}"
    if status is None or status.trouble is None:
        return None
    return f"{'Not cleaned' if status.uncleanable_reason is not None else 'In quarantine'}: {status.trouble}"


def _ticks(log: Log, segments: Sequence[ShownSegment], scale_bytes: int) -> Iterator[Tick]:
    """Yield ticks at equal distances along the whole width."""
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


def _marks(log: Log, segments: Sequence[ShownSegment], scale: float, first_dirty: int) -> Iterator[tuple[str, float]]:
    if segments and log.log_start_offset > segments[0].base_offset:
        yield "start", _place(log, segments, scale, log.log_start_offset)
    if log.config.is_compacted and first_dirty > log.log_start_offset:
        yield "dirty", _place(log, segments, scale, first_dirty)
    if log.last_stable_offset < log.log_end_offset:
        yield "stable", _place(log, segments, scale, log.last_stable_offset)


def _place(log: Log, segments: Sequence[ShownSegment], scale: float, offset: int) -> float:
    """Return the x of an offset, assuming records of equal size within a segment."""
    x = 0.0
    for number_, one in enumerate(segments):
        end = segments[number_ + 1].base_offset if number_ + 1 < len(segments) else log.log_end_offset
        if offset < end:
            share = max(0.0, (offset - one.base_offset) / max(1, end - one.base_offset))
            return round((x + one.size * share) * scale, 2)
        x += one.size
    return round(x * scale, 2)
