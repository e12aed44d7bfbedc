"""Searches a file of record batches for the subject of an erasure, in every field of every record, with any magic and codec.

The plain search reads batches with `batches.batch_records` and decides about them. The compiled search (`compiled_search`) skips
batches without findings, and leaves the decision about all others to the plain search. Neither uses an index or a filter.
Unreadable bytes are always a problem: they are searched as plain bytes, but their place never counts as clean.

Amounts are counted where data is searched (`FileSearch.amounts`), so that a scan can be compared with the contents of files.

Memory: 4 MiB of the file, or one larger batch, and one decompressed batch (at most `MAX_BATCH_BYTES`).
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from diamant.cleaner.evidence.search.file_census import RAW as RAW_BYTES
from diamant.cleaner.evidence.search.file_census import Amounts, add_to, codec_name
from diamant.cleaner.evidence.search.findings import (
    RAW,
    SAME_BYTES,
    SAME_KEY,
    TOMBSTONE,
    UNDECIDED,
    VALUE,
    Finding,
    FoundList,
    Unreadable,
)
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.search.needles import Buffer, Hit, Needle, Needles, keyed_digest
from diamant.cleaner.evidence.search.offset_order import OffsetOrder
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import iter_payload, iter_records, records_payload
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.compression import NONE as NO_CODEC
from diamant.protocol.batches.header import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MIN_BATCH_LENGTH,
    MIN_ENTRY_LENGTH,
    BatchHeader,
    Record,
)
from diamant.protocol.batches.legacy import parse_entry, parse_legacy_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import ReadableFile

if TYPE_CHECKING:
    from diamant.cleaner.evidence.search.known_positives import KnownPositives

READ_BYTES = 4 * 1024 * 1024
CONTROL_KEY_BYTES = 4
"""Size of a control record's key: version and type. Records with other key sizes are not markers, even in control batches."""

MANY_TEXTS = 16
"""If a batch contains more needles than this, each of its records is searched for all needles."""

_PREFIX = Struct(">qiIb")


IsAnyMeant = Callable[[Record, str | None], bool]
"""Takes a record and its topic; returns False only if none of several subjects wants the record removed."""


@dataclass(slots=True)
class Subject:
    """The subject of a search: the key, its topics, and the needles. The key is None if only its digest is known."""

    key: bytes | None
    topics: frozenset[str]
    needles: Needles
    key_digest: bytes = b""
    known_key: bytes | None = None
    """The key of the records planted for this scan (`known_positives`)."""

    def __post_init__(self) -> None:
        if self.key is not None:
            self.key_digest = keyed_digest(self.needles.secret, self.key)

    def is_key(self, key: bytes | None) -> bool:
        """Tell whether a record's key is the one to search for."""
        if key is None:
            return False
        if key == self.known_key:
            return True
        if self.key is not None:
            return key == self.key
        return keyed_digest(self.needles.secret, key) == self.key_digest

    def is_meant(self, record: Record, topic: str | None) -> bool | None:
        """Tell whether a record is to be removed; None if this cannot be decided. A redaction considers more than the key."""
        return self.is_key(record.key)

    @staticmethod
    def any_meant(subjects: Sequence[Any]) -> IsAnyMeant:
        """Return a function that tells whether a record may concern any of these subjects, which are all of this class."""
        keys = {key for one in subjects for key in (one.key, one.known_key)}
        digests = {one.key_digest for one in subjects if one.key is None}
        secret = subjects[0].needles.secret

        def is_any(record: Record, _topic: str | None) -> bool:
            key = record.key
            return key is not None and (key in keys or (bool(digests) and keyed_digest(secret, key) in digests))

        return is_any

    def may_mean(self, record: Record, topic: str | None) -> bool:
        """Tell whether `is_meant` must be called for a record. A joint subject answers for all its subjects together."""
        return True

    def unexplained(
        self, record: Record, topic: str | None, hits: list[tuple[str, Needle]]
    ) -> list[tuple[str, Needle]]:
        """Return those `hits` (field and needle) in a record that have no harmless explanation."""
        return hits

    def is_in_the_way(self, finding: Finding) -> bool:
        """Tell whether a finding in a file of no partition prevents claims about all partitions.

        A copied tombstone without headers, or another copy of the key's bytes, only shows that the key existed.
        """
        if finding.what == SAME_KEY:
            return finding.has_value is not False or bool(finding.has_headers)
        return finding.digest != self.key_digest.hex()

    judges_bytes: ClassVar[bool] = False
    """True if `may_be_in` must be called."""

    def may_be_in(self, payload: bytes, topic: str | None) -> bool:
        """Tell whether a topic's records in this payload may match. Needles are searched for separately."""
        return True

    def walked_keys(self, topic: str | None) -> tuple[bytes, ...] | None:
        """Return the keys that the compiled search looks for in a topic's files; None if the subject judges every record."""
        if self.key is None:
            return None
        return (self.key,) if self.known_key is None else (self.key, self.known_key)

    def with_known(self, known: KnownPositives) -> Subject:
        """Return a copy that also looks for known positives."""
        needles = self.needles.joined(known.needles)
        return replace(self, topics=self.topics | {known.topic}, needles=needles, known_key=known.key)


