"""The plain engine for rounds that somebody waits for: the bytes of `rewrite`, in a third of the time where batches are small.

A round reads what is dirty twice, once for the map and once to write it anew. Here the second time is spared: what was parsed
for the map is kept, as far as `MAX_KEPT_BYTES` and `MAX_RECORD_BYTES` go. And a *plain batch*, of one record with key and value
and nothing special about it, as clients write that wait for each answer, is read and judged in one go, without the layers that
any other batch may need. If it is compressed, it is decompressed for its key, once, and copied or left out as it is. The first
sign of anything else gives a batch to `rewrite`: errors are its errors, too.

Memory: as `rewrite`; for each kept byte of a log up to four more (a batch of one record is some 70 bytes and takes 250), and
`MAX_RECORD_BYTES` for the kept records of other batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from crc32c import crc32c

from diamant.cleaner import policy
from diamant.cleaner.result import SUPERSEDED
from diamant.cleaner.rewrite import _Batch, _Round, _varint_size
from diamant.cleaner.segment_reader import Chunk, parsed_chunks
from diamant.cleaner.small_payload import SmallPayloads
from diamant.protocol.batch import (
    ATTRIBUTES,
    CODEC_MASK,
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    HEADER_STRUCT,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    crc_is_valid,
    iter_headers,
    parse_header,
)
from diamant.protocol.compression import NONE
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.records import iter_payload
from diamant.storage import names
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.cleaner.plan import SegmentPlan
    from diamant.cleaner.segment_writer import SegmentWriter
    from diamant.cleaner.transactions import TransactionTracker
    from diamant.protocol.batch import BatchHeader
    from diamant.protocol.records import Record
    from diamant.storage.env import File

MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Of segments, whose parsed batches are kept from the first pass to the second."""
MAX_RECORD_BYTES = 16 * 1024 * 1024
"""Of records, decompressed, of batches that are not plain, that are kept as well."""
RECORD_BYTES = 300
"""What a record takes beside its key, value and headers."""

_UNPLAIN = ~(CODEC_MASK | LOG_APPEND_TIME_FLAG)
"""Attributes that no plain batch has."""
_NO_DELTAS = b"\0\0\0"
"""Attributes, timestamp delta and offset delta of a batch's only record."""

Plain: TypeAlias = "tuple[int, int, int, bytes, int, int, int]"
"""A plain batch whose CRC is right: where it begins and ends in the chunk, offset, key, max timestamp, producer id, and what its
record counts when it is removed, in bytes."""


class QuickChunk(NamedTuple):
    """Whole batches in a row."""

    path: str
    chunk: Chunk
    """The bytes; it has no headers."""
    entries: list[Plain | KeptBatch]
    size: int
    """Bytes of the whole batches."""


class KeptBatch(_Batch):
    """A batch that is not plain. What `records` returns is kept if it takes no more than `room` bytes."""

    __slots__ = ("_payloads", "_records", "kept", "room")

    def __init__(self, path: str, chunk: Chunk, at: int, header: BatchHeader, payloads: SmallPayloads) -> None:
        super().__init__(path, chunk, at, header)
        self._payloads = payloads
        self.room = 0
        self.kept = 0
        """How many bytes are kept."""
        self._records: Sequence[Record] | None = None

    def records(self) -> Sequence[Record]:
        """Its records; CorruptLog as `_Batch` has it."""
        if self._records is not None:
            return self._records
        records = self._decoded()
        if self.room:
            size = self.header.size if self.header.codec == NONE else sum(map(_size_of, records))
            size += RECORD_BYTES * len(records)
            if size <= self.room:
                self._records, self.kept = records, size
        return records

    def _decoded(self) -> Sequence[Record]:
        data, at, header = self.chunk.data, self.at, self.header
        if header.magic == CURRENT_MAGIC and header.record_count and crc_is_valid(data, at, header.size):
            payload: bytes | None = data[at + HEADER_SIZE : at + header.size]
            if payload and header.codec != NONE:
                payload = self._payloads.unpack(header.codec, payload)
            if payload:
                try:
                    return tuple(iter_payload(payload, header))
                except CorruptBatch:
                    pass  # It is told below what is wrong, and where.
        return super().records()


def _size_of(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(key) + len(value or b"") for key, value in record.headers) if record.headers else size


