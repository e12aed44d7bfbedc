"""One segment of a partition: a `.log` file of record batches and its three indexes.

A segment covers the offsets from its base offset up to the next segment's base. The base offset is only a lower bound: after
compaction the first batch may start later. The `.log` file is opened at first use, so thousands of idle partitions hold no file
descriptors.

Source: Kafka's LogSegment and FileRecords.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import NamedTuple

from diamant.protocol.batches.batch import crc_is_valid, iter_headers
from diamant.protocol.batches.header import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.env.env import Buffer, Env, File, ReadableFile, latest_write_ms
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.segment_outline import SegmentOutline
from diamant.storage.segments.time_index import TimeIndex
from diamant.storage.segments.txn_index import TransactionIndex

logger = logging.getLogger(__name__)

MISFIT = (
    "%s is damaged: its entry for offset %d has position %d, but that batch is not there. Such entries are ignored; to have the "
    "file rebuilt, remove it while the broker is stopped"
)

NO_TIMESTAMP = -1
MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_SEGMENT_BYTES = 2**31 - 1
# Read size of a header scan: more than an index interval, so that a lookup usually needs one read.
SCAN_WINDOW_BYTES = 8 * 1024
MAGIC_END = 17


class FileSlice(NamedTuple):
    """A range of a `.log` file. Its bytes do not change; the slice keeps the file open."""

    file: File
    position: int
    size: int

    def read(self) -> bytes:
        """Return the bytes of the range. Blocks on the disk if they are not in the page cache."""
        return self.file.pread(self.size, self.position)


def scan_headers(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch between two byte positions, without reading record data.

    Stops silently at a torn tail, as Kafka's file iterator does. Raises CorruptLog where bytes cannot be a batch.
    """
    window = b""
    window_start = position
    while position < end - MAGIC_END:
        at = position - window_start
        if at + HEADER_SIZE > len(window):
            window = file.pread(min(SCAN_WINDOW_BYTES, end - position), position)
            window_start, at = position, 0
            if len(window) <= MAGIC_END:
                return
        if window[at + 16] != 2:
            header, size = _legacy_header(file, position, end, window[at : at + MAGIC_END])
            if header is None:
                return
        elif len(window) - at < HEADER_SIZE:
            return
        else:
            try:
                header = parse_header(window, at)
            except CorruptBatch as error:
                raise CorruptLog(file.path, position, error.reason) from error
            size = header.batch_length + LOG_OVERHEAD
            if position + size > end:
                return
        yield position, header
        position += size


def _legacy_header(file: ReadableFile, position: int, end: int, prefix: bytes) -> tuple[BatchHeader | None, int]:
    size = int.from_bytes(prefix[8:12], "big", signed=True) + LOG_OVERHEAD
    if size - LOG_OVERHEAD < 14:
        raise CorruptLog(file.path, position, f"entry length {size - LOG_OVERHEAD} is below the minimum of 14")
    if position + size > end:
        return None, size
    try:
        for _, header in iter_headers(file.pread(size, position)):
            return header, size
    except CorruptBatch as error:
        raise CorruptLog(file.path, position, error.reason) from error
    return None, size


def scan_at_entry(file: ReadableFile, end: int, offset: int, position: int) -> Iterator[tuple[int, BatchHeader]] | None:
    """Return a scan from the position of an offset index entry; None if the entry is wrong.

    An entry is right if a batch with a base offset at or below `offset` begins at its position. The check is cheap, since the
    scan reads that header anyway. Kafka does not check; if an entry is wrong, it reads garbage or skips records.
    """
    if position <= 0:
        return scan_headers(file, 0, end) if not position else None
    headers = scan_headers(file, position, end)
    try:
        first = next(headers, None)
    except CorruptLog:
        return None
    if first is None or not _fits(file, offset, *first):
        return None
    return chain((first,), headers)


def _fits(file: ReadableFile, offset: int, position: int, header: BatchHeader) -> bool:
    if header.last_offset == offset:
        return True
    # Older versions of Kafka write one entry for several batches: position of the first batch, last offset of the last batch.
    return header.base_offset <= offset and crc_is_valid(file.pread(header.size, position), 0, header.size)