@dataclass(slots=True)
class Counts:
    """The amounts read."""

    files: int = 0
    bytes: int = 0
    """Size of the files."""
    decompressed_bytes: int = 0
    """Size of compressed batches after decompression."""
    batches: int = 0
    records: int = 0
    compiled_batches: int = 0
    """Number of batches in which the compiled search found nothing."""

    def add(self, other: Counts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BatchBytes(NamedTuple):
    """A complete batch in memory."""

    position: int
    """Position in the file."""
    header: BatchHeader
    buffer: Buffer
    at: int


OnRecord = Callable[["FileSearch", Record, BatchHeader], object]
"""Takes the search of a file, and a record of the key in one of the erasure's topics there. Called in the searching thread."""


class WalkedKeys(NamedTuple):
    """The keys that the compiled search looks for in a file."""

    keys: bytes
    """The concatenated keys, and a zero byte."""
    bounds: array[int]
    """int64[n + 1]: the start of each key, and the end of the last."""
    is_judging: bool
    """True if a subject judges every record."""


@dataclass(slots=True)
class FileSearch:
    """The search of one file, and its result."""

    subject: Subject
    topic: str | None
    partition: int | None
    name: str
    """The path of the file, relative to the data directory."""
    on_record: OnRecord | None = None
    order: OffsetOrder | None = None
    """The check of a segment's offsets."""
    is_locating: bool = False
    """True if the search only calls `on_record`, and keeps no findings."""
    found: FoundList = field(default_factory=FoundList)
    counts: Counts = field(default_factory=Counts)
    amounts: Amounts = field(default_factory=dict)
    """The amounts searched; complete once the search is over."""
    check: Callable[[], object] = bool
    """Called every few MiB; its exceptions end the search."""
    members: Sequence[FileSearch] = ()
    """One search per subject, if there are several subjects. This search reads for them, and has all their needles."""
    walked: WalkedKeys | None = None
    """The keys, set by the compiled search when it begins."""

    @property
    def parts(self) -> Sequence[FileSearch]:
        """The searches that decide about records and hold the findings: the members, or this search if there are none."""
        return self.members or (self,)

    @property
    def is_in_scope(self) -> bool:
        """True if the file belongs to one of the erasure's topics."""
        return self.topic in self.subject.topics

    def follow(self, position: int, header: BatchHeader) -> None:
        """Check the offsets of the next batch against those of earlier ones."""
        if self.order is not None:
            reason = self.order.problem(position, header.base_offset, header.last_offset)
            if reason:
                self.fail(position, reason)

    # -- decisions about a batch -----------------------------------------------------------------------------------------

    def look_at(self, batch: BatchBytes) -> None:
        """Search a batch: all its bytes, and every field of every record."""
        header, buffer, at = batch.header, batch.buffer, batch.at
        whole = memoryview(buffer)[at : at + header.size]
        self.counts.batches += 1
        records = 0
        if not crc_is_valid(buffer, at, header.size):
            self.fail(batch.position, "the batch's checksum is wrong")
        looks = _Looks(self.parts)
        looks.add(whole, self.subject.needles.find(whole))
        payload = None
        try:
            if header.magic == CURRENT_MAGIC and not header.record_count and header.size > HEADER_SIZE:
                raise CorruptBatch(
                    0, f"no records are declared, but there are {header.size - HEADER_SIZE} bytes of them"
                )
            if header.codec != NO_CODEC and (header.record_count or header.magic < CURRENT_MAGIC):
                payload = self._payload(batch)
                self.counts.decompressed_bytes += len(payload)
                looks.add(payload, self.subject.needles.find(payload))
            wanted = [one for one in looks if one.hits or not one.search._can_pass_over(batch, payload)]
            if not wanted:
                records = header.record_count
            else:
                for record in iter_records(buffer, at):
                    records += 1
                    may_be_meant = self.subject.may_mean(record, self.topic)
                    for one in wanted:
                        if may_be_meant or one.texts:
                            one.places |= one.search._look_at_record(record, batch, one.texts)
        except CorruptBatch as error:
            self.fail(batch.position, f"the batch's records cannot be read: {error.reason}")
        for one in looks:
            for hit in one.hits:
                if hit.needle.digest not in one.places:
                    one.search.add_raw(hit, batch.position)
        self.counts.records += records
        is_old = header.magic < CURRENT_MAGIC
        add_to(self.amounts, codec_name(header.magic, header.codec), 1, 0 if is_old else records, header.size)

    def judge(self, header: BatchHeader, position: int, payload: bytes) -> None:
        """Pass the records of a batch without needles to the subjects that judge every record (`walked_keys`)."""
        batch = BatchBytes(position, header, payload, 0)
        wanted = [
            one
            for one in self.parts
            if one.subject.walked_keys(self.topic) is None and not one._can_pass_over(batch, payload)
        ]
        if wanted:
            try:
                for record in iter_payload(payload, header):
                    for one in wanted if self.subject.may_mean(record, self.topic) else ():
                        one._look_at_record(record, batch, set())
            except CorruptBatch as error:
                self.fail(position, f"the batch's records cannot be read: {error.reason}")

    def _payload(self, batch: BatchBytes) -> bytes:
        """Return the decompressed records of a batch. Bytes around them that readers skip count as unreadable."""
        try:
            return _payload(batch, may_skip=False)
        except CorruptBatch as error:
            found = _payload(batch, may_skip=True)
            self.fail(batch.position, f"not all of the batch can be read: {error.reason}")
            return found

    def _can_pass_over(self, batch: BatchBytes, payload: bytes | None) -> bool:
        header = batch.header
        is_plain = header.magic == CURRENT_MAGIC and not header.is_control and header.record_count > 0
        if not self.subject.judges_bytes or not is_plain:
            return False
        start, end = batch.at + HEADER_SIZE, batch.at + header.size
        return not self.subject.may_be_in(bytes(batch.buffer[start:end]) if payload is None else payload, self.topic)

    def _look_at_record(self, record: Record, batch: BatchBytes, texts: set[bytes]) -> set[bytes]:
        """Search a record; return the digests of the needles in it. `texts`: the bytes of the needles that are in the batch."""
        is_marker = batch.header.is_control and record.key is not None and len(record.key) == CONTROL_KEY_BYTES
        verdict = not is_marker and self.subject.is_meant(record, self.topic)
        hits = self._hits_in(record, texts) if texts else []
        if verdict is not False and not batch.header.base_offset <= record.offset <= batch.header.last_offset:
            # By this offset, the record could be outside a claim's range, although consumers see it at another one.
            self.fail(batch.position, "a record's offset is not within its batch")
        if verdict is True:
            self._add_meant(record, batch, hits)
            digest = keyed_digest(self.subject.needles.secret, _said(record))
            explained = {self.subject.key_digest, digest}
            if not self.is_in_scope:
                self._add_same_bytes(record, batch, [hit for hit in hits if hit[1].digest not in explained])
            return explained.union(needle.digest for _, needle in hits)
        if verdict is None:
            digest = keyed_digest(self.subject.needles.secret, record.value or b"")
            self._add(self._finding(UNDECIDED, batch, record, "", digest))
        self._add_same_bytes(record, batch, self.subject.unexplained(record, self.topic, hits) if hits else hits)
        return {needle.digest for _, needle in hits}

    def _hits_in(self, record: Record, texts: set[bytes]) -> list[tuple[str, Needle]]:
        """Return the needles in a record, each with the field that contains it."""
        fields: list[tuple[str, bytes | None]] = [("key", record.key), ("value", record.value)]
        for name, value in record.headers:
            fields += [("header", name.encode(errors="surrogateescape")), ("header", value)]
        find = self.subject.needles.find
        return [
            (place, hit.needle)
            for place, data in fields
            # A value that many records have is in many batches. Testing for its bytes is quicker than searching for all needles.
            if data is not None and (len(texts) > MANY_TEXTS or any(text in data for text in texts))
            for hit in find(data)
        ]

    def _add_same_bytes(self, record: Record, batch: BatchBytes, hits: list[tuple[str, Needle]]) -> None:
        for place, needle in hits:
            self._add(self._finding(SAME_BYTES, batch, record, place, needle.digest), needle.kind)

    def _add_meant(self, record: Record, batch: BatchBytes, hits: list[tuple[str, Needle]]) -> None:
        """Record a finding for a record that is to be removed, or would be if it were in one of the erasure's topics."""
        if self.is_in_scope and self.on_record is not None:
            self.on_record(self, record, batch.header)
        digest = keyed_digest(self.subject.needles.secret, _said(record))
        has_value = record.value is not None
        has_headers = (not has_value and bool(record.headers)) or None
        if not self.is_in_scope:
            found = self._finding(SAME_KEY, batch, record, "key", digest)
            found = found._replace(has_value=has_value, has_headers=has_headers)
            self._add(found, has_value or has_headers)
            return
        if has_value:
            self._add(self._finding(VALUE, batch, record, "key", digest))
            return
        horizon_ms = batch.header.base_timestamp if batch.header.has_delete_horizon else None
        found = self._finding(TOMBSTONE, batch, record, "key", digest)
        self._add(found._replace(horizon_ms=horizon_ms, has_headers=has_headers), has_headers)
        # A tombstone contains its key, and may contain a value in its headers.
        for place, needle in hits:
            if place == "header" and needle.kind == VALUE_NEEDLE and needle.digest != self.subject.key_digest:
                self._add(self._finding(VALUE, batch, record, place, needle.digest))
                break

    def _finding(self, what: str, batch: BatchBytes, record: Record, place: str, digest: bytes) -> Finding:
        return Finding(what, self.topic, self.partition, self.name, batch.position, record.offset, place, digest.hex())

    def add_raw(self, hit: Hit, position: int) -> None:
        """Record a finding outside records."""
        if self.members:
            for one in self.members:
                if (needle := one.subject.needles.get(hit.needle.digest)) is not None:
                    one.add_raw(Hit(needle, hit.start), position)
            return
        kind, digest = hit.needle.kind, hit.needle.digest.hex()
        self._add(Finding(RAW, self.topic, self.partition, self.name, position, None, "", digest), kind)

    def _add(self, finding: Finding, kind: object = None) -> None:
        if not self.is_locating:
            self.found.add(finding, kind, is_in_scope=self.is_in_scope)

    def fail(self, position: int | None, reason: str) -> None:
        """Record an unreadable place."""
        for one in (self, *self.members):
            one.found.fail(Unreadable(self.topic, self.partition, self.name, position, reason))

    def find_raw(self, data: Buffer, position: int) -> None:
        """Search `data` as plain bytes; it begins at `position` in the file."""
        add_to(self.amounts, RAW_BYTES, 0, 0, len(data))
        for hit in self.subject.needles.find(data):
            self.add_raw(hit, position + hit.start)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def search_raw(self, file: ReadableFile, position: int, end: int) -> None:
        """Search a range of the file as plain bytes."""
        needles = self.subject.needles
        while position < end:
            skipped = hole_bytes(file, position, end, READ_BYTES, READ_BYTES + needles.longest)
            add_to(self.amounts, RAW_BYTES, 0, 0, skipped)
            position += skipped
            if position >= end:
                return
            data = file.pread(min(READ_BYTES + needles.longest, end - position), position)
            if not data:
                return
            for hit in needles.find(data):
                if hit.start < READ_BYTES:
                    self.add_raw(hit, position + hit.start)
            add_to(self.amounts, RAW_BYTES, 0, 0, min(len(data), READ_BYTES))
            position += READ_BYTES


@dataclass(slots=True)
class _Look:
    """What one subject's search finds in a batch."""

    search: FileSearch
    hits: list[Hit] = field(default_factory=list)
    texts: set[bytes] = field(default_factory=set)
    """The bytes of the needles in the batch."""
    places: set[bytes] = field(default_factory=set)
    """The digests of the needles that are in records."""


class _Looks(list[_Look]):
    """What all subjects' searches find in a batch."""

    def __init__(self, searches: Sequence[FileSearch]) -> None:
        super().__init__(map(_Look, searches))

    def add(self, data: Buffer, hits: list[Hit]) -> None:
        """Record the needles in a part of the batch, each for the subjects that look for it."""
        if not hits:
            return
        for look in self:
            known = look.search.subject.needles
            own = [Hit(needle, hit.start) for hit in hits if (needle := known.get(hit.needle.digest)) is not None]
            look.hits += own
            look.texts |= {bytes(data[hit.start : hit.start + hit.needle.size]) for hit in own}


def _said(record: Record) -> bytes:
    """Return the bytes that identify a record: its value, or a tombstone's key."""
    return (record.key if record.value is None else record.value) or b""


def _payload(batch: BatchBytes, *, may_skip: bool) -> bytes:
    """Return the decompressed records of a compressed batch of any magic."""
    if batch.header.magic == CURRENT_MAGIC:
        return records_payload(batch.buffer, batch.at, batch.header, may_skip=may_skip)
    from diamant.protocol.batches.compression import decompress

    entry = parse_entry(batch.buffer, batch.at)
    if entry.key and not may_skip:
        raise CorruptBatch(0, f"a compressed entry has a key of {len(entry.key)} bytes, which readers skip")
    return decompress(entry.codec, entry.value or b"", may_skip=may_skip, checks_lz4_header=entry.magic > 0)


# -- the plain search --------------------------------------------------------------------------------------------------


def search_plain(search: FileSearch, file: ReadableFile, end: int, position: int = 0) -> None:
    """Search a file of batches from byte `position`, the beginning of a batch, up to `end`."""
    for batch in _batches(search, file, position, end):
        search.follow(batch.position, batch.header)
        search.look_at(batch)


def _batches(search: FileSearch, file: ReadableFile, position: int, end: int) -> Iterator[BatchBytes]:
    buffer, start = b"", position
    while position < end:
        at = position - start
        if at + HEADER_SIZE_UP_TO_MAGIC > len(buffer):
            search.check()
            buffer, start, at = file.pread(min(READ_BYTES, end - position), position), position, 0
        reason = _unsound(buffer, at, end - position)
        if not reason:
            size = int.from_bytes(buffer[at + 8 : at + 12], "big") + LOG_OVERHEAD
            if at + size > len(buffer):
                search.check()
                buffer, start, at = file.pread(min(max(READ_BYTES, size), end - position), position), position, 0
            if len(buffer) - at < size:
                reason = "the file was truncated while it was read"
        if not reason:
            try:
                yield BatchBytes(position, batch_header(buffer, at), buffer, at)
            except CorruptBatch as error:
                search.fail(position, error.reason)
                search.search_raw(file, position, position + size)
            position += size
            continue
        search.fail(position, reason)
        search.search_raw(file, position, end)
        return


def batch_header(buffer: bytes, at: int) -> BatchHeader:
    """Return the header of the batch at `at`, whatever its magic. Raises CorruptBatch for a malformed batch of an old format."""
    if buffer[at + 16] == CURRENT_MAGIC:
        return BatchHeader._make(HEADER_STRUCT.unpack_from(buffer, at))
    return parse_legacy_header(buffer, at)


def _unsound(buffer: bytes, at: int, left: int) -> str:
    """Return why no complete batch begins at `at`; "" if one does. `left`: bytes left in the file."""
    if len(buffer) - at < HEADER_SIZE_UP_TO_MAGIC:
        return f"the last {left} bytes are not a whole batch"
    _, length, _, magic = _PREFIX.unpack_from(buffer, at)
    least = MIN_BATCH_LENGTH if magic == CURRENT_MAGIC else MIN_ENTRY_LENGTH
    if not 0 <= magic <= CURRENT_MAGIC or length < least:
        return f"the bytes are not a batch: length {length}, magic {magic}"
    if length + LOG_OVERHEAD > left:
        return f"the batch has {length + LOG_OVERHEAD} bytes, but only {left} are left in the file"
    if length + LOG_OVERHEAD > MAX_BATCH_BYTES:
        return f"the batch has {length + LOG_OVERHEAD} bytes, at most {MAX_BATCH_BYTES} are read"
    return ""


def hole_bytes(file: ReadableFile, position: int, end: int, step: int, window: int) -> int:
    """Return how many bytes can be skipped at `position` of a sparse file, in multiples of `step`.

    At the beginning of each skipped step, the next `window` bytes lie in a hole. A hole contains only zeros, so no needle is in
    it, and reading terabytes of zeros would take days.
    """
    fd = file.fileno()
    if fd is None or not hasattr(os, "SEEK_DATA"):
        return 0
    try:
        data = os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: the rest is a hole. Other failures appear when the data is read.
        data = end if error.errno == errno.ENXIO else position
    return end - position if data >= end else max(0, data - position - window + step) // step * step


def file_size(file: ReadableFile) -> int:
    """Return the current size of a file."""
    fd = file.fileno()
    return file.size() if fd is None else os.fstat(fd).st_size
