"""The outline of a closed segment: enough to read it without a look at its files before.

A process that has written a segment tells it to the one that puts it into a log.
"""

from __future__ import annotations

from typing import NamedTuple


class IndexOutline(NamedTuple):
    """An index file."""

    entries: int
    file_bytes: int
    """Its length; -1 if there is no file."""
    offset: int
    """Of the last entry, relative to the segment's base."""
    value: int
    """Of the last entry: its position, or its timestamp."""


class SegmentOutline(NamedTuple):
    """A segment. The numbers of its index of aborted transactions are not among them: that file is read when it is needed."""

    size: int
    """Bytes of the `.log` file."""
    next_offset: int
    """The offset after the last batch; the base offset if there is none."""
    has_txn_index: bool
    offset_index: IndexOutline
    time_index: IndexOutline


def outline_from(fields: list[object]) -> SegmentOutline:
    """Return the outline that JSON has made a list of."""
    size, next_offset, has_txn_index, offset_index, time_index = fields
    assert isinstance(size, int)
    assert isinstance(next_offset, int)
    assert isinstance(offset_index, list)
    assert isinstance(time_index, list)
    return SegmentOutline(
        size, next_offset, bool(has_txn_index), IndexOutline(*offset_index), IndexOutline(*time_index)
    )