class QuickRound(_Round):
    """See the module; for `rewrite.clean(..., round_type=QuickRound)`."""

    _kept: dict[int, list[QuickChunk]]
    """By base offset: the segments that were mapped as a whole."""
    _room_bytes: int
    _room_record_bytes: int
    _payloads: SmallPayloads

    def build_map(self) -> None:
        """Read the dirty range."""
        self._payloads = SmallPayloads()
        self._kept, self._room_bytes, self._room_record_bytes = {}, MAX_KEPT_BYTES, MAX_RECORD_BYTES
        super().build_map()

    def _chunks(self, segment: SegmentPlan, position: int) -> Iterator[QuickChunk]:
        file = self.env.open(names.log_file(self.plan.directory, segment.base_offset), read_only=True)
        try:
            parse_ = partial(parse, payloads=self._payloads)
            yield from parsed_chunks(file, position, segment.size, self.plan.io_buffer_bytes, parse_)
        finally:
            file.close()

    # -- the map ---------------------------------------------------------------------------------------------------------

    def _map_segment(self, segment: SegmentPlan, tracker: TransactionTracker) -> bool:
        position = self._dirty_position(segment)
        kept: list[QuickChunk] | None = None
        if position == 0 and segment.size <= self._room_bytes:
            self._room_bytes -= segment.size
            kept = []
        for chunk in self._chunks(segment, position):
            self.check_done()
            self.throttle(chunk.size)
            if self._map_chunk(chunk, tracker, is_kept=kept is not None):
                return True
            self.stats.map_bytes_read += chunk.size
            if kept is not None:
                kept.append(chunk)
        if kept is not None:
            self._kept[segment.base_offset] = kept
        self.map_end_offset = max(self.map_end_offset, segment.next_base_offset - 1)
        return False

    def _map_chunk(self, chunk: QuickChunk, tracker: TransactionTracker, *, is_kept: bool) -> bool:
        """Add a chunk's keys to the map; whether the map is full."""
        plan, stats, last_offsets = self.plan, self.stats, self.last_offsets
        limit = plan.map_max_entries if plan.is_kafka else None
        for entry in chunk.entries:
            if isinstance(entry, tuple) and not tracker.is_expecting:
                offset = entry[2]
                if offset >= plan.first_dirty_offset:
                    if limit is not None and len(last_offsets) >= limit:
                        return True
                    last_offsets[entry[3]] = self.map_end_offset = offset
                stats.map_messages_read += 1
                continue
            batch = _whole(chunk, entry)
            if is_kept and isinstance(batch, KeptBatch):
                batch.room = self._room_record_bytes
            is_full = self._map_batch(batch, tracker)
            if isinstance(batch, KeptBatch):
                self._room_record_bytes -= batch.kept
            if is_full:
                return True
        return False

    # -- the rewrite -----------------------------------------------------------------------------------------------------

    def _rewrite_segment(self, segment: SegmentPlan, writer: SegmentWriter) -> None:
        self.check_done()
        self._expect_aborted(segment)
        kept = self._kept.pop(segment.base_offset, None)
        for chunk in self._chunks(segment, 0) if kept is None else kept:
            self.check_done()
            self.throttle(chunk.size)
            size_before = writer.size
            self._rewrite_chunk(chunk, segment, writer)
            writer.flush()
            self.stats.bytes_read += chunk.size
            self.stats.bytes_written += writer.size - size_before
            self.throttle(writer.size - size_before)

    def _rewrite_chunk(self, chunk: QuickChunk, segment: SegmentPlan, writer: SegmentWriter) -> None:
        plan, stats, map_end = self.plan, self.stats, self.map_end_offset
        mapped, producers = self.last_offsets.get, plan.active_producers
        log_start = 0 if plan.is_kafka else plan.log_start_offset
        last_of_round = plan.first_uncleanable_offset - 1
        view = memoryview(chunk.chunk.data)
        written = removed = removed_bytes = 0
        for entry in chunk.entries:
            if isinstance(entry, tuple) and not self.tracker.is_expecting:
                at, end, offset, key, max_timestamp, producer_id, counted_bytes = entry
                fate = policy.record_fate(
                    offset=offset,
                    map_end_offset=map_end,
                    has_key=True,
                    mapped_offset=mapped(key, policy.NOT_MAPPED),
                    has_value=True,
                    is_expired=False,
                )
                if offset >= log_start:
                    if fate == policy.KEEP:
                        writer.append(view[at:end], offset, max_timestamp)
                        written += 1
                        continue
                    is_last_of_producer = producer_id in producers and policy.is_last_of_producer(
                        producers[producer_id], last_offset=offset, producer_epoch=-1, is_control=False
                    )
                    if fate == policy.FATE_SUPERSEDED and offset != last_of_round and not is_last_of_producer:
                        removed += 1
                        removed_bytes += counted_bytes
                        continue
            self._rewrite_batch(_whole(chunk, entry), segment, writer)
        stats.messages_read += written + removed
        stats.messages_written += written
        if removed:
            stats.remove(SUPERSEDED, removed, removed_bytes)