def scan_from_offset(
    file: File, end: int, index: OffsetIndex, offset: int, *, tell: Callable[[int, int], object] = lambda *_: None
) -> Iterator[tuple[int, BatchHeader]]:
    """Return a scan from a batch that the index locates near `offset`; all earlier batches have lower offsets.

    If the entry is wrong, a lower one or the start of the file is used, and `tell` is called with the wrong entry's offset and
    position when the scan reaches that offset. If the scan never does, the `.log` file is damaged, not the index.
    """
    entry = index.lookup(offset)
    scan = scan_at_entry(file, end, *entry)
    return _scan_below(file, end, index, entry, tell) if scan is None else scan


def _scan_below(
    file: File, end: int, index: OffsetIndex, misfit: tuple[int, int], tell: Callable[[int, int], object]
) -> Iterator[tuple[int, BatchHeader]]:
    offset, distance = misfit[0], 1
    scan = None
    while scan is None:
        # All entries may be wrong: double the distance, at most 32 times.
        offset, position = index.lookup(offset - distance)
        scan = scan_at_entry(file, end, offset, position)
        distance *= 2
    is_told = False
    for at, header in scan:
        if not is_told and header.last_offset >= misfit[0]:
            is_told = True
            tell(*misfit)
        yield at, header


def offset_entries(
    file: File, end: int, base_offset: int, interval_bytes: int, max_entries: int, is_wanted: Callable[[], bool]
) -> tuple[array[int], array[int]]:
    """Compute a segment's offset index entries (relative offsets and positions) from its `.log` file. Any thread may call it.

    Stops early if `is_wanted` returns False. Raises CorruptLog if framing or offsets show that the `.log` file is damaged, since
    entries computed from it would locate fewer records than an existing index file.
    """
    offsets, positions = array("i"), array("i")
    last_indexed = scanned = 0
    last_offset = base_offset - 1
    for position, header in scan_headers(file, 0, end):
        if not last_offset < header.last_offset <= base_offset + MAX_RELATIVE_OFFSET:
            raise CorruptLog(
                file.path, position, f"last offset {header.last_offset} after {last_offset} is out of order"
            )
        last_offset, scanned = header.last_offset, position + header.size
        if position - last_indexed > interval_bytes and len(offsets) < max_entries:
            if not is_wanted():
                return offsets, positions
            offsets.append(last_offset - base_offset)
            positions.append(position)
            last_indexed = position
    if scanned < end:
        raise CorruptLog(file.path, scanned, f"{end - scanned} bytes at the end are not a whole batch")
    return offsets, positions


