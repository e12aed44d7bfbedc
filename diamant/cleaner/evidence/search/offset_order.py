"""Checks the order of batches by their offsets: ascending, within their segment, below the end of the log.

A batch's base offset is in no checksum. One that was changed moves its records: out of what a claim covers, where no
one would miss them. So offsets that do not follow on one another are damage, as bytes are that cannot be read. The same
goes for a segment that reaches into the one behind it. A change that leaves everything in order cannot be told, and is
what all readers believe.

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
"""Greatest distance of a segment's offsets from its base: its indexes have 4 bytes for it."""


WHOLE_FILE = 1 << 62
"""As a size: whatever is there."""


def _no_segment(_: int) -> int | None:
    return None


def _has_none(_base_offset: int, _identity: Identity) -> bool:
    return False


class LogEnd(NamedTuple):
    """Up to where a log in use is scanned; taken by its owner in one turn."""

    log_end_offset: int
    active_base_offset: int
    active_size: int
    size_of: Callable[[int], int | None] = _no_segment
    """Returns the size of the log's segment with a base offset, at the time of asking; None: there is none. A file that
    is called like a segment need not be one. Any thread."""
    has_file: Callable[[int, Identity], bool] = _has_none
    """True if the file that the log has open, or had last, as its segment with a base offset is the one that has an
    identity (`file_census.file_identity`). Any thread."""

    def is_before(self, base_offset: int) -> bool:
        """Tell whether a segment with that base was begun after this was taken; the active one may be empty."""
        return base_offset >= self.log_end_offset and base_offset > self.active_base_offset


@dataclass(slots=True)
class OffsetOrder:
    """The offsets of one segment, batch after batch."""

    base_offset: int
    next_offset: int
    """The least that the next batch may begin with."""
    end_offset: int | None = None
    """Bound below which batches that begin before `end_position` end; None: unknown."""
    end_position: int = WHOLE_FILE

    def problem(self, position: int, first: int, last: int) -> str:
        """Go on to a batch; return what is wrong with its offsets, "" if nothing is."""
        least, self.next_offset = self.next_offset, last + 1
        if first < least or last < first:
            return f"the batch has offsets {first} to {last}, expected {least} or more"
        if last - self.base_offset > MAX_RELATIVE_OFFSET:
            return f"the batch has offsets up to {last}, too far above the segment's {self.base_offset}"
        if self.end_offset is not None and position < self.end_position and last >= self.end_offset:
            return f"the batch has offsets up to {last}, expected less than {self.end_offset}"
        return ""

    def problems(self, chunk: Rows) -> list[tuple[int, str]]:
        """Go on to the batches of a chunk at once; return positions and what is wrong there."""
        from diamant.kernels.batches import are_in_order

        end, last = self.end_offset, chunk.rows[fields.LAST_OFFSET, chunk.count - 1]
        is_sound = last - self.base_offset <= MAX_RELATIVE_OFFSET and (end is None or last < end)
        if is_sound and are_in_order(chunk.rows, chunk.count, self.next_offset):
            self.next_offset = last + 1
            return []
        rows = zip(*map(chunk.column, (fields.POSITION, fields.BASE_OFFSET, fields.LAST_OFFSET)), strict=True)
        positions = ((chunk.position + at, first, last) for at, first, last in rows)
        return [(row[0], reason) for row in positions if (reason := self.problem(*row))]


def order_of(name: str, end: LogEnd | None) -> OffsetOrder | None:
    """Return the order of a segment's file, whatever state it is in, None for what is no segment.

    `end` is that of its log if it was in use when that was taken.
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
    """Yield names of segments in use that reach into the next one, and what is wrong with them.

    `next_offsets`: by name, relative to the data directory, the offset behind the last batch of a segment that is there.
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
