"""One batch of a chunk, of any format, for code that handles batches one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import iter_payload, iter_records, records_payload
from diamant.protocol.batches.compression import MAX_BATCH_BYTES, NONE
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import CURRENT_MAGIC, HEADER_SIZE, BatchHeader, Record
from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT
from diamant.protocol.errors import CorruptBatch, OversizedRecord
from diamant.storage.env.env import Buffer
from diamant.storage.errors import CorruptLog, RecordTooLarge

_NOT_READ = -1


class ChunkBatch:
    """A batch of any magic in a chunk of batches. It may be used until the chunk's bytes are overwritten."""

    __slots__ = (
        "_at",
        "_control_type",
        "_data",
        "_max_bytes",
        "_max_record_bytes",
        "_payloads",
        "header",
        "path",
        "position",
    )

    def __init__(
        self,
        path: str,
        chunk_position: int,
        data: Buffer,
        at: int,
        header: BatchHeader,
        payloads: SmallPayloads | None = None,
        max_bytes: int = MAX_BATCH_BYTES,
        max_record_bytes: int = NO_RECORD_LIMIT,
    ) -> None:
        """`data`: the chunk's bytes, in which the batch begins at `at`. `payloads`: a fast path for decompressing small batches.

        The batch may decompress to at most `max_bytes`; each record of `records` may have at most `max_record_bytes`.
        """
        self.path = path
        self.position = chunk_position + at
        """Start of the batch in the file."""
        self.header = header
        self._data = data
        self._at = at
        self._payloads = payloads
        self._max_bytes = max_bytes
        self._max_record_bytes = max_record_bytes
        self._control_type: int | None = _NOT_READ

    def view(self) -> memoryview:
        """Return the batch's bytes, a view of the chunk."""
        return memoryview(self._data)[self._at : self._at + self.header.size]

    def check(self) -> None:
        """Verify the checksum. Raises CorruptLog."""
        if not crc_is_valid(self._data, self._at, self.header.size):
            raise self.corrupt("the batch's CRC is wrong")

    def payload(self) -> bytes:
        """Return the decompressed records of a batch of magic 2. Raises CorruptLog if its CRC or the compressed data is wrong."""
        self.check()
        try:
            return records_payload(self._data, self._at, self.header, max_bytes=self._max_bytes)
        except CorruptBatch as error:
            raise self.corrupt(error.reason) from error

    def iter_records(self) -> Iterator[Record]:
        """Yield the records; call `check` first. Raises CorruptLog, possibly after some records."""
        try:
            yield from iter_records(self._data, self._at, max_bytes=self._max_bytes)
        except CorruptBatch as error:
            raise self.corrupt(error.reason) from error

    def records(self) -> Sequence[Record]:
        """Verify the checksum and return the records. Raises RecordTooLarge, CorruptLog.

        Without this check, rebuilding a damaged batch would hide the damage behind a valid checksum.
        """
        self.check()
        try:
            if (payload := self._small_payload()) is not None:
                try:
                    return tuple(iter_payload(payload, self.header, max_record_bytes=self._max_record_bytes))
                except CorruptBatch:
                    pass  # The slow path reports the error.
            limits = {"max_bytes": self._max_bytes, "max_record_bytes": self._max_record_bytes}
            return tuple(iter_records(self._data, self._at, **limits))
        except OversizedRecord as error:
            raise RecordTooLarge(self.path, self.position, error.reason) from error
        except CorruptBatch as error:
            raise self.corrupt(error.reason) from error

    def control_type(self) -> int | None:
        """Return the type of a control batch's first record; None if it has no record. Raises CorruptLog."""
        if self._control_type == _NOT_READ:
            records = self.records()
            try:
                self._control_type = parse_control_type(records[0].key) if records else None
            except CorruptBatch as error:
                raise self.corrupt(error.reason) from error
        return self._control_type

    def _small_payload(self) -> bytes | None:
        """Return the decompressed records; None if the fast path does not apply."""
        header = self.header
        if self._payloads is None or header.magic != CURRENT_MAGIC or not header.record_count:
            return None
        packed = bytes(self._data[self._at + HEADER_SIZE : self._at + header.size])
        if packed and header.codec != NONE:
            return self._payloads.unpack(header.codec, packed) or None
        return packed or None

    def corrupt(self, reason: str) -> CorruptLog:
        """Return an error with this reason and the position of the batch."""
        return CorruptLog(self.path, self.position, reason)
