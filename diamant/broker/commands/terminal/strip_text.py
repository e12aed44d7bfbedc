"""Draws partitions as strips in a terminal, like the broker's page: segments are as wide as their share of the bytes.

Each segment is divided by the kinds of its records. A kind has its own colour, and its own block character; where the encoding
is not UTF, it has a letter instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.broker.client.admin import AdminError
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.operations.figures.strip_values import LABELS, DrawnSegment, pieces, shares
from diamant.words import size_text

if TYPE_CHECKING:
    from diamant.broker.commands.terminal.asked import Asked

MAX_WIDTH = 100
MAX_STRIPS = 12
STYLES = {
    "live": ("█", "L", "blue"),
    "tombstones": ("▒", "T", "magenta"),
    "superseded": ("░", "s", "yellow"),
    "aborted": ("×", "a", "bright_black"),
    "undecided": ("?", "?", "bright_yellow"),
    "keyless": ("▓", "k", "cyan"),
    "markers": ("¦", "m", "white"),
    "unknown": ("·", ".", "bright_black"),
}
"""For each kind, its character, its ASCII character and its colour."""
BORDERS = ("│", "|")


class DrawnPartition(NamedTuple):
    """A partition; `label` is printed before its strip."""

    label: str
    segments: Sequence[DrawnSegment]

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(one.size for one in self.segments)


def segments_of(asked: Asked, topic: str, partition: int | None) -> Mapping[str, Any] | None:
    """Return the counts of a topic's segments; None if the command prints JSON, or if the broker reports an error."""
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


def draw(console: Console, partitions: Sequence[DrawnPartition], scale: int | None = None) -> None:
    """Print the largest partitions to one scale, and a legend. `scale`: the width represents at least this many bytes."""
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
        columns = max(1, round(width * one.size / scale))
        line = _line(one, columns, is_ascii, used) + " " * (width - columns)
        label = escape(f"{one.label:<{names}}")
        console.print(f"{label}  {line}  {size_text(one.size):>{sizes}}", soft_wrap=True)
    console.print(_legend(is_ascii, used))
    if left:
        console.print(f"and {left:,} smaller partitions")


def _line(partition: DrawnPartition, width: int, is_ascii: bool, used: set[str]) -> str:
    """Return the strip of a partition as markup, and add the kinds of its records to `used`."""
    line = ""
    found = list(pieces(partition.segments, width))
    # If there is room, a border separates the pieces.
    has_borders = 1 < len(found) <= width // 4
    for place, (columns, group) in enumerate(found):
        is_last = place == len(found) - 1
        for kind, count in _columns(shares(group), columns - (has_borders and not is_last)):
            block, letter, color = STYLES[kind]
            line += f"[{color}]{(letter if is_ascii else block) * count}[/]"
            used.add(kind)
        if has_borders and not is_last:
            line += BORDERS[is_ascii]
    return line


def _columns(counts: Mapping[str, int], columns: int) -> Iterator[tuple[str, int]]:
    """Divide columns among kinds in proportion to their counts. If there is room, each kind present gets at least one column."""
    kinds, total = list(counts), sum(counts.values())
    exact = {kind: columns * counts[kind] / total for kind in kinds}
    shares = {kind: max(1, int(exact[kind])) if columns >= len(kinds) else int(exact[kind]) for kind in kinds}
    while (left := columns - sum(shares.values())) != 0:
        step = 1 if left > 0 else -1
        least = [kind for kind in kinds if step > 0 or shares[kind] > 1]
        chosen = max(least, key=lambda kind: step * (exact[kind] - shares[kind]))
        shares[chosen] += step
    yield from ((kind, count) for kind, count in shares.items() if count)


def _legend(is_ascii: bool, used: set[str]) -> str:
    return "  ".join(
        f"[{color}]{letter if is_ascii else block}[/] {LABELS[kind]}"
        for kind, (block, letter, color) in STYLES.items()
        if kind in used
    )