class Segment:
    """A `.log` file with its indexes; owned by the loop thread. Another thread may sync its files."""

    __slots__ = (
        "_env",
        "_file",
        "_first_timestamp",
        "_is_misfit_told",
        "_last_append_ms",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "directory",
        "file_id",
        "first_append_ms",
        "is_deleted",
        "is_index_damaged",
        "jitter_ms",
        "max_timestamp",
        "offset_index",
        "offset_of_max_timestamp",
        "path",
        "size",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        env: Env,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        jitter_ms: int = 0,
        create: bool = False,
        suffix: str = "",
        outline: SegmentOutline | None = None,
    ) -> None:
        """Open the segment of `directory` at `base_offset`, or `create` it. With `outline`, does not examine its files."""
        self._env = env
        self.directory = directory
        self.base_offset = base_offset
        paths = names.segment_paths(directory, base_offset, suffix)
        self.path = paths.log
        self._file: File | None = None
        self.file_id: tuple[int, int] | None = None
        """Device and inode of the `.log` file when last opened, even if the name has changed since; None if never opened."""
        if create:
            self._file = env.open(self.path, create=True)
            self.file_id, self.size = self._file.identity, self._file.size()
        else:
            self.size = env.file_size(self.path) if outline is None else outline.size
        max_bytes = config.segment_index_bytes
        self.offset_index = OffsetIndex(env, paths.offset_index, base_offset, max_bytes)
        self.time_index = TimeIndex(env, paths.time_index, base_offset, max_bytes)
        self.txn_index = TransactionIndex(env, paths.txn_index, base_offset)
        if outline is not None:
            self.offset_index.file.take_outline(outline.offset_index)
            self.time_index.file.take_outline(outline.time_index)
        self.bytes_since_index_entry = 0
        self.created_ms = env.clock.now_ms()
        self.jitter_ms = jitter_ms
        self._first_timestamp: int | None = None
        self._is_misfit_told = False
        self.is_index_damaged = False
        """True if a read found a wrong entry in the offset index, and the index is not repaired yet."""
        self.first_append_ms: int | None = None
        """Wall-clock time of the first append in ms; None if another process made it and the last stop did not note the time."""
        self._last_append_ms: int | None = None
        self.is_deleted = False
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        if self.size:
            self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last_entry

    @property
    def file(self) -> File:
        """The `.log` file, opened on first use."""
        file = self._file  # read it once, since another thread may release it
        if file is None:
            file = self._env.open(self.path)
            self.file_id = file.identity
            self._file = file
        return file

    @property
    def first_timestamp(self) -> int:
        """Maximum timestamp of the first batch, from which the age for rolling is counted; -1 if there is none."""
        if self._first_timestamp is None:
            self._first_timestamp = _first_of(self.file, self.size)
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    @property
    def knows_first_timestamp(self) -> bool:
        """True if `first_timestamp` is known without reading the file."""
        return self._first_timestamp is not None or not self.size

    def load_first_timestamp(self) -> None:
        """Read `first_timestamp` from the file, unless it is known. Callable from any thread, even beside appends."""
        if self.knows_first_timestamp:
            return
        # Use a separate descriptor, since the owner may be opening the other one.
        with closing(self._env.open(self.path, read_only=True)) as file:
            first = _first_of(file, self.size)
        if self._first_timestamp is None:  # else the owner has emptied the segment and appended since
            self._first_timestamp = first

    def pass_over_first_timestamp(self) -> None:
        """Unless the first timestamp is known, record that there is none, because it cannot be read."""
        if self._first_timestamp is None:
            self._first_timestamp = NO_TIMESTAMP

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp in ms, or the file's modification time if no record has one (LogSegment)."""
        return self.max_timestamp if self.max_timestamp >= 0 else self._env.mtime_ms(self.path)

    @property
    def last_append_ms(self) -> int:
        """Wall-clock time of the last append in ms; if another process made it, the file's write time, which is no earlier."""
        known = self._last_append_ms
        return latest_write_ms(self._env, self.path) if known is None else known

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int, now_ms: int, interval_bytes: int) -> None:
        """Append and index a batch. If this raises OSError, the segment is unchanged, but its file may be longer."""
        position = self.size
        file = self._file if self._file is not None else self.file
        is_index_due = self.bytes_since_index_entry > interval_bytes
        if is_index_due:
            # Nothing may fail after the write below, or a refused batch would stay in the log forever.
            self.offset_index.file.load()
            self.time_index.file.load()
        file.append(batch)
        if not position:
            self._first_timestamp = max_timestamp
            self.first_append_ms = now_ms
        self._last_append_ms = now_ms
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        size = len(batch)
        self.size = position + size
        if is_index_due:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += size

    def should_roll(self, size: int, last_offset: int, max_timestamp: int, config: LogConfig, now_ms: int) -> bool:
        """Return whether an append of `size` bytes up to `last_offset` needs a new segment (LogSegment.shouldRoll)."""
        if not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        if self.size > config.segment_bytes - size:
            return True
        first = self._first_timestamp if self._first_timestamp is not None else self.first_timestamp
        waited_ms = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        if waited_ms > config.max_segment_ms - self.jitter_ms:
            return True
        return self.offset_index.is_full or self.time_index.is_full

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch with last offset >= `offset`; None if there is none."""
        return next((batch for batch in self.scan_from(offset) if batch[1].last_offset >= offset), None)

    def scan_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of batches, beginning at or before the one with `offset`. Logs wrong index entries."""
        return scan_from_offset(self.file, self.size, self.offset_index, offset, tell=self._log_misfit)

    def _log_misfit(self, offset: int, position: int) -> None:
        self.is_index_damaged = True
        if not self._is_misfit_told:
            self._is_misfit_told = True
            logger.warning(MISFIT, self.offset_index.file.path, offset, position)

    def last_batch_before(self, start: int, end: int) -> tuple[int, int]:
        """Return the end position and next offset of the last whole batch that ends at or before byte `end`.

        The scan begins at `start`, where a batch begins, or at a later indexed batch near `end`. (start, -1) if none fits.
        """
        offset, indexed = self.offset_index.lookup_position(end)
        if indexed > start and (near := scan_at_entry(self.file, self.size, offset, indexed)) is not None:
            batch = _last_before(near, end)
            if batch is not None:
                return batch
        return _last_before(scan_headers(self.file, start, self.size), end) or (start, -1)

    def next_offset(self) -> int:
        """Return the offset after the last whole batch. Checks framing only; recovery checks CRCs."""
        return self.whole_end()[0]

    def whole_end(self) -> tuple[int, int]:
        """Return the offset and position after the last whole batch."""
        next_offset, position = self.base_offset, 0
        if self.size:
            for at, header in self.scan_from(self.offset_index.last_offset):
                next_offset, position = header.next_offset, at + header.size
        return next_offset, position

    def on_inactive(self, *, is_synced: bool = False) -> None:
        """Add the last time index entry of a segment that is no longer active, and write out its indexes.

        With `is_synced` each index is synced before the next one is written; the offset index, whose absence makes the next
        start rebuild all three, comes last.
        """
        if self.size:
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp, skip_full_check=True)
        for index in (self.time_index.file, self.txn_index, self.offset_index.file):
            if is_synced:
                index.sync()
            index.trim_to_valid_size()

    def flush_indexes(self) -> None:
        """Write buffered index entries to their files; does not sync."""
        self.offset_index.file.flush()
        self.time_index.file.flush()

    def sync(self) -> bool:
        """Fsync all files of the segment; may run in another thread, even during appends and the segment's removal.

        Returns False if the segment is being removed and need not be durable.
        """
        is_synced = False
        if self.is_deleted:
            return is_synced
        try:
            self.file.sync()
            self.offset_index.file.sync()
            self.time_index.file.sync()
            self.txn_index.sync()
            is_synced = True
        except FileNotFoundError:
            if not self.is_deleted:
                raise
        return is_synced

    def truncate_bytes(self, size: int) -> None:
        """Cut the `.log` file to `size` bytes; the caller updates the indexes."""
        self.file.truncate(size)
        self.size = size
        if not size:
            self.created_ms = self._env.clock.now_ms()
            self._first_timestamp = None
            self.first_append_ms = self._last_append_ms = None

    def reset_indexes(self, *, is_synced: bool = False) -> None:
        """Empty all indexes, so that they can be rebuilt from the `.log` file. `is_synced`: as in `on_inactive`.

        The offset index is removed first and written last: the next start rebuilds all three if it is missing.
        """
        self.offset_index.file.discard()
        if is_synced:
            self._env.sync_dir(self.directory)
        self.time_index.file.truncate(0)  # a damaged index may have entries anywhere
        self.txn_index.reset()
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.bytes_since_index_entry = 0
        self.is_index_damaged = self._is_misfit_told = False

    def see_timestamp(self, header: BatchHeader) -> None:
        """Update the largest timestamp from a stored batch."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.offset_of_max_timestamp = header.last_offset

    def file_paths(self) -> list[str]:
        """Return the paths of the segment's files, some of which may not exist."""
        return [self.path, self.offset_index.file.path, self.time_index.file.path, self.txn_index.path]

    def change_suffix(self, suffix: str, *, missing_ok: bool = False) -> None:
        """Rename the files to their names in use plus `suffix` (`names.SWAP_SUFFIX` and so on, or nothing).

        Like Kafka (LogSegment.changeFileSuffixes), renames the `.log` file first; recovery relies on it. With `missing_ok` the
        `.log` file need not exist.
        """
        paths = names.segment_paths(self.directory, self.base_offset, suffix)
        try:
            self._env.rename(self.path, paths.log)
        except FileNotFoundError:
            if not missing_ok:
                raise
        self.path = paths.log
        self.offset_index.file.rename(paths.offset_index)
        self.time_index.file.rename(paths.time_index)
        self.txn_index.rename(paths.txn_index)

    def release_file(self) -> None:
        """Drop the open `.log` file; the next use reopens it, and current readers keep it."""
        self._file = None

    def close(self) -> None:
        """Write buffered entries and release the files; does not sync."""
        for index in (self.offset_index.file, self.time_index.file, self.txn_index):
            index.trim_to_valid_size()
        if self._file is not None:
            self._file.close()
            self._file = None


def floor_position(segment: Segment, offset: int) -> int:
    """Return the position of a batch that the index locates near `offset`; all earlier batches have lower offsets."""
    return next((at for at, _ in segment.scan_from(offset)), 0)


def _first_of(file: File, end: int) -> int | None:
    """Return the largest timestamp of the first batch; None if there is none."""
    return next((header.max_timestamp for _, header in scan_headers(file, 0, end)), None)


def _last_before(headers: Iterator[tuple[int, BatchHeader]], end: int) -> tuple[int, int] | None:
    """Return the end position and next offset of the last scanned batch that ends at or before byte `end`."""
    last = None
    for at, header in headers:
        batch_end = at + header.size
        if batch_end > end:
            break
        last = batch_end, header.next_offset
    return last
