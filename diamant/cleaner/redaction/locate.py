"""Finds the records of a partition that a redaction has to remove or change.

    matched       user records below the end of the redaction that match `where`, committed or aborted
    unchanged     matching records whose fields already have the required values
    superseded    on compacted topics, values older than the newest committed match of their key: after its removal, one of
                  them would become the key's value again. Newer values that do not match are kept

The first pass searches the decompressed bytes of all batches, and reads records only if the bytes may hold a match. A second pass
looks for `superseded` up to the newest matched record. Checksums and the order of offsets are verified in every batch, so an
unreadable batch is always reported as a problem. Nothing is removed from a segment with a problem. On a compacted topic, nothing
is removed from the whole partition, because an older value in that segment could become the key's value again. A segment that
retention removes during the search is skipped.

Callable from any thread. Memory: `READ_BYTES` or a larger batch, its records (up to `compression.MAX_BATCH_BYTES`), the offsets
(`offset_set`: `offset_bytes`, checked at every batch), `MAX_KEYS` keys on compacted topics, and digests of `MAX_NEEDLES` values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from diamant.cleaner.evidence.search.needles import is_telling
from diamant.cleaner.evidence.search.offset_order import OffsetOrder
from diamant.cleaner.redaction.hits import Hits
from diamant.cleaner.redaction.json_path import UNDECIDED, YES
from diamant.cleaner.redaction.offset_set import Offsets
from diamant.cleaner.redaction.where import DONE, ChangedRecord
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.segments.txn_index import AbortedTxn

READ_BYTES = 4 * 1024 * 1024
MAX_OFFSET_BYTES = 256 * 1024 * 1024
"""Maximum memory for the offsets in all partitions of a redaction."""
MAX_KEYS = 500_000
MAX_LISTED = 100
"""Maximum number of undecided records that are listed by offset; all others are only counted."""
MAX_KEYS_SEARCHED = 16
"""Maximum number of keys to search for in the bytes of a batch; if there are more, the records of every batch are read."""
_LENGTH_BYTES = 12
"""Maximum number of bytes by which the length fields of a growing record grow."""

Advance = Callable[[int], object]
"""Takes the number of bytes read since the last call. Called in the locating thread."""


class TooManyMatches(StorageError):
    """More records match than fit into memory; nothing was changed."""


class BatchTooLarge(StorageError):
    """A batch might exceed `max.message.bytes` once its records are changed; nothing was changed."""


class SearchedSegment(NamedTuple):
    """A segment to search while cleaning is paused; an active segment is searched up to its present size."""

    base_offset: int
    path: str
    size: int
    aborted: tuple[AbortedTxn, ...] = ()
    """The segment's index of aborted transactions."""


