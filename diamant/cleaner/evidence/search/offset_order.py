"""Checks that the offsets of batches are ascending, within their segment, and below the end of the log.

A batch's base offset is not covered by its checksum. A changed base offset would move records out of a claim's range without a
trace. So offsets that are out of order count as damage, like unreadable bytes, and so does a segment that overlaps the next one.
A change that keeps the order cannot be detected, and all readers accept it.

Memory: 16 bytes for each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from diamant.kernels.constants import fields
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.cleaner.evidence.search.file_census import Identity
    from diamant.cleaner.segments.row_reader import Rows

MAX_RELATIVE_OFFSET = (1 << 31) - 1
"""Maximum distance of an offset from its segment's base offset, for which indexes have 4 bytes."""


WHOLE_FILE = 1 << 62
"""A size greater than that of any file."""


def _no_segment(_: int) -> int | None:
    return None


def _has_none(_base_offset: int, _identity: Identity) -> bool:
    return False


class LogEnd(NamedTuple):
    """Where the scan of a log in use ends; recorded by the log's owner in one turn of the event loop."""

    log_end_offset: int
    active_base_offset: int
    active_size: int
    size_of: Callable[[int], int | None] = _no_segment
    """Takes a base offset; returns the current size of the log's segment there, or None if the log has no such segment, even if
    a file has its name. Callable from any thread."""
    has_file: Callable[[int, Identity], bool] = _has_none
    """Takes a base offset and a file's identity (`file_census.file_identity`). Returns whether the log's segment with this base
    offset is, or most recently was, that open file. Callable from any thread."""

    def is_before(self, base_offset: int) -> bool:
        """Tell whether the segment with this base offset was begun after this end was recorded."""
        return base_offset >= self.log_end_offset and base_offset > self.active_base_offset


@dataclass(slots=True)
class OffsetOrder:
    """The expected offsets of one segment, checked batch after batch."""

    base_offset: int
    next_offset: int
    """Lower bound for the first offset of the next batch."""
    end_offset: int | None = None
    """Exclusive upper bound for the offsets of batches that begin before `end_position`; None if unknown."""
    end_position: int = WHOLE_FILE

    def problem(self, position: int, first: int, last: int) -> str:
        """Advance to a batch; return what is wrong with its offsets, or "" if nothing is."""
        least, self.next_offset = self.next_offset, max(self.next_offset, last + 1)
        if first < least or last < first:
            return f"the batch has offsets {first} to {last}, expected {least} or more"
        if last - self.base_offset > MAX_RELATIVE_OFFSET:
            return f"the batch has offsets up to {last}, too far above the segment's {self.base_offset}"
        if self.end_offset is not None and position < self.end_position and last >= self.end_offset:
            return f"the batch has offsets up to {last}, expected less than {self.end_offset}"
        return ""

    def problems(self, chunk: Rows) -> list[tuple[int, str]]:
        """Advance over the batches of a chunk; return the position and description of each problem."""
        from diamant.kernels.batches import are_in_order

        end, last = self.end_offset, chunk.rows[fields.LAST_OFFSET, chunk.count - 1]
        is_sound = last - self.base_offset <= MAX_RELATIVE_OFFSET and (end is None or last < end)
        # Compare with `last` first: `next_offset` comes from a file name or a damaged batch, and may exceed 64 bits.
        if is_sound and self.next_offset <= last and are_in_order(chunk.rows, chunk.count, self.next_offset - 1):
            self.next_offset = last + 1
            return []
        rows = zip(*map(chunk.column, (fields.POSITION, fields.BASE_OFFSET, fields.LAST_OFFSET)), strict=True)
        positions = ((chunk.position + at, first, last) for at, first, last in rows)
        return [(row[0], reason) for row in positions if (reason := self.problem(*row))]


def order_of(name: str, end: LogEnd | None) -> OffsetOrder | None:
    """Return the expected order of offsets in a segment's file, whatever its state; None for other files.

    `end`: the end of the log if the file was in use when that end was recorded, otherwise None.
    """
    parsed = names.parse_segment_file(name.rpartition("/")[2])
    if parsed is None or parsed.suffix != names.LOG_SUFFIX:
        return None
    order = OffsetOrder(parsed.offset, parsed.offset)
    if end is not None:
        order.end_offset = end.log_end_offset
        if parsed.offset == end.active_base_offset:
            order.end_position = end.active_size
    return order


def overlapping(next_offsets: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the name of each segment in use that overlaps the next one, and a reason.

    `next_offsets`: the offset after the last batch of each segment, by the segment's name relative to the data directory.
    """
    logs: dict[str, list[tuple[int, str]]] = {}
    for name in next_offsets:
        directory, _, file = name.rpartition("/")
        parsed = names.parse_segment_file(file)
        if parsed is not None and not parsed.stage and not names.set_aside_suffix(directory):
            logs.setdefault(directory, []).append((parsed.offset, name))
    for segments in logs.values():
        segments.sort()
        for (_, name), (following, _) in pairwise(segments):
            if next_offsets[name] > following:
                yield name, f"it has offsets up to {next_offsets[name] - 1}, and the next segment begins at {following}"
