"""The bins of a strip: one segment each, or several neighbours, divided by the kinds of their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diamant.broker.http.page.strips.segments import ShownSegment
from diamant.broker.operations.figures.strips import LABELS, UNKNOWN, pieces, shares, sums
from diamant.cleaner.rules.record_kinds import counted
from diamant.words import number, size

HEIGHT = 60
MAX_BINS = 240
"""The most bins of a strip. In a log with more segments, neighbours share one."""


class Bin(NamedTuple):
    """One bin: a segment, or several neighbours."""

    x: float
    width: float
    bands: tuple[tuple[str, float, float], ...]
    """Kind, y, height."""
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
