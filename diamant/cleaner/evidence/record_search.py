"""Searches a file of record batches for everything that an erasure is about: any magic, any codec, every field of every record.

The plain search (`search_plain`) reads with `protocol.records` and decides. The compiled one (`search_compiled`) walks over
batches in which nothing is to be found and hands all others to the same decision. Neither asks an index or a filter. What
cannot be read is a problem, never nothing: its bytes are searched raw, and no one can call that place clean.

Memory: 4 MiB read, or one larger batch, and what one batch decompresses to (`MAX_BATCH_BYTES` at most).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.cleaner.evidence.needles import Buffer, Hit, Needles, keyed_digest
from diamant.protocol.batch import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MIN_BATCH_LENGTH,
    MIN_ENTRY_LENGTH,
    BatchHeader,
    crc_is_valid,
)
from diamant.protocol.compression import NONE as NO_CODEC
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.legacy import parse_entry, parse_legacy_header
from diamant.protocol.records import Record, iter_records, records_payload
from diamant.storage.env import File
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.cleaner.chunk_reader import ChunkReader
    from diamant.cleaner.unpacker import Unpacker

READ_BYTES = 4 * 1024 * 1024
MAX_BATCH_BYTES = 256 * 1024 * 1024
MAX_LISTED = 1000
"""Findings of each sort that are listed with their place; further ones are counted."""

_PREFIX = Struct(">qiIb")

# What was found.
VALUE = "value"
"""A record of the key with a value."""
TOMBSTONE = "tombstone"
"""A record of the key without one."""
SAME_KEY = "same-key"
"""A record of the same key in a topic that the erasure is not about."""
SAME_BYTES = "same-bytes"
"""Bytes of the key or of one of its values in a record that has another key."""
RAW = "raw"
"""Such bytes outside of any record."""


class Finding(NamedTuple):
    """One place. What was found there is told by digests only."""

    what: str
    topic: str | None
    partition: int | None
    file: str
    """Relative to the data directory."""
    position: int
    """Of the batch, or of the bytes."""
    offset: int | None
    field: str
    """`key`, `value` or `header` of a record; empty outside of records."""
    digest: str
    """HMAC of the value, of the key for a tombstone, of the needle otherwise."""
    horizon_ms: int | None = None
    """From when on a tombstone may go; None while nobody knows."""

    def to_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None and value != ""}


class Unreadable(NamedTuple):
    """A place of which nobody can tell what is in it."""

    topic: str | None
    partition: int | None
    file: str
    position: int | None
    reason: str

    def to_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(slots=True)
class Subject:
    """What is looked for: the key, in which topics, and the needles. The key is None if only its digest is known."""

    key: bytes | None
    topics: frozenset[str]
    needles: Needles
    key_digest: bytes = b""

    def __post_init__(self) -> None:
        if self.key is not None:
            self.key_digest = keyed_digest(self.needles.secret, self.key)

    def is_key(self, key: bytes | None) -> bool:
        """Tell whether a record's key is the one."""
        if key is None:
            return False
        if self.key is not None:
            return key == self.key
        return keyed_digest(self.needles.secret, key) == self.key_digest


