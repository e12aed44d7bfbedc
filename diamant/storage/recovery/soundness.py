"""Quick checks of segments and indexes at a start, which read only their ends."""

from __future__ import annotations

from diamant.protocol.batches.header import MAX_OFFSET
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import Segment, scan_at_entry


def sound_end(segment: Segment) -> int | None:
    """Return the offset after the last batch, from which appends can continue; None if something is damaged.

    A sound segment contains the positions of both indexes' last entries, and only whole batches from there to its end, of which
    the last one reaches furthest.
    """
    offset, position = segment.offset_index.last_entry
    timed_offset = segment.time_index.last_entry[1]
    try:
        if position and scan_at_entry(segment.file, segment.size, offset, position) is None:
            return None
        end, next_offset, highest = 0, segment.base_offset, segment.base_offset
        for at, header in segment.scan_from(offset):
            end, next_offset = at + header.size, header.next_offset
            highest = max(highest, next_offset)
    except CorruptLog:
        return None
    if next_offset < highest or highest > MAX_OFFSET:
        return None
    has_entries = position or not timed_offset == offset == segment.base_offset
    return None if end < segment.size or (has_entries and max(offset, timed_offset) >= next_offset) else next_offset


def is_time_index_whole(segment: Segment) -> bool:
    """True if the time index has the largest timestamp, as that of a closed segment must, and the offset of its batch.

    Reads the end of the segment, and that batch's header. A loss of power may leave zeros in the place of the offset.
    """
    timestamp, offset = segment.time_index.last_entry
    try:
        if timestamp >= 0 and ((found := segment.locate(offset)) is None or found[1].max_timestamp != timestamp):
            return False
        scan = segment.scan_from(segment.offset_index.last_offset)
        return all(header.max_timestamp <= segment.max_timestamp for _, header in scan)
    except CorruptLog:
        return True  # the segment is not readable, so its index does not matter
