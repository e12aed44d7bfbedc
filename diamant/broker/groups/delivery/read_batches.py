"""Batches just read for a share partition: where they are in files, and which offsets have no record to deliver."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from diamant.broker.groups.share.acquisition import Acquired
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.storage.segments.segment import FileSlice, scan_headers
from diamant.storage.segments.txn_index import AbortedTxn


class ReadBatch(NamedTuple):
    """A batch at a byte `position` in the file of `part`."""

    part: FileSlice
    position: int
    header: BatchHeader


def read_batches(slices: Sequence[FileSlice], offset: int, max_records: int) -> Iterator[ReadBatch]:
    """Yield the batches that begin at most `max_records` after the base offset of the first one, or after `offset` if greater."""
    horizon = -1
    for part in slices:
        for position, header in scan_headers(part.file, part.position, part.position + part.size):
            if horizon < 0:
                horizon = max(offset, header.base_offset) + max_records
            elif header.base_offset > horizon:
                return
            yield ReadBatch(part, position, header)


def slices_of(read: Sequence[ReadBatch], first: int, last: int) -> Iterator[FileSlice]:
    """Yield the file ranges of the batches that overlap the offsets from `first` to `last`."""
    found: FileSlice | None = None
    for part, position, header in read:
        if header.last_offset < first or header.base_offset > last:
            continue
        if found is not None and found.file is part.file and found.position + found.size == position:
            found = found._replace(size=found.size + header.size)
        else:
            if found is not None:
                yield found
            found = FileSlice(part.file, position, header.size)
    if found is not None:
        yield found


def gone(read: Sequence[ReadBatch], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between `first` and `last` whose records were removed by compaction, an erasure or a redaction.

    If `read` is empty, this is the whole range. Otherwise, offsets after the last batch are left out, as they were not read.
    Only batches with fewer records than offsets are decompressed.
    """
    for one in read:
        header = one.header
        for begin, end in _present(one) if header.base_offset <= last else [(header.base_offset, header.base_offset)]:
            if first < begin:
                yield first, min(begin - 1, last)
            first = max(first, end + 1)
            if first > last:
                return
        if first <= header.last_offset:
            yield first, min(header.last_offset, last)
            first = header.last_offset + 1
    if not read:
        yield first, last


def _present(one: ReadBatch) -> Iterator[tuple[int, int]]:
    header = one.header
    if header.record_count == header.last_offset_delta + 1:
        yield header.base_offset, header.last_offset
        return
    try:
        for record in iter_records(one.part.file.pread(header.size, one.position)):
            yield record.offset, record.offset
    except CorruptBatch:
        yield header.base_offset, header.last_offset  # the client will detect the corruption


def aborted_ranges(read: Sequence[ReadBatch], aborted: Sequence[AbortedTxn]) -> Iterator[tuple[int, int]]:
    """Yield the first and last offset of each batch of an aborted transaction."""
    of_producers: dict[int, list[AbortedTxn]] = {}
    for one in sorted(aborted, key=attrgetter("first_offset")):
        of_producers.setdefault(one.producer_id, []).append(one)
    for _, _, header in read:
        first, last = header.base_offset, header.last_offset
        if header.attributes & TRANSACTIONAL_FLAG and not header.attributes & CONTROL_FLAG:
            # The transactions of one producer do not overlap.
            own = of_producers.get(header.producer_id, [])
            index = bisect_right(own, last, key=attrgetter("first_offset")) - 1
            if index >= 0 and first <= own[index].last_offset:
                yield first, last


def without(acquired: Sequence[Acquired], ranges: Sequence[tuple[int, int]]) -> Iterator[Acquired]:
    """Yield the parts of `acquired` that are outside of `ranges`. Both must be ascending."""
    for one in acquired:
        first = one.first
        for begin, end in ranges:
            if end < first or begin > one.last:
                continue
            if first < begin:
                yield one._replace(first=first, last=begin - 1)
            first = end + 1
        if first <= one.last:
            yield one._replace(first=first)