@dataclass(slots=True)
class Counts:
    """What was read."""

    files: int = 0
    bytes: int = 0
    """Of files."""
    decompressed_bytes: int = 0
    """Of compressed batches."""
    batches: int = 0
    records: int = 0
    compiled_batches: int = 0
    """Batches of which the compiled walk said that there is nothing."""

    def add(self, other: Counts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BatchBytes(NamedTuple):
    """A whole batch in memory."""

    position: int
    """In the file."""
    header: BatchHeader
    buffer: Buffer
    at: int


OnRecord = Callable[["FileSearch", Record, BatchHeader], object]
"""Is told of every record of the key in the erasure's topics, and of the file that it is in. In the searching thread."""


@dataclass(slots=True)
class FileSearch:
    """The search of one file, and what came of it."""

    subject: Subject
    topic: str | None
    partition: int | None
    name: str
    """The file, relative to the data directory."""
    on_record: OnRecord | None = None
    findings: list[Finding] = field(default_factory=list)
    unlisted: dict[str, int] = field(default_factory=dict)
    """Findings beyond `MAX_LISTED`, by what they are."""
    unreadable: list[Unreadable] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    _listed: dict[str, int] = field(default_factory=dict)

    @property
    def is_in_scope(self) -> bool:
        """Whether the file is of one of the erasure's topics."""
        return self.topic in self.subject.topics

    # -- what is decided about a batch ---------------------------------------------------------------------------------

    def look_at(self, batch: BatchBytes) -> None:
        """Look at every field of every record of a batch, and at its bytes."""
        header, buffer, at = batch.header, batch.buffer, batch.at
        whole = memoryview(buffer)[at : at + header.size]
        self.counts.batches += 1
        if not crc_is_valid(buffer, at, header.size):
            self.fail(batch.position, "the batch's checksum is wrong")
        hits = self.subject.needles.find(whole)
        places: set[bytes] = set()
        try:
            if header.magic == CURRENT_MAGIC and not header.record_count and header.size > HEADER_SIZE:
                raise CorruptBatch(0, f"no records are declared, but {header.size - HEADER_SIZE} bytes are there")
            if header.codec != NO_CODEC and (header.record_count or header.magic < CURRENT_MAGIC):
                payload = _payload(batch)
                self.counts.decompressed_bytes += len(payload)
                hits += self.subject.needles.find(payload)
            for record in iter_records(buffer, at, max_bytes=MAX_BATCH_BYTES):
                self.counts.records += 1
                places |= self._look_at_record(record, batch, has_hits=bool(hits))
        except CorruptBatch as error:
            self.fail(batch.position, f"the batch's records cannot be read: {error.reason}")
        for hit in hits:
            if hit.needle.digest not in places:
                self._add(self._raw(hit, batch.position))

    def _look_at_record(self, record: Record, batch: BatchBytes, *, has_hits: bool) -> set[bytes]:
        """Look at a record; return the digests of the needles that it holds."""
        is_key = self.subject.is_key(record.key) and not batch.header.is_control
        explained: set[bytes] = set()
        if is_key:
            if self.is_in_scope:
                if self.on_record is not None:
                    self.on_record(self, record, batch.header)
                what = TOMBSTONE if record.value is None else VALUE
            else:
                what = SAME_KEY
            data = record.key if record.value is None else record.value
            assert data is not None
            digest = keyed_digest(self.subject.needles.secret, data)
            horizon_ms = None
            if what == TOMBSTONE and batch.header.has_delete_horizon:
                horizon_ms = batch.header.base_timestamp
            self._add(self._finding(what, batch, record, "key", digest, horizon_ms))
            explained |= {self.subject.key_digest, digest}
        if not has_hits:
            return explained
        fields: list[tuple[str, bytes | None]] = [("key", record.key), ("value", record.value)]
        for name, value in record.headers:
            fields += [("header", name.encode(errors="surrogateescape")), ("header", value)]
        for place, data in fields:
            for hit in self.subject.needles.find(data) if data is not None else ():
                digest = hit.needle.digest
                if not (is_key and digest in explained):
                    self._add(self._finding(SAME_BYTES, batch, record, place, digest, None))
                explained.add(digest)
        return explained

    def _finding(
        self, what: str, batch: BatchBytes, record: Record, place: str, digest: bytes, horizon_ms: int | None
    ) -> Finding:
        return Finding(
            what,
            self.topic,
            self.partition,
            self.name,
            batch.position,
            record.offset,
            place,
            digest.hex(),
            horizon_ms,
        )

    def _raw(self, hit: Hit, position: int) -> Finding:
        return Finding(RAW, self.topic, self.partition, self.name, position, None, "", hit.needle.digest.hex())

    def _add(self, finding: Finding) -> None:
        listed = self._listed.get(finding.what, 0)
        if listed < MAX_LISTED:
            self._listed[finding.what] = listed + 1
            self.findings.append(finding)
        else:
            self.unlisted[finding.what] = self.unlisted.get(finding.what, 0) + 1

    def fail(self, position: int | None, reason: str) -> None:
        """Note a place that cannot be read."""
        if len(self.unreadable) < MAX_LISTED:
            self.unreadable.append(Unreadable(self.topic, self.partition, self.name, position, reason))

    def find_raw(self, data: Buffer, position: int) -> None:
        """Search bytes that are at `position` of the file."""
        for hit in self.subject.needles.find(data):
            self._add(self._raw(hit, position + hit.start))

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def search_raw(self, file: File, position: int, end: int) -> None:
        """Search bytes as they are."""
        needles = self.subject.needles
        longest = max((needle.size for needle in needles), default=0)
        while position < end:
            data = file.pread(min(READ_BYTES + longest, end - position), position)
            if not data:
                return
            for hit in needles.find(data):
                if hit.start < READ_BYTES:
                    self._add(self._raw(hit, position + hit.start))
            position += READ_BYTES


def _payload(batch: BatchBytes) -> bytes:
    """Return the decompressed records of a compressed batch of any magic."""
    if batch.header.magic == CURRENT_MAGIC:
        return records_payload(batch.buffer, batch.at, batch.header, max_bytes=MAX_BATCH_BYTES)
    from diamant.protocol.compression import decompress

    entry = parse_entry(batch.buffer, batch.at)
    return decompress(entry.codec, entry.value or b"", max_bytes=MAX_BATCH_BYTES)


# -- the plain search --------------------------------------------------------------------------------------------------


def search_plain(search: FileSearch, file: File, end: int, position: int = 0) -> None:
    """Search a file of batches from byte `position`, where one begins, up to `end`."""
    for batch in _batches(search, file, position, end):
        search.look_at(batch)


def _batches(search: FileSearch, file: File, position: int, end: int) -> Iterator[BatchBytes]:
    buffer, start = b"", position
    while position < end:
        at = position - start
        if at + HEADER_SIZE_UP_TO_MAGIC > len(buffer):
            buffer, start, at = file.pread(min(READ_BYTES, end - position), position), position, 0
        reason = _unsound(buffer, at, end - position)
        if not reason:
            size = int.from_bytes(buffer[at + 8 : at + 12], "big") + LOG_OVERHEAD
            if at + size > len(buffer):
                buffer, start, at = file.pread(min(max(READ_BYTES, size), end - position), position), position, 0
            if len(buffer) - at < size:
                reason = "the file was cut while it was read"
        if not reason:
            try:
                yield BatchBytes(position, _header(buffer, at), buffer, at)
            except CorruptBatch as error:
                search.fail(position, error.reason)
                search.search_raw(file, position, position + size)
            position += size
            continue
        search.fail(position, reason)
        search.search_raw(file, position, end)
        return


def _header(buffer: bytes, at: int) -> BatchHeader:
    if buffer[at + 16] == CURRENT_MAGIC:
        return BatchHeader._make(HEADER_STRUCT.unpack_from(buffer, at))
    return parse_legacy_header(buffer, at, max_bytes=MAX_BATCH_BYTES)


def _unsound(buffer: bytes, at: int, left: int) -> str:
    """Return why no whole batch begins at `at`; "" if one may."""
    if len(buffer) - at < HEADER_SIZE_UP_TO_MAGIC:
        return f"the last {left} bytes are no whole batch"
    _, length, _, magic = _PREFIX.unpack_from(buffer, at)
    least = MIN_BATCH_LENGTH if magic == CURRENT_MAGIC else MIN_ENTRY_LENGTH
    if not 0 <= magic <= CURRENT_MAGIC or length < least:
        return f"the bytes are no batch: length {length}, magic {magic}"
    if length + LOG_OVERHEAD > left:
        return f"the batch has {length + LOG_OVERHEAD} bytes, only {left} are left in the file"
    if length + LOG_OVERHEAD > MAX_BATCH_BYTES:
        return f"the batch has {length + LOG_OVERHEAD} bytes, at most {MAX_BATCH_BYTES} are read"
    return ""


# -- the compiled search -----------------------------------------------------------------------------------------------


class CompiledSearch:
    """Buffers of one thread for the compiled search. Making one loads numba."""

    def __init__(self) -> None:
        import numpy as np

        from diamant.cleaner.chunk_reader import ChunkReader
        from diamant.cleaner.evidence import search_kernels
        from diamant.cleaner.unpacker import Unpacker

        self._np = np
        self._kernels = search_kernels
        self._reader: ChunkReader = ChunkReader()
        self._unpacker: Unpacker = Unpacker()

    def search(self, search: FileSearch, file: File, end: int) -> None:
        """Search a file of batches up to byte `end`. The subject's key must be known."""
        np = self._np
        assert search.subject.key is not None
        key = np.frombuffer(search.subject.key or b"\0", np.uint8)[: len(search.subject.key)]
        windows = search.subject.needles.windows
        position = 0
        try:
            for chunk in self._reader.chunks(file, 0, end):
                position = chunk.position
                self._search_chunk(search, chunk, key, windows)
                position += chunk.size
        except CorruptLog:
            # From here on the plain search says what is wrong.
            search_plain(search, file, end, position)

    def _search_chunk(self, search: FileSearch, chunk: Any, key: Any, windows: Any) -> None:
        from diamant.cleaner import record_kernels as fields

        np, kernels = self._np, self._kernels
        rows, count = chunk.rows, chunk.count
        attributes = rows[fields.ATTRIBUTES, :count]
        is_plain = (rows[fields.MAGIC, :count] == 2) & (attributes & fields.CONTROL == 0)
        rows[fields.STEP, :count] = np.where(is_plain, kernels.SEARCH, kernels.LOOK_AGAIN)
        packed = is_plain & (attributes & fields.CODEC_MASK != 0) & (rows[fields.RECORD_COUNT, :count] != 0)
        self._unpacker.clear()
        data = chunk.data.data
        for row in np.flatnonzero(packed).tolist():
            payload = data[rows[fields.PAYLOAD_START, row] : rows[fields.PAYLOAD_END, row]]
            try:
                place = self._unpacker.unpack(int(attributes[row]) & fields.CODEC_MASK, payload, MAX_BATCH_BYTES)
            except CorruptBatch:
                rows[fields.STEP, row] = kernels.LOOK_AGAIN
                continue
            rows[fields.IS_UNPACKED, row] = 1
            rows[fields.PAYLOAD_START, row], rows[fields.PAYLOAD_END, row] = place
        records, _ = kernels.search_rows(chunk.data, self._unpacker.buffer, rows, count, key, *windows)
        again = np.flatnonzero(rows[fields.STEP, :count] != kernels.CLEAN).tolist()
        search.counts.batches += count - len(again)
        search.counts.compiled_batches += count - len(again)
        search.counts.records += records
        search.counts.decompressed_bytes += self._unpacker.at
        for row in again:
            at, size = int(rows[fields.POSITION, row]), int(rows[fields.SIZE, row])
            batch = bytes(data[at : at + size])
            try:
                search.look_at(BatchBytes(chunk.position + at, _header(batch, 0), batch, 0))
            except CorruptBatch as error:
                search.fail(chunk.position + at, error.reason)
                search.find_raw(batch, chunk.position + at)


def file_size(file: File, limit: int | None) -> int:
    """Return how much of a file is to be searched: all that is there now, or up to `limit`."""
    fd = file.fileno()
    size = file.size() if fd is None else os.fstat(fd).st_size
    return size if limit is None else min(limit, size)
