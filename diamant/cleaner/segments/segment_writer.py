"""Writes the files of one output segment: `<base>.log.cleaned`, `.index.cleaned`, `.timeindex.cleaned`, `.txnindex.cleaned`.

The index entries equal Kafka's. They depend only on the batches, not on how the batches were read. Before a batch that begins
more than `index.interval.bytes` after the last entry, an offset entry and a time entry are added; the last entry is a time entry.
An entry's offset is the last offset in the batch's header; its position is the start of the batch.
Source: Kafka's LogSegment.append, as called by Cleaner.cleanInto.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from diamant.cleaner.rules.plan import (
    INDEX_ENTRY_BYTES,
    MAX_RELATIVE_OFFSET,
    MAX_SEGMENT_BYTES,
    TIME_INDEX_ENTRY_BYTES,
)
from diamant.cleaner.rules.result import OutputOverflow, OutputSegment
from diamant.storage import names
from diamant.storage.env.env import Buffer, Env, File
from diamant.storage.env.linux import begin_write_back
from diamant.storage.segments.txn_index import AbortedTxn

NO_TIMESTAMP = -1

WRITE_BUFFER_BYTES = 256 * 1024
"""Total size of buffered batches at which they are written."""
WRITE_BACK_BYTES = 8 * 1024 * 1024
"""After this many written bytes, write-back to the disk is started, so that little is left for the final sync."""

_INDEX_ENTRY = Struct(">ii")
_TIME_INDEX_ENTRY = Struct(">qi")


class SegmentWriter:
    """One output segment being written.

    If an index has no room for another entry, the round fails with OutputOverflow if `is_strict`, as in Kafka; otherwise the
    entry is omitted, and the index is coarser there.

    Memory: the write buffer, and at most twice `segment_index_bytes` for the indexes. The constructor removes files that an
    earlier attempt with the same base offset has left.
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        segment_index_bytes: int,
        is_strict: bool = False,
        max_bytes: int = MAX_SEGMENT_BYTES,
    ) -> None:
        self.base_offset = base_offset
        self.size = 0
        """Number of bytes appended so far."""
        self._env = env
        self._index_interval_bytes = index_interval_bytes
        self._max_entries = segment_index_bytes // INDEX_ENTRY_BYTES
        # One slot is reserved for the final entry.
        self._max_time_entries = segment_index_bytes // TIME_INDEX_ENTRY_BYTES - 1
        self._is_strict = is_strict
        self._max_bytes = max_bytes
        self._paths = names.segment_paths(directory, base_offset, names.CLEANED_SUFFIX)
        self._index = bytearray()
        self._time_index = bytearray()
        self._txn_index = bytearray()
        self._bytes_since_entry = 0
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset
        self._last_indexed_timestamp = NO_TIMESTAMP
        self._crc = 0
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._written_bytes = 0
        """Bytes written since write-back was last started."""
        self._remove_files()
        self._file: File | None = env.create_new(self._paths[0])

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Append one batch unchanged. The bytes must not change before the next `flush`."""
        self._index_batch(len(batch), last_offset, max_timestamp)
        self._write(batch)

    def add_aborted(self, aborted: AbortedTxn) -> None:
        """Add an entry to the index of aborted transactions. Call it in the order of the transactions' markers."""
        self._txn_index += aborted.to_bytes()

    def flush(self) -> None:
        """Write the buffered batches. The appended buffers may be reused afterwards."""
        if self._pending and self._file is not None:
            self._file.append(*self._pending)
            self._written_bytes += self._pending_bytes
            self._pending.clear()
            self._pending_bytes = 0
            if self._written_bytes >= WRITE_BACK_BYTES:
                begin_write_back(self._file.fileno())
                self._written_bytes = 0

    def finish(self, modified_ms: int, source_base_offsets: tuple[int, ...]) -> OutputSegment:
        """Complete the files and set their modification time. `output_sync` makes them durable."""
        self.flush()
        if self._max_timestamp > self._last_indexed_timestamp:
            self._add_time_entry()
        file, self._file = self._file, None
        if file is not None:
            file.close()
        log, index, time_index, txn_index = self._paths
        contents = [(index, self._index), (time_index, self._time_index)]
        if self._txn_index:
            contents.append((txn_index, self._txn_index))
        for path, content in contents:
            self._write_file(path, content)
        for path in (log, index, time_index):
            self._env.set_mtime_ms(path, modified_ms)
        return OutputSegment(
            base_offset=self.base_offset,
            source_base_offsets=source_base_offsets,
            size=self.size,
            modified_ms=modified_ms,
            has_txn_index=bool(self._txn_index),
            crc32c=self._crc,
        )

    def abandon(self) -> None:
        """Remove the files. Idempotent; may follow `finish`."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._remove_files()

    def _index_batch(self, size: int, last_offset: int, max_timestamp: int) -> None:
        position = self.size
        if position + size > self._max_bytes:
            raise OutputOverflow(self._paths[0], f"{position + size} bytes, at most {self._max_bytes} are possible")
        if not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            raise OutputOverflow(self._paths[0], f"offset {last_offset} is out of the segment's range of 31 bits")
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_entry > self._index_interval_bytes and self._has_room():
            self._index += _INDEX_ENTRY.pack(last_offset - self.base_offset, position)
            if self._max_timestamp > self._last_indexed_timestamp:
                self._add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.size = position + size

    def _has_room(self) -> bool:
        for path, used, limit in (
            (self._paths[1], len(self._index) // INDEX_ENTRY_BYTES, self._max_entries),
            (self._paths[2], len(self._time_index) // TIME_INDEX_ENTRY_BYTES, self._max_time_entries),
        ):
            if used >= limit:
                if self._is_strict:
                    raise OutputOverflow(path, f"the index is full with {used} entries (segment.index.bytes)")
                return False
        return True

    def _add_time_entry(self) -> None:
        self._time_index += _TIME_INDEX_ENTRY.pack(
            self._max_timestamp, self._offset_of_max_timestamp - self.base_offset
        )
        self._last_indexed_timestamp = self._max_timestamp

    def _write(self, data: Buffer) -> None:
        self._crc = crc32c(data, self._crc)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= WRITE_BUFFER_BYTES:
            self.flush()

    def _write_file(self, path: str, content: bytearray) -> None:
        file = self._env.create_new(path)
        try:
            if content:
                file.append(content)
        finally:
            file.close()

    def _remove_files(self) -> None:
        for path in self._paths:
            self._env.remove(path, missing_ok=True)
