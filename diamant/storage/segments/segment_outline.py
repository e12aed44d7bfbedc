"""The outline of a closed segment: enough to open it without examining its files.

A process that writes a segment sends the outline to the process that adds the segment to a log.
"""

from __future__ import annotations

from typing import NamedTuple


class IndexOutline(NamedTuple):
    """Outline of an index file."""

    entries: int
    file_bytes: int
    """Length of the file; -1 if there is no file."""
    offset: int
    """Offset of the last entry, relative to the segment's base."""
    value: int
    """Position or timestamp of the last entry."""


class SegmentOutline(NamedTuple):
    """Outline of a segment. It excludes the entries of the transaction index, which are read when needed."""

    size: int
    """Size in bytes of the `.log` file."""
    next_offset: int
    """The offset after the last batch; the base offset if there is none."""
    has_txn_index: bool
    offset_index: IndexOutline
    time_index: IndexOutline


def outline_from(fields: list[object]) -> SegmentOutline:
    """Build an outline from its JSON list."""
    size, next_offset, has_txn_index, offset_index, time_index = fields
    assert isinstance(size, int)
    assert isinstance(next_offset, int)
    assert isinstance(offset_index, list)
    assert isinstance(time_index, list)
    return SegmentOutline(
        size, next_offset, bool(has_txn_index), IndexOutline(*offset_index), IndexOutline(*time_index)
    )