def _whole(chunk: QuickChunk, entry: Plain | KeptBatch) -> _Batch:
    """Return an entry as `rewrite` wants it."""
    if isinstance(entry, KeptBatch):
        return entry
    return _Batch(chunk.path, chunk.chunk, entry[0], parse_header(chunk.chunk.data, entry[0]))


def parse(file: File, position: int, data: bytes, payloads: SmallPayloads) -> QuickChunk:
    """Return the whole batches in `data`, which is at `position` of a segment's file. CorruptLog as `read_chunks` has it."""
    chunk = Chunk(position, data, [], 0)
    entries: list[Plain | KeptBatch] = []
    unpack_header, unpack = HEADER_STRUCT.unpack_from, payloads.unpack
    at, end = 0, len(data)
    with memoryview(data) as view:
        while at + HEADER_SIZE_UP_TO_MAGIC <= end:
            if at + HEADER_SIZE <= end:
                header = unpack_header(data, at)
                offset, length, _, magic, crc, attributes, deltas, first_timestamp, max_timestamp, producer_id = header[
                    :10
                ]
                next_at = at + LOG_OVERHEAD + length
                if (
                    header[12] == 1  # record
                    and not attributes & _UNPLAIN
                    and not deltas
                    and magic == CURRENT_MAGIC
                    and at + HEADER_SIZE < next_at <= end
                    and crc32c(view[at + ATTRIBUTES : next_at]) == crc
                ):
                    payload, first, last = data, at + HEADER_SIZE, next_at
                    if codec := attributes & CODEC_MASK:
                        payload = unpack(codec, data[first:last]) or b""
                        first, last = 0, len(payload)
                    key = _key_of_one(payload, first, last)
                    if key is not None:
                        size = last - first
                        if attributes & LOG_APPEND_TIME_FLAG:
                            size = _size_with_delta(payload[first], size, max_timestamp - first_timestamp)
                        entries.append((at, next_at, offset, key, max_timestamp, producer_id, size))
                        at = next_at
                        continue
            other = _header(file, position, data, at)
            if other is None:
                break
            entries.append(KeptBatch(file.path, chunk, at, other, payloads))
            at += other.size
    return QuickChunk(file.path, chunk, entries, at)


def _header(file: File, position: int, data: bytes, at: int) -> BatchHeader | None:
    """Return the header of the batch at a place in `data`, of any magic; None if it is not all there."""
    try:
        for _, header in iter_headers(data, at):
            return header
    except CorruptBatch as error:
        raise CorruptLog(file.path, position + error.position, error.reason) from error
    return None


def _size_with_delta(length_byte: int, size: int, delta_ms: int) -> int:
    """Return what a record of `size` bytes, with a timestamp delta of 0, would take with another one: as `rewrite` counts it."""
    size += _varint_size(delta_ms) - 1 - (2 if length_byte > 0x7F else 1)
    return size + _varint_size(size)


def _key_of_one(data: bytes, at: int, end: int) -> bytes | None:
    """Return the key of the only record of a batch, whose records are from `at` to `end`; None unless it is a plain one.

    That is: shortest lengths of up to two bytes, no deltas, key and value, and nothing before or behind it.
    """
    try:
        size = data[at]
        at += 1
        if size > 0x7F:
            if not 0 < data[at] < 0x80:
                return None
            size = size & 0x7F | data[at] << 7
            at += 1
        if size & 1 or at + (size >> 1) != end or data[at : at + 3] != _NO_DELTAS:
            return None
        size = data[at + 3]
        at += 4
        if size > 0x7F:
            if not 0 < data[at] < 0x80:
                return None
            size = size & 0x7F | data[at] << 7
            at += 1
        if size & 1:
            return None
        key = data[at : at + (size >> 1)]
        at += size >> 1
        size = data[at]
        at += 1
        if size > 0x7F:
            if not 0 < data[at] < 0x80:
                return None
            size = size & 0x7F | data[at] << 7
            at += 1
        if size & 1:
            return None
        at += size >> 1
        if data[at]:
            return key if _headers_end(data, at) == end else None
        return key if at + 1 == end else None
    except IndexError:
        return None


def _headers_end(data: bytes, at: int) -> int:
    """Return where headers end whose number is at a place, 63 at most and 1 at least; -1 for lengths that are not the shortest.

    IndexError where the bytes end in them.
    """
    count = data[at]
    if count & 0x81:
        return -1
    at += 1
    for _ in range(count >> 1):
        for none in (-1, 1):
            # A key, and then a value, which may be null.
            size = data[at]
            at += 1
            if size > 0x7F:
                if not 0 < data[at] < 0x80:
                    return -1
                size = size & 0x7F | data[at] << 7
                at += 1
            if size == none:
                continue
            if size & 1:
                return -1
            at += size >> 1
    return at
