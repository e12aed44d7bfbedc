"""A person's records in the files of one partition: found in one pass, read again one by one, explained.

    matches = find_matches(files, search, known, ...)        facts about each record, and what they teach
    scans = find_keys(files, matches, ...)                   compacted logs: the other records of their keys
    for record, found in read_matches(files, matches.records): ...

Batches whose bytes cannot match are not read further, as in a search. The files are those of one moment: they include files that
the log has released, which are still on the disk.

Any thread. Memory: one batch, and some 400 bytes for each of `MAX_RECORDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from diamant.cleaner.explain.scans import MAX_OFFSETS, FoundRecord, KeyScan, OpenSegment, found_record
from diamant.cleaner.person.identifiers import KnownIdentifiers, Lesson, TopicSearch, lessons
from diamant.cleaner.person.places import Parts
from diamant.cleaner.redaction.hits import MAX_HITS, Hits
from diamant.cleaner.redaction.where import UNDECIDED, YES
from diamant.cleaner.segments.tolerant_reader import Batch, Problem, SegmentFile, Walk, iter_open_batches
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.cleaner.values.schemas import Values
from diamant.protocol.batches.batch_records import records_payload
from diamant.protocol.batches.header import CURRENT_MAGIC, Record
from diamant.protocol.errors import CorruptBatch

MAX_RECORDS = 100_000
"""Limit of the matching records of one partition."""
MAX_PROBLEMS = 20
_MAX_NEEDLES = 16
"""Limit of keys for which a batch is searched before its records are read."""
_WINDOW_BYTES = 64 * 1024

Check = Callable[[], object]
"""Called for each batch; raises to stop."""


class TooManyRecords(Exception):
    """More than `MAX_RECORDS` records of a partition match."""


class RecordLessons(NamedTuple):
    """What one record teaches."""

    offset: int
    lessons: list[Lesson]


@dataclass(slots=True)
class Matches:
    """The matching records of one partition."""

    records: list[FoundRecord] = field(default_factory=list)
    total: int = 0
    """Users' records that were read or skipped."""
    undecided: int = 0
    taught: list[RecordLessons] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bytes_read: int = 0
    hits: Hits | None = None
    """Of the log's own records; None if they are too many, or if not everything could be read."""


def find_matches(
    files: Iterable[OpenSegment],
    search: TopicSearch,
    known: KnownIdentifiers,
    values: Values,
    outcomes: TransactionOutcomes,
    below_offset: int,
    *,
    skip: Callable[[int], bool] = lambda _: False,
    check: Check = bool,
) -> Matches:
    """Return the records that a search selects. `skip`: tells of an offset that it was found before. TooManyRecords.

    `below_offset`: the end of the log when the files were opened.
    """
    found, hits = Matches(), Hits(below_offset)
    for segment in files:
        total = found.total
        for batch in _batches(segment, found.problems, check):
            found.total += batch.header.record_count
            if batch.header.magic == CURRENT_MAGIC and not _may_match(segment, batch, search, found.problems):
                continue
            for record in _records(segment, batch, found.problems):
                verdict = search.judge(record)
                if verdict in (YES, UNDECIDED) and not segment.is_removed and len(hits) <= MAX_HITS:
                    hits.add(record.offset)
                if verdict == UNDECIDED:
                    found.undecided += 1
                elif verdict == YES and not skip(record.offset):
                    if len(found.records) == MAX_RECORDS:
                        raise TooManyRecords
                    found.records.append(found_record(record, segment, batch.header, batch.position, outcomes))
                    taught = lessons(search.rules, Parts(record, values), known)
                    if taught:
                        found.taught.append(RecordLessons(record.offset, taught))
        found.bytes_read += segment.size
        if not segment.is_removed:
            hits.records_in[segment.base_offset, segment.size] = found.total - total
    if not found.problems and len(hits) <= MAX_HITS:
        found.hits = hits
    return found


def find_keys(
    files: Iterable[OpenSegment],
    matches: Sequence[FoundRecord],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    is_whole: bool,
    check: Check = bool,
) -> Mapping[bytes, KeyScan]:
    """Return the matching records by key, with the offsets of all records of these keys.

    `is_whole`: the matches are all records of their keys, so the files need not be read.
    """
    scans: dict[bytes, KeyScan] = {}
    for one in matches:
        if one.key is not None:
            scan = scans.setdefault(one.key, KeyScan())
            scan.records.append(one)
            if is_whole:
                _add_offset(scan, one.offset, one.outcome, log_start_offset, is_removed=one.is_removed)
    if is_whole or not scans:
        return scans
    first = min(one.offset for one in matches)
    needles = list(scans) if len(scans) <= _MAX_NEEDLES else []
    ignored: list[str] = []
    for segment in files:
        for batch in _batches(segment, ignored, check):
            if batch.header.last_offset < first or (needles and not any(map(batch.may_have, needles))):
                continue
            for record in _records(segment, batch, ignored):
                if record.key in scans:
                    scan = scans[record.key]
                    outcome = outcomes.of(batch.header)
                    _add_offset(scan, record.offset, outcome, log_start_offset, is_removed=segment.is_removed)
    return scans


def read_matches(files: Iterable[OpenSegment], matches: Sequence[FoundRecord]) -> Iterator[tuple[Record, FoundRecord]]:
    """Read the matching records again, one batch at a time; those of a file that has left the disk are missing."""
    for segment in files:
        of_segment: dict[int, dict[int, FoundRecord]] = {}
        for one in matches:
            if one.segment == segment.base_offset and one.is_removed == segment.is_removed:
                of_segment.setdefault(one.position, {})[one.offset] = one
        for position in sorted(of_segment):
            wanted = of_segment[position]
            file = SegmentFile(segment.path, segment.base_offset, segment.size)
            walk = Walk(segment.file, file, segment.size, lambda _: None, None, _WINDOW_BYTES)
            walk.position = position
            for batch in walk.batches(position + 1):
                for record in _records(segment, batch, []):
                    if record.offset in wanted:
                        yield record, wanted[record.offset]


def _add_offset(scan: KeyScan, offset: int, outcome: Outcome, log_start_offset: int, *, is_removed: bool) -> None:
    if is_removed or outcome != Outcome.COMMITTED or offset < log_start_offset:
        return
    if len(scan.offsets) < MAX_OFFSETS:
        scan.offsets.append(offset)
    else:
        scan.offsets[-1] = offset


def _batches(segment: OpenSegment, problems: list[str], check: Check) -> Iterator[Batch]:
    """Yield the sound batches with users' records."""
    file = SegmentFile(segment.path, segment.base_offset, segment.size)
    for batch in iter_open_batches(segment.file, file, segment.size, partial(_add_problem, problems)):
        check()
        if batch.crc_is_valid and not batch.header.is_control and batch.header.record_count:
            yield batch


def _may_match(segment: OpenSegment, batch: Batch, search: TopicSearch, problems: list[str]) -> bool:
    try:
        return search.may_be_in(records_payload(batch.buffer, batch.at, batch.header))
    except CorruptBatch as error:
        _add_problem(problems, Problem(segment.path, batch.position, f"records of the batch: {error.reason}"))
        return False


def _records(segment: OpenSegment, batch: Batch, problems: list[str]) -> Iterator[Record]:
    try:
        yield from batch.records()
    except CorruptBatch as error:
        _add_problem(problems, Problem(segment.path, batch.position, f"records of the batch: {error.reason}"))


def _add_problem(problems: list[str], problem: Problem) -> None:
    if len(problems) < MAX_PROBLEMS:
        problems.append(str(problem))
