"""Strips of segments in the terminal, as the page draws them: segment widths by size, divided by kinds of records.

Each kind has a colour in a terminal and its own character elsewhere: a letter if the encoding has no block characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.client.admin import AdminError
from diamant.broker.commands.terminal.files import size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from diamant.broker.commands.terminal.remote import Asked

MAX_WIDTH = 100
MAX_STRIPS = 12
KINDS = (
    ("live", "live", "█", "L", "blue"),
    ("tombstones", "tombstones", "▒", "T", "magenta"),
    ("superseded", "superseded", "░", "s", "yellow"),
    ("aborted", "aborted", "×", "a", "bright_black"),
    ("undecided", "transaction open", "?", "?", "bright_yellow"),
    ("keyless", "without a key", "▓", "k", "cyan"),
    ("markers", "markers", "¦", "m", "white"),
    ("unknown", "not counted", "·", ".", "bright_black"),
)
"""Kind, label, its character, the same in ASCII, colour."""
BORDERS = ("│", "|")


class DrawnSegment(NamedTuple):
    """A segment, with the number of records of each kind. None: not counted."""

    size: int
    counts: Mapping[str, int] | None


class DrawnPartition(NamedTuple):
    """A partition; `label` is printed before its strip."""

    label: str
    segments: Sequence[DrawnSegment]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(one.size for one in self.segments)


def segments_of(asked: Asked, topic: str, partition: int | None) -> Mapping[str, Any] | None:
    """Return the counts of a topic's segments; None if they are not printed, or the broker cannot give them."""
    if asked.as_json:
        return None
    fields = {"topic": topic, "partition": partition}
    try:
        return asked.admin.call("POST", "/v1/segments", fields, timeout=asked.timeout_s)
    except AdminError:
        return None  # the next call reports the error


def of_fields(found: Mapping[str, Any]) -> list[DrawnPartition]:
    """Return the partitions in a response of POST /v1/segments."""
    return [
        DrawnPartition(
            str(one["partition"]), [DrawnSegment(segment["bytes"], segment["counts"]) for segment in one["segments"]]
        )
        for one in found["partitions"]
    ]


def console() -> Console:
    """Return a console as wide as the terminal. Without a terminal, lines may have any length."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


def draw(console: Console, partitions: Sequence[DrawnPartition], scale: int | None = None) -> None:
    """Print the largest partitions to one scale (`scale`: bytes per full width), and a legend."""
    shown = [one for one in partitions if one.size]
    kept = set(sorted(range(len(shown)), key=lambda at: -shown[at].size)[:MAX_STRIPS])
    left, shown = len(shown) - len(kept), [one for at, one in enumerate(shown) if at in kept]
    if not shown:
        return
    is_ascii = "utf" not in console.encoding.lower()
    names = max(len(one.label) for one in shown)
    sizes = max(len(size_text(one.size)) for one in shown)
    width = max(10, min(MAX_WIDTH, console.width - names - sizes - 4))
    scale = max([scale or 0, *(one.size for one in shown)])
    used: set[str] = set()
    for one in shown:
        line = _line(one, max(1, round(width * one.size / scale)), is_ascii, used)
        line.pad_right(width - line.cell_len)
        console.print(f"{one.label:<{names}}  ", line, f"  {size_text(one.size):>{sizes}}", sep="", soft_wrap=True)
    console.print(_legend(is_ascii, used))
    if left:
        console.print(f"and {left:,} smaller partitions")


def _line(partition: DrawnPartition, width: int, is_ascii: bool, used: set[str]) -> Text:
    from rich.text import Text

    line = Text()
    pieces = list(_pieces(partition.segments, width))
    # Each piece ends with a border if there is room.
    has_borders = 1 < len(pieces) <= width // 4
    for place, (columns, sums) in enumerate(pieces):
        is_last = place == len(pieces) - 1
        for kind, count in _shares(sums, columns - (has_borders and not is_last)):
            _, _, block, letter, color = next(row for row in KINDS if row[0] == kind)
            line.append((letter if is_ascii else block) * count, style=color)
            used.add(kind)
        if has_borders and not is_last:
            line.append(BORDERS[is_ascii], style="default")
    return line


def _pieces(segments: Sequence[DrawnSegment], width: int) -> Iterator[tuple[int, Mapping[str, int]]]:
    """Yield columns with the counts of the segments that share them."""
    total = max(1, sum(one.size for one in segments))
    done = begun = 0
    sums: dict[str, int] = {}
    for one in segments:
        if not one.size:
            continue
        for kind, count in ({"unknown": 1} if one.counts is None else one.counts).items():
            sums[kind] = sums.get(kind, 0) + count
        done += one.size
        columns = round(width * done / total) - begun
        if columns:
            yield columns, sums
            begun, sums = begun + columns, {}


def _shares(sums: Mapping[str, int], columns: int) -> Iterator[tuple[str, int]]:
    """Divide columns among kinds by their counts. Each kind present gets at least one, if there is room."""
    kinds = [kind for kind, *_ in KINDS if sums.get(kind)]
    if "unknown" in kinds or not kinds:
        yield "unknown", columns
        return
    total = sum(sums[kind] for kind in kinds)
    exact = {kind: columns * sums[kind] / total for kind in kinds}
    shares = {kind: max(1, int(exact[kind])) if columns >= len(kinds) else int(exact[kind]) for kind in kinds}
    while (left := columns - sum(shares.values())) != 0:
        step = 1 if left > 0 else -1
        least = [kind for kind in kinds if step > 0 or shares[kind] > 1]
        chosen = max(least, key=lambda kind: step * (exact[kind] - shares[kind]))
        shares[chosen] += step
    yield from ((kind, count) for kind, count in shares.items() if count)


def _legend(is_ascii: bool, used: set[str]) -> Text:
    from rich.text import Text

    legend = Text()
    for kind, label, block, letter, color in KINDS:
        if kind in used:
            legend.append("  " if legend else "")
            legend.append(letter if is_ascii else block, style=color)
            legend.append(f" {label}")
    return legend
