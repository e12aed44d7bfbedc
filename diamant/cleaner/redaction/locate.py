"""Finds the records of a partition that a redaction is to remove.

    matched       the records of users, below the offset where the redaction ends, that `where` means; committed, aborted, all
    superseded    compacted topics only: older values of a key whose newest matched record is committed, so that none of them is
                  the key's value again once that one is gone. Newer ones that do not match stay

One pass over the decompressed bytes of all batches; records are read only where what is looked for may be. For
`superseded` another one, up to the newest matched record. Every batch's checksum is verified, and that offsets ascend:
what cannot be read is a problem, never nothing. From a segment with a problem nothing goes; on a compacted topic
nothing of the whole partition, as an older value in there could be the key's value again. A segment that retention
removes during this is passed over.

Any thread. Memory: `READ_BYTES` or one larger batch, what it decompresses to (`compression.MAX_BATCH_BYTES` at most), the offsets
(`offset_set`: `offset_bytes`, looked at after every `READ_BYTES`), `MAX_KEYS` keys on compacted topics, and digests of
`MAX_NEEDLES` values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from diamant.cleaner.evidence.search.needles import is_telling
from diamant.cleaner.evidence.search.offset_order import OffsetOrder
from diamant.cleaner.redaction.offset_set import Offsets
from diamant.cleaner.redaction.where import UNDECIDED, YES
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.segments.txn_index import AbortedTxn

READ_BYTES = 4 * 1024 * 1024
MAX_OFFSET_BYTES = 256 * 1024 * 1024
"""Of all partitions of a redaction together."""
MAX_KEYS = 500_000
MAX_LISTED = 100
"""Undecided records that are listed by their offsets; further ones are counted."""
MAX_KEYS_SEARCHED = 16
"""Up to so many keys a batch is searched for them before its records are read."""

Advance = Callable[[int], object]
"""Is told of bytes read, each time. In the thread that locates."""


class TooManyMatches(StorageError):
    """More records match than can be remembered; nothing was changed."""


class SearchedSegment(NamedTuple):
    """One segment as it is while cleaning is paused; an active one up to its size now."""

    base_offset: int
    path: str
    size: int
    aborted: tuple[AbortedTxn, ...] = ()
    """Its index of aborted transactions."""


class Meant(Protocol):
    """The interface of `redaction.where.Where`."""

    def judge(self, record: Record) -> int:
        """Return YES, NO or UNDECIDED."""
        ...

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether any record in these bytes may be judged other than NO."""
        ...