class RecordCondition(Protocol):
    """The interface of `redaction.where.Where`."""

    def examine(self, record: Record) -> tuple[int, ChangedRecord | None]:
        """Return YES, NO, UNDECIDED or DONE, and the record's change; with YES, None means that the record is removed.

        With UNDECIDED, a change has the reason why a matching record cannot be changed.
        """
        ...

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether the verdict on any record in these bytes may be anything but NO."""
        ...


@dataclass(slots=True)
class LocatedRecords:
    """The records to remove or change in one partition, and the counts to report."""

    offsets: dict[int, Offsets] = field(default_factory=dict)
    """Offsets to remove or change, by the base offset of their segment; other segments have no entry."""
    records: int = 0
    """Number of user records below the end in readable segments, including the records of skipped batches."""
    kept: int = 0
    """Number of records not to be removed or changed. Located records do not count as kept, even if an unreadable segment of a
    compacted topic prevents their removal."""
    matched: int = 0
    unchanged: int = 0
    """Number of records that match but need no change."""
    fields: set[str] = field(default_factory=set)
    """The named fields that at least one matching record or its schema has."""
    superseded: int = 0
    undecided: int = 0
    undecided_offsets: list[int] = field(default_factory=list)
    """Offsets of the first `MAX_LISTED` undecided records."""
    unchangeable: int = 0
    """Number of undecided records that match but cannot be changed."""
    unchangeable_offsets: list[int] = field(default_factory=list)
    """Offsets of the first `MAX_LISTED` unchangeable records."""
    unchangeable_reason: str = ""
    """Why the first unchangeable record cannot be changed."""
    problems: list[CorruptLog] = field(default_factory=list)
    """Unreadable places, at most one per segment."""

    def add_undecided(self, offset: int, changed: ChangedRecord | None) -> None:
        """Count an undecided record. `changed`: the change that `examine` returned with the verdict."""
        self.undecided += 1
        if len(self.undecided_offsets) < MAX_LISTED:
            self.undecided_offsets.append(offset)
        if changed is not None:
            self.unchangeable += 1
            self.unchangeable_reason = self.unchangeable_reason or changed.problem
            if len(self.unchangeable_offsets) < MAX_LISTED:
                self.unchangeable_offsets.append(offset)

    @property
    def removed(self) -> int:
        """Number of records to remove or to change."""
        return self.matched + self.superseded

    def has(self, offset: int) -> bool:
        """Tell whether the record at an offset is to be removed or changed."""
        index = bisect_right(bases := list(self.offsets), offset) - 1
        return index >= 0 and self.offsets[bases[index]].has(offset)

    @property
    def nbytes(self) -> int:
        """Memory of the offsets in bytes."""
        return sum(one.nbytes for one in self.offsets.values())


def locate_records(
    env: Env,
    segments: Sequence[SearchedSegment],
    where: RecordCondition,
    below_offset: int,
    *,
    is_compacted: bool,
    offset_bytes: int = MAX_OFFSET_BYTES,
    max_keys: int = MAX_KEYS,
    max_batch_bytes: int | None = None,
    on_lost: Callable[[Record, bytes], object] = lambda _record, _text: None,
    advance: Advance = lambda _count: None,
    check: Callable[[], object] = bool,
    hits: Hits | None = None,
) -> LocatedRecords:
    """Return the records to remove or change in `segments`, which ascend. Blocking.

    `below_offset`: the exclusive end of the search, at most the last stable offset. `hits`: the result of an earlier search,
    which limits this one. `on_lost` receives each record with each distinctive value that it loses. `check` is called regularly;
    it may raise to stop the search. Raises TooManyMatches if the offsets need more than `offset_bytes` of memory or if records of
    more than `max_keys` keys match; BatchTooLarge if a batch might grow beyond `max_batch_bytes`; OSError.
    """
    search = _Search(
        env, segments, where, below_offset, offset_bytes, max_keys, max_batch_bytes, on_lost, advance, check, hits
    )
    search.find_matched(is_compacted=is_compacted)
    if search.newest:
        search.find_superseded()
    found = search.found
    found.kept = found.records - found.removed
    if is_compacted and found.problems:
        found.offsets.clear()
        found.matched = found.superseded = 0
    return found


@dataclass(slots=True)
class _Search:
    """The arguments of `locate_records`, and its results so far."""

    env: Env
    segments: Sequence[SearchedSegment]
    where: RecordCondition
    below: int
    offset_bytes: int
    max_keys: int
    max_batch_bytes: int | None
    on_lost: Callable[[Record, bytes], object]
    advance: Advance
    check: Callable[[], object]
    hits: Hits | None
    outcomes: TransactionOutcomes = field(init=False)
    ends: dict[int, int] = field(init=False)
    """Maps the base offset of a segment to that of the next segment."""
    kept_bytes: int = 0
    """Memory of the offsets of finished segments, in bytes."""
    found: LocatedRecords = field(default_factory=LocatedRecords)
    newest: dict[bytes, int] = field(default_factory=dict)
    """Maps each key to the offset of its newest committed record that matches."""

    def __post_init__(self) -> None:
        self.outcomes = TransactionOutcomes(one for segment in self.segments for one in segment.aborted)
        self.ends = {one.base_offset: following.base_offset for one, following in pairwise(self.segments)}

    def find_matched(self, *, is_compacted: bool) -> None:
        for segment in self.segments:
            offsets = Offsets(segment.base_offset)
            known = self._known_without_match(segment)
            if known is not None:
                self.found.records += known
                self.advance(segment.size)
                continue
            try:
                count = self._find_matched(segment, offsets, is_compacted=is_compacted)
            except CorruptLog as error:
                # The number of records in the segment is unknown, and none of them is removed.
                self.found.problems.append(error)
                continue
            self.found.records += count
            offsets.seal()
            self.found.matched += len(offsets)
            self._keep(offsets)

    def _known_without_match(self, segment: SearchedSegment) -> int | None:
        """Return the number of records in a segment in which an earlier search had no hits; None if it has to be read."""
        end = self.ends.get(segment.base_offset)
        if self.hits is None or end is None or end > self.below or self.hits.may_be_in(segment.base_offset, end - 1):
            return None
        return self.hits.records_in.get((segment.base_offset, segment.size))

    def _find_matched(self, segment: SearchedSegment, offsets: Offsets, *, is_compacted: bool) -> int:
        """Add the matches of a segment; return its number of records."""
        found, examine = self.found, self.where.examine
        count = 0
        for header, records in self._batches(segment, self.below, self.where.may_be_in, self.hits):
            self._check_room(offsets)
            if records is None:
                count += header.record_count
                continue
            is_committed = self.outcomes.of(header) == Outcome.COMMITTED
            growth = 0
            for record in records:
                if record.offset >= self.below:
                    break
                count += 1
                if self.hits is not None and not self.hits.may_be_in(record.offset, record.offset):
                    continue
                verdict, changed = examine(record)
                if verdict == YES:
                    offsets.add(record.offset)
                    growth += self._note_lost(record, changed)
                    if is_compacted and is_committed and record.key is not None:
                        self._note_key(record.key, record.offset)
                elif verdict == DONE:
                    found.unchanged += 1
                    self._note_lost(record, changed)
                elif verdict == UNDECIDED:
                    found.add_undecided(record.offset, changed)
            self._check_size(header, growth)
        return count

    def find_superseded(self) -> None:
        """Add values older than the newest matched record of their key. Keep tombstones for consumers that have such values."""
        if self.found.problems:
            return
        newest = self.newest
        end = max(newest.values())
        keys = list(newest) if len(newest) <= MAX_KEYS_SEARCHED else []

        def may_have_key(payload: bytes) -> bool:
            return not keys or any(key in payload for key in keys)

        for segment in self.segments:
            if segment.base_offset >= end:
                return
            offsets = self.found.offsets.get(segment.base_offset, Offsets(segment.base_offset))
            if segment.base_offset in self.found.offsets:
                self.kept_bytes -= offsets.nbytes
            for _, records in self._batches(segment, end, may_have_key):
                self._check_room(offsets)
                for record in records or ():
                    if record.key is None or record.value is None or record.offset >= newest.get(record.key, -1):
                        continue
                    if not offsets.has(record.offset) and self.where.examine(record)[0] != DONE:
                        offsets.add(record.offset)
                        self.found.superseded += 1
                        self._note_lost(record, None)
            self._keep(offsets)

    def _keep(self, offsets: Offsets) -> None:
        offsets.seal()
        if len(offsets):
            self.found.offsets[offsets.base_offset] = offsets
            self.kept_bytes += offsets.nbytes
        self._check_room(Offsets(offsets.base_offset))

    def _check_room(self, offsets: Offsets) -> None:
        """Raise TooManyMatches if the offsets of a segment and of the segments before it take too much memory."""
        if self.kept_bytes + offsets.nbytes > self.offset_bytes:
            raise TooManyMatches(
                f"more than {self.found.removed + len(offsets):,} records match, which is more than fits into memory"
            )

    def _note_lost(self, record: Record, changed: ChangedRecord | None) -> int:
        """Report the values that a record loses; return an upper bound of the bytes by which it grows, negative if it shrinks."""
        self.found.fields.update(() if changed is None else changed.seen)
        for text in (record.value,) if changed is None else changed.lost:
            if text is not None and is_telling(text):
                self.on_lost(record, text)
        growth = 0 if changed is None else _size(changed.record) - _size(record)
        return growth + _LENGTH_BYTES if growth > 0 else growth

    def _check_size(self, header: BatchHeader, growth: int) -> None:
        """Raise BatchTooLarge if a growing batch might exceed the limit."""
        limit = self.max_batch_bytes
        if limit is not None and growth > 0 and header.size + growth > limit:
            raise BatchTooLarge(
                f"the batch at offset {header.base_offset} has {header.size:,} bytes and would grow by up to {growth:,}, but "
                f"max.message.bytes is {limit:,}: raise it, or use a shorter replacement"
            )

    def _note_key(self, key: bytes, offset: int) -> None:
        self.newest[key] = offset
        if len(self.newest) > self.max_keys:
            raise TooManyMatches(
                f"records of more than {self.max_keys:,} keys match, which is more than fits into memory"
            )

    def _batches(
        self,
        segment: SearchedSegment,
        below_offset: int,
        may_be_in: Callable[[bytes], bool],
        hits: Hits | None = None,
    ) -> Iterator[tuple[BatchHeader, Iterator[Record] | None]]:
        """Yield user batches below an offset with their records, or with None if `may_be_in` or `hits` rules out a match."""
        try:
            file = self.env.open(segment.path, read_only=True)
        except FileNotFoundError:
            return
        order = OffsetOrder(segment.base_offset, segment.base_offset, self.ends.get(segment.base_offset))
        try:
            for chunk in read_chunks(file, 0, segment.size, READ_BYTES):
                for batch in chunk.batches():
                    header = batch.header
                    reason = order.problem(batch.position, header.base_offset, header.last_offset)
                    if reason:
                        raise batch.corrupt(reason)
                    # Reading continues above `below_offset` to verify the order of offsets.
                    if header.base_offset >= below_offset or header.is_control or not header.record_count:
                        continue
                    if hits is not None and not hits.may_be_in(header.base_offset, header.last_offset):
                        yield header, None
                        continue
                    if header.magic < 2:
                        batch.check()
                    is_read = header.magic < 2 or may_be_in(batch.payload())
                    yield header, _records(batch) if is_read else None
                self.advance(chunk.size)
                self.check()
        finally:
            file.close()


def _size(record: Record) -> int:
    """Return the size of the parts of a record that a change affects."""
    return len(record.value or b"") + sum(len(value or b"") for _, value in record.headers)


def _records(batch: ChunkBatch) -> Iterator[Record]:
    """Yield the records of a batch. Raises CorruptLog."""
    first, last = batch.header.base_offset, batch.header.last_offset
    for record in batch.iter_records():
        if not first <= record.offset <= last:
            raise batch.corrupt("a record's offset is not within its batch")
        yield record
