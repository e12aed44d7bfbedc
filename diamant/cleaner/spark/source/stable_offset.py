"""Finds the stable offset and the aborted transactions of a log, from its files alone.

The newest producer snapshot has the transactions that were open at its offset; the headers of later batches, mostly in the last
segment, tell what has happened since. Aborted transactions are read from the transaction indexes of the segments that contain
their markers, and from the same headers. If there is no snapshot, the headers of the whole log are read. With
`trust_indexes=false`, the headers of the whole log are always read, and nothing else.

Memory: 24 bytes for each aborted transaction, about 100 for each open one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.segments.transaction_outcomes import TransactionWalk, marker_type
from diamant.cleaner.spark.environment.spark_errors import SegmentChanged
from diamant.cleaner.spark.source.partition_logs import list_again, place_of
from diamant.cleaner.spark.source.segment_indexes import ABORTED_FIELDS, read_aborted, read_offset_index
from diamant.protocol.batches.control import ControlType
from diamant.protocol.batches.header import (
    CURRENT_MAGIC,
    HEADER_SIZE_UP_TO_MAGIC,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    BatchHeader,
)
from diamant.storage import names
from diamant.storage.checkpoints.producer_snapshot import read_snapshot
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_at_entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.segments.tolerant_reader import PartitionFiles, SegmentFile
    from diamant.storage.env.env import ReadableFile

_WINDOW = 4096
"""Bytes to read at a time. Headers are far apart, so a page for each is enough. For remote files, more is read ahead."""
_ATTEMPTS = 5
"""Maximum number of attempts. An attempt fails if the directory changes while it is read."""
_MARKER_BYTES = 128
"""Upper bound of a transaction marker's size."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcomes of a log's transactions."""

    stable_offset: int | None
    """First offset of the oldest open transaction; None if none is open."""
    aborted: NDArray[np.int64]
    """int64[n, ABORTED_FIELDS], as in `segment_indexes`; a transaction may occur twice."""
    open: NDArray[np.int64]
    """int64[n, 2]: producer id and first offset of each open transaction."""


NOTHING_KNOWN = Decided(None, np.empty((0, ABORTED_FIELDS), np.int64), np.empty((0, 2), np.int64))
"""The value for a log whose transactions do not matter."""


def read_decided(
    log: PartitionFiles, *, trust_indexes: bool = True, damage: list[CorruptLog] | None = None
) -> tuple[PartitionFiles, Decided]:
    """Return a listing of a log, and the outcomes of the transactions in it. Raises OSError, CorruptLog, SegmentChanged.

    If `damage` is a list, corruption is not raised. The error of a corrupt transaction index is added to the list, and headers
    are read instead of indexes. After a corrupt header, the rest of its segment is skipped; transactions whose markers are there
    count as open.

    Indexes and segments must come from the same listing, because a cleaner replaces both: it removes the index entry of an
    aborted transaction together with its records.
    """
    for _ in range(_ATTEMPTS):
        try:
            decided = _read(log, trust_indexes, damage)
            again = list_again(log)
            if _has_segments_of(again, log):
                return log, decided
        except FileNotFoundError:
            again = list_again(log)
        log = again
    raise SegmentChanged(f"{place_of(log)} kept changing while the query was planned: run it again")


def _has_segments_of(again: PartitionFiles, log: PartitionFiles) -> bool:
    """Return whether the segments of an earlier listing are unchanged; new segments, and a longer last one, are allowed."""
    sizes = {segment.path: segment.size for segment in again.segments}
    return all(
        sizes.get(one.path, -1) >= one.size if one.is_last else sizes.get(one.path) == one.size for one in log.segments
    )


def _read(log: PartitionFiles, trust_indexes: bool, damage: list[CorruptLog] | None) -> Decided:
    walk = TransactionWalk()
    start_offset = 0
    aborted = []
    if trust_indexes:
        start_offset = _newest_snapshot(log, walk.open_since)
        for segment in log.segments:
            path = segment.index(names.TXN_INDEX_SUFFIX)
            if log.has(path):
                try:
                    aborted.append(read_aborted(place_of(log, path)))
                except CorruptLog as error:
                    if damage is None:
                        raise
                    damage.append(error)
                    return _read(log, False, damage)
    for header, control in _headers_from(log, start_offset, is_permissive=damage is not None):
        if header.base_offset >= start_offset:
            walk.add(header, control)
    scanned = [(one.producer_id, one.first_offset, one.last_offset) for one in walk.aborted]
    aborted.append(np.array(scanned, np.int64).reshape(-1, ABORTED_FIELDS))
    still_open = np.array(list(walk.open_since.items()), np.int64).reshape(-1, 2)
    return Decided(walk.first_open_offset, np.concatenate(aborted), still_open)


def _newest_snapshot(log: PartitionFiles, open_since: dict[int, int]) -> int:
    """Add the open transactions of the newest readable snapshot to `open_since`. Return its offset, or 0 if there is none."""
    for offset in reversed(log.snapshots):
        location = place_of(log).child(f"{offset:020d}{names.SNAPSHOT_SUFFIX}")
        try:
            entries = read_snapshot(location.read_bytes(), str(location))
        except (CorruptLog, FileNotFoundError):
            continue
        for entry in entries:
            if entry.current_txn_first_offset >= 0:
                open_since[entry.producer_id] = entry.current_txn_first_offset
        return offset
    return 0


def _headers_from(
    log: PartitionFiles, start_offset: int, *, is_permissive: bool
) -> Iterator[tuple[BatchHeader, ControlType | None]]:
    """Yield (header, marker type) for batches of magic 2, beginning at or before `start_offset`. The type is None for data."""
    for segment in log.segments:
        if segment.end_offset is not None and segment.end_offset <= start_offset:
            continue
        with closing(place_of(log, segment.path).open()) as file:
            size = min(segment.size, file.size())
            position = _position_before(log, segment, start_offset, file)
            try:
                yield from _headers(file, position, size, is_last=segment.is_last)
            except CorruptLog:
                if not is_permissive:
                    raise


def _position_before(log: PartitionFiles, segment: SegmentFile, offset: int, file: ReadableFile) -> int:
    """Return the start of a batch at or before the one with `offset`; 0 if the index is missing or wrong."""
    path = segment.index(names.INDEX_SUFFIX)
    if offset <= segment.base_offset or not log.has(path):
        return 0
    try:
        index = read_offset_index(place_of(log, path), segment.base_offset, segment.size, is_growing=segment.is_last)
    except (CorruptLog, FileNotFoundError):
        return 0
    at = int(np.searchsorted(index[0], offset)) - 1
    if at < 0:
        return 0
    last_offset, position = index[:, at].tolist()
    return 0 if scan_at_entry(file, file.size(), last_offset, position) is None else position


def _headers(
    file: ReadableFile, position: int, end: int, *, is_last: bool
) -> Iterator[tuple[BatchHeader, ControlType | None]]:
    buffer, start = b"", 0
    while position < end:
        at = position - start
        if at + _MARKER_BYTES > len(buffer) and start + len(buffer) < end:
            buffer, start, at = file.pread(min(_WINDOW, end - position), position), position, 0
        if len(buffer) - at < HEADER_SIZE_UP_TO_MAGIC:
            break  # This may be a torn end. If it is damage, the task that reads it reports it.
        size = int.from_bytes(buffer[at + 8 : at + 12], "big", signed=True) + LOG_OVERHEAD
        magic = buffer[at + 16]
        if size < HEADER_SIZE_UP_TO_MAGIC or magic > CURRENT_MAGIC:
            if is_last:
                break
            raise CorruptLog(file.path, position, f"expected a batch, found a length of {size} and magic {magic}")
        if position + size > end:
            break
        if magic == CURRENT_MAGIC and len(buffer) - at >= HEADER_STRUCT.size:
            header = BatchHeader._make(HEADER_STRUCT.unpack_from(buffer, at))
            control = None
            if header.is_control and at + size <= len(buffer):
                control = marker_type(buffer, at)
            yield header, control
        position += size