@dataclass(slots=True)
class LocatedRecords:
    """The records to remove from one partition, and the facts to report about it."""

    offsets: dict[int, Offsets] = field(default_factory=dict)
    """By base offset of the segment; only segments of which something goes."""
    records: int = 0
    """Records of users below the end, in segments that can be read; those of batches that were passed over among them."""
    kept: int = 0
    """Those of them that stay: they do not match, cannot be decided, or are no older values either. What goes although something
    else cannot be read counts as gone here, even on a compacted topic."""
    matched: int = 0
    superseded: int = 0
    undecided: int = 0
    undecided_offsets: list[int] = field(default_factory=list)
    """The first `MAX_LISTED` of them."""
    problems: list[CorruptLog] = field(default_factory=list)
    """Unreadable places, one for each segment at most."""

    @property
    def removed(self) -> int:
        """Number of records that go."""
        return self.matched + self.superseded

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the offsets take."""
        return sum(one.nbytes for one in self.offsets.values())


def locate_records(
    env: Env,
    segments: Sequence[SearchedSegment],
    where: Meant,
    below_offset: int,
    *,
    is_compacted: bool,
    offset_bytes: int = MAX_OFFSET_BYTES,
    max_keys: int = MAX_KEYS,
    on_value: Callable[[bytes], object] = lambda _value: None,
    advance: Advance = lambda _count: None,
    check: Callable[[], object] = bool,
) -> LocatedRecords:
    """Return what is to go of the segments, ascending, below an offset that no transaction has open. Blocks.

    `offset_bytes`: what the offsets found may take of memory, beyond which, or beyond `max_keys`, there are TooManyMatches.
    `on_value` gets each value that goes and is telling; `check` is called now and then, to raise what ends the search. OSError.
    """
    search = _Search(env, segments, where, below_offset, offset_bytes, max_keys, on_value, advance, check)
    search.find_matched(is_compacted=is_compacted)
    if search.newest:
        search.find_superseded()
    found = search.found
    found.kept = found.records - found.removed
    if is_compacted and found.problems:
        found.offsets.clear()
        found.matched = found.superseded = 0
    return found


class _Search:
    def __init__(
        self,
        env: Env,
        segments: Sequence[SearchedSegment],
        where: Meant,
        below_offset: int,
        offset_bytes: int,
        max_keys: int,
        on_value: Callable[[bytes], object],
        advance: Advance,
        check: Callable[[], object],
    ) -> None:
        self._env = env
        self._segments = segments
        self._where = where
        self._below = below_offset
        self._offset_bytes = offset_bytes
        self._max_keys = max_keys
        self._kept_bytes = 0
        """Memory of the offsets of segments that were finished."""
        self._on_value = on_value
        self._advance = advance
        self._check = check
        self._outcomes = TransactionOutcomes(one for segment in segments for one in segment.aborted)
        self._ends = {one.base_offset: following.base_offset for one, following in pairwise(segments)}
        """By base offset of a segment that of the next one."""
        self.found = LocatedRecords()
        self.newest: dict[bytes, int] = {}
        """Key to its newest record that matches and is committed."""

    def find_matched(self, *, is_compacted: bool) -> None:
        for segment in self._segments:
            offsets = Offsets(segment.base_offset)
            try:
                count = self._find_matched(segment, offsets, is_compacted=is_compacted)
            except CorruptLog as error:
                # Its number of records is unknown, and none of them goes.
                self.found.problems.append(error)
                continue
            self.found.records += count
            offsets.seal()
            self.found.matched += len(offsets)
            self._keep(offsets)

    def _find_matched(self, segment: SearchedSegment, offsets: Offsets, *, is_compacted: bool) -> int:
        """Add what matches of a segment; return how many records it has."""
        found, judge = self.found, self._where.judge
        count = 0
        for header, records in self._batches(segment, self._below, self._where.may_be_in):
            self._check_room(offsets)
            if records is None:
                count += header.record_count
                continue
            is_committed = self._outcomes.of(header) == Outcome.COMMITTED
            for record in records:
                if record.offset >= self._below:
                    break
                count += 1
                verdict = judge(record)
                if verdict == YES:
                    offsets.add(record.offset)
                    self._note_value(record)
                    if is_compacted and is_committed and record.key is not None:
                        self._note_key(record.key, record.offset)
                elif verdict == UNDECIDED:
                    found.undecided += 1
                    if len(found.undecided_offsets) < MAX_LISTED:
                        found.undecided_offsets.append(record.offset)
        return count

    def find_superseded(self) -> None:
        """Add the values below the newest matched ones of their keys; tombstones stay, for those who have the values still."""
        if self.found.problems:
            return
        newest = self.newest
        end = max(newest.values())
        keys = list(newest) if len(newest) <= MAX_KEYS_SEARCHED else []

        def may_have_key(payload: bytes) -> bool:
            return not keys or any(key in payload for key in keys)

        for segment in self._segments:
            if segment.base_offset >= end:
                return
            offsets = self.found.offsets.get(segment.base_offset, Offsets(segment.base_offset))
            if segment.base_offset in self.found.offsets:
                self._kept_bytes -= offsets.nbytes
            for _, records in self._batches(segment, end, may_have_key):
                self._check_room(offsets)
                for record in records or ():
                    if record.key is None or record.value is None or record.offset >= newest.get(record.key, -1):
                        continue
                    if not offsets.has(record.offset):
                        offsets.add(record.offset)
                        self.found.superseded += 1
                        self._note_value(record)
            self._keep(offsets)

    def _keep(self, offsets: Offsets) -> None:
        offsets.seal()
        if len(offsets):
            self.found.offsets[offsets.base_offset] = offsets
            self._kept_bytes += offsets.nbytes
        self._check_room(Offsets(offsets.base_offset))

    def _check_room(self, offsets: Offsets) -> None:
        """Raise TooManyMatches if the offsets of a segment, with those of the segments before, take too much memory."""
        if self._kept_bytes + offsets.nbytes > self._offset_bytes:
            raise TooManyMatches(
                f"more than {self.found.removed + len(offsets):,} records match, which is more than can be remembered"
            )

    def _note_value(self, record: Record) -> None:
        if record.value is not None and is_telling(record.value):
            self._on_value(record.value)

    def _note_key(self, key: bytes, offset: int) -> None:
        self.newest[key] = offset
        if len(self.newest) > self._max_keys:
            raise TooManyMatches(
                f"records of more than {self._max_keys:,} keys match, which is more than can be remembered"
            )

    def _batches(
        self, segment: SearchedSegment, below_offset: int, may_be_in: Callable[[bytes], bool]
    ) -> Iterator[tuple[BatchHeader, Iterator[Record] | None]]:
        """Yield the batches of users below an offset with their records; None for those that `may_be_in` passes over."""
        try:
            file = self._env.open(segment.path, read_only=True)
        except FileNotFoundError:
            return
        order = OffsetOrder(segment.base_offset, segment.base_offset, self._ends.get(segment.base_offset))
        try:
            for chunk in read_chunks(file, 0, segment.size, READ_BYTES):
                for batch in chunk.batches():
                    header = batch.header
                    reason = order.problem(batch.position, header.base_offset, header.last_offset)
                    if reason:
                        raise batch.corrupt(reason)
                    # What is above is read on: it tells whether what is below is where its offsets say.
                    if header.base_offset >= below_offset or header.is_control or not header.record_count:
                        continue
                    if header.magic < 2:
                        batch.check()
                    is_read = header.magic < 2 or may_be_in(batch.payload())
                    yield header, _records(batch) if is_read else None
                self._advance(chunk.size)
                self._check()
        finally:
            file.close()


def _records(batch: ChunkBatch) -> Iterator[Record]:
    """Yield the records. CorruptLog."""
    first, last = batch.header.base_offset, batch.header.last_offset
    for record in batch.iter_records():
        if not first <= record.offset <= last:
            raise batch.corrupt("a record's offset is not within its batch")
        yield record
