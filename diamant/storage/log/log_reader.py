"""Finds ranges of whole batches in the segments of a log.

A lookup parses headers only. A read that starts where a recent read ended, as with a steady consumer, needs no index or scan.

Source: LogSegment.read, LocalLog.read and collectAbortedTransactions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from diamant.protocol.batches.header import LOG_OVERHEAD
from diamant.storage.log.log_segments import LogSegments
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.txn_index import AbortedTxn

MAX_READ_POSITIONS = 32
"""Number of recent reads whose end position is kept."""


class BatchRange(NamedTuple):
    """Whole batches at bytes `start` to `end` of a segment; `next_offset` is the first offset after them."""

    segment: Segment
    start: int
    end: int
    next_offset: int


class LogReader:
    """Finds the batches for a fetch. Only the log's owner may use it."""

    def __init__(self, segments: LogSegments, damaged: Callable[[Segment], None]) -> None:
        """`damaged` is called with each closed segment whose damaged offset index makes reads slow."""
        self._segments = segments
        self._damaged = damaged
        self._positions: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    def find(
        self, offset: int, limit: int, log_end_offset: int, max_bytes: int, *, min_one_message: bool
    ) -> BatchRange | None:
        """Return the batches from the one that contains `offset` up to offset `limit`; None if there are none.

        They are in one segment and have at most `max_bytes`; if `min_one_message`, the first batch may be larger (KIP-74).
        """
        located = self._locate(offset)
        if located is None:
            return None
        segment, start, first_size = located
        end, next_offset = self._limit_position(segment, limit, log_end_offset)
        if end - start > max_bytes:
            end, next_offset = segment.last_batch_before(start, start + max_bytes)
            if next_offset < 0:
                if not min_one_message:
                    return None
                end, next_offset = segment.last_batch_before(start, start + _batch_size(segment, start, first_size))
        if end <= start:
            return None
        positions = self._positions
        positions[next_offset] = (segment, end)
        positions.move_to_end(next_offset)
        if len(positions) > MAX_READ_POSITIONS:
            positions.popitem(last=False)
        return BatchRange(segment, start, end, next_offset)

    def _locate(self, offset: int) -> tuple[Segment, int, int] | None:
        """Return segment, position and size (0 if not known yet) of the first batch with last offset >= `offset`."""
        known = self._positions.get(offset)
        if known is not None and known[1] < known[0].size:
            return known[0], known[1], 0
        for segment in self._segments.since(offset):
            located = segment.locate(offset)
            if segment.is_index_damaged and segment is not self._segments.items[-1]:
                self._damaged(segment)
            if located is not None:
                return segment, located[0], located[1].size
        return None

    def _limit_position(self, segment: Segment, limit: int, log_end_offset: int) -> tuple[int, int]:
        """Return where a read up to offset `limit` ends in `segment`: the byte position and the next offset."""
        is_active = segment is self._segments.items[-1]
        following = log_end_offset if is_active else self._segments.following_base(segment)
        if limit >= following:
            return segment.size, following
        located = segment.locate(limit)
        return (located[0], limit) if located is not None else (segment.size, limit)

    def aborted(self, offset: int, records: BatchRange) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap a range read from `offset`."""
        aborted: list[AbortedTxn] = []
        for candidate in self._segments.since(records.segment.base_offset):
            some, is_complete = candidate.txn_index.collect(offset, records.next_offset)
            aborted.extend(some)
            if is_complete:
                break
        aborted.sort(key=lambda txn: txn.first_offset)
        return aborted

    def forget(self) -> None:
        """Forget the ends of all reads. Call this when the log was truncated."""
        self._positions.clear()

    def forget_deleted(self) -> None:
        """Forget the ends of reads in deleted segments."""
        stale = [offset for offset, (segment, _) in self._positions.items() if segment.is_deleted]
        for offset in stale:
            del self._positions[offset]


def _batch_size(segment: Segment, start: int, size: int) -> int:
    if size:
        return size
    prefix = segment.file.pread(LOG_OVERHEAD, start)
    return int.from_bytes(prefix[8:12], "big") + LOG_OVERHEAD
