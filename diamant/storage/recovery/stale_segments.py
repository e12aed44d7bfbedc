"""Detection of stale segments: segments that a cleaning round had replaced, beside their replacement.

A broker's own directory never holds any, thanks to `segment_swap`; copies made while a broker ran may. A copying program lists a
directory once and copies its files one after the other. It may copy an old segment before a round, and after it the new segment
that covers the old offsets as well. The old one then hides records: a lookup uses the last segment that begins at or below an
offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from diamant.storage.errors import CorruptLog
from diamant.storage.recovery.segment_recovery import checked_batches
from diamant.storage.segments.segment import Segment, floor_position, scan_headers

MIN_BATCHES = 2
"""Minimum number of the new segment's batches within the old one's offsets. A single batch may only have a damaged base
offset, which no checksum covers."""


class Stale(NamedTuple):
    """A stale segment, and the segment that it was cleaned into."""

    segment: Segment
    cleaned_into: Segment


def find_stale(segments: Sequence[Segment]) -> list[Stale]:
    """Return the segments that an earlier segment certainly covers.

    This is certain if the earlier segment is whole, and each of its batches in the covered range also exists in the covered
    segments (a cleaned batch keeps its last offset and producer). An old segment may extend beyond the new one's end if the
    round removed its last records; the last segment is then kept, since the log would end earlier without it. Empty segments,
    such as end marks of `segment_swap`, are stale too. Reads the end of each segment and all of the overlapping ones; changes
    nothing. Memory: the ends.
    """
    all_ends = [_end(segment) for segment in segments]
    empty = {
        index: segments[index - 1]
        for index in range(1, len(segments) - 1)
        if not segments[index].size and all_ends[index - 1] > segments[index].base_offset
    }
    stale_segments = [Stale(segments[index], before) for index, before in empty.items()]
    segments = [segment for index, segment in enumerate(segments) if index not in empty]
    ends = [end for index, end in enumerate(all_ends) if index not in empty]
    index = 0
    while index < len(segments):
        following = index + 1
        while following < len(segments) and segments[following].base_offset < ends[index]:
            if ends[following] > ends[index] and following + 1 == len(segments):
                break
            following += 1
        covered = segments[index + 1 : following]
        if covered and _is_newer(segments[index], covered, ends[index + 1 : following]):
            stale_segments += [Stale(segment, segments[index]) for segment in covered]
            index = following
        else:
            index += 1
    return stale_segments


def _end(segment: Segment) -> int:
    try:
        return segment.next_offset()
    except CorruptLog:
        return segment.base_offset  # it covers nothing; recovery handles it
    finally:
        segment.close()  # a log may have more segments than the process has descriptors


def _is_newer(newer: Segment, older: Sequence[Segment], ends: Sequence[int]) -> bool:
    first = older[0].base_offset
    try:
        batches = sum(header.last_offset >= first for _, header, _ in checked_batches(newer))
        return batches >= MIN_BATCHES and all(
            _has_all_batches_of(newer, segment, end) for segment, end in zip(older, ends, strict=True)
        )
    except CorruptLog:
        return False


def _has_all_batches_of(newer: Segment, older: Segment, end: int) -> bool:
    """True if `older` contains all batches of `newer` from the start of `older` up to offset `end`."""
    theirs = chain((header for _, header in scan_headers(older.file, 0, older.size)), (None,))
    own = next(theirs)
    for _, header in scan_headers(newer.file, floor_position(newer, older.base_offset), newer.size):
        if header.last_offset < older.base_offset:
            continue
        if header.last_offset >= end:
            break
        while own is not None and own.last_offset < header.last_offset:
            own = next(theirs)
        if own is None or (own.last_offset, own.producer_id, own.producer_epoch) != (
            header.last_offset,
            header.producer_id,
            header.producer_epoch,
        ):
            return False
    return True
