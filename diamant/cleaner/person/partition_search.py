"""Finds a person's records in the files of one partition in one pass, then reads them again one by one and explains them.

    [matches] = find_matches(files, [Seeker(search, known)], ...)        facts about each record, and what they teach
    scans = find_keys(files, matches, ...)                   in compacted logs also the other records with their keys
    for record, found in read_matches(files, matches.records): ...

`record_lines` does the last two steps, and returns the lines of `person show`, which `broker/person/reading.py` describes.

As in a search, the records of a batch are not parsed if its bytes cannot match. `files` is a snapshot of the log's files; it
includes files that the log has released but that are still on the disk.

Callable from any thread. Memory: one batch, and some 400 bytes for each match (at most `MAX_RECORDS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from diamant.cleaner.explain.explainer import Explainer
from diamant.cleaner.explain.explanation import RecordExplanation
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import MAX_OFFSETS, FoundRecord, KeyScan, OpenSegment, found_record
from diamant.cleaner.person.identifiers import (
    IdentifierStep,
    KnownIdentifiers,
    Lesson,
    TopicSearch,
    joined,
    lessons,
    matching,
)
from diamant.cleaner.person.others import SharedIdentifiers, others_in
from diamant.cleaner.person.people_map import TopicRule
from diamant.cleaner.person.places import WHOLE_KEY, Parts
from diamant.cleaner.queries.record_fields import record_fields
from diamant.cleaner.redaction.hits import MAX_HITS, Hits
from diamant.cleaner.redaction.json_path import NO, UNDECIDED, YES
from diamant.cleaner.segments.tolerant_reader import Batch, Problem, SegmentFile, Walk, iter_open_batches
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.cleaner.values.schemas import Values, decoded_fields
from diamant.protocol.batches.batch_records import records_payload
from diamant.protocol.batches.header import CURRENT_MAGIC, Record
from diamant.protocol.errors import CorruptBatch
from diamant.words import counted

MAX_RECORDS = 100_000
"""Maximum number of matching records in one partition."""
MAX_PROBLEMS = 20
_MAX_NEEDLES = 16
"""Maximum number of keys for which a batch's bytes are searched; with more keys, the records of all batches are read."""
_WINDOW_BYTES = 64 * 1024

Check = Callable[[], object]
"""A function that is called for each batch, and raises an exception to stop."""


class TooManyRecords(Exception):
    """More than `MAX_RECORDS` records of a partition match."""


class RecordLessons(NamedTuple):
    """The identifiers that one record teaches."""

    offset: int
    lessons: list[Lesson]


@dataclass(slots=True)
class Matches:
    """The matching records of one partition."""

    records: list[FoundRecord] = field(default_factory=list)
    total: int = 0
    """Number of users' records, including those of batches that were skipped."""
    undecided: int = 0
    taught: list[RecordLessons] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bytes_read: int = 0
    hits: Hits | None = None
    """Hits in the log's current segments; None if there are too many, or if some data could not be read."""

    def add(self, record: FoundRecord, taught: list[Lesson]) -> None:
        """Add a record and the identifiers that it teaches. Raises TooManyRecords."""
        if len(self.records) == MAX_RECORDS:
            raise TooManyRecords
        self.records.append(record)
        if taught:
            self.taught.append(RecordLessons(record.offset, taught))


class Seeker(NamedTuple):
    """A person, and the search for this person's records in the partition."""

    search: TopicSearch
    known: KnownIdentifiers
    skip: Callable[[int], bool] = lambda _: False
    """Tells whether an earlier search has already found the record at an offset."""


def find_matches(
    files: Iterable[OpenSegment],
    seekers: Sequence[Seeker],
    values: Values,
    outcomes: TransactionOutcomes,
    below_offset: int,
    *,
    check: Check = bool,
) -> list[Matches]:
    """Return the matches of each seeker. Every batch is read once for all seekers. Raises TooManyRecords.

    `below_offset`: the log end offset when the files were opened.
    """
    problems: list[str] = []
    all_hits = [Hits(below_offset) for _ in seekers]
    everything = [Matches(problems=problems) for _ in seekers]
    joint = joined([one.search for one in seekers])
    total = bytes_read = 0
    for segment in files:
        before = total
        for batch in _batches(segment, problems, check):
            total += batch.header.record_count
            if batch.header.magic == CURRENT_MAGIC and not _may_match(segment, batch, joint, problems):
                continue
            for record in _records(segment, batch, problems):
                if joint.judge(record) == NO:
                    continue
                for seeker, found, hits in zip(seekers, everything, all_hits, strict=True):
                    verdict = seeker.search.judge(record)
                    if verdict in (YES, UNDECIDED) and not segment.is_removed and len(hits) <= MAX_HITS:
                        hits.add(record.offset)
                    if verdict == UNDECIDED:
                        found.undecided += 1
                    elif verdict == YES and not seeker.skip(record.offset):
                        facts = found_record(record, segment, batch.header, batch.position, outcomes)
                        found.add(facts, lessons(seeker.search.rules, Parts(record, values), seeker.known))
        bytes_read += segment.size
        for hits in () if segment.is_removed else all_hits:
            hits.records_in[segment.base_offset, segment.size] = total - before
    for found, hits in zip(everything, all_hits, strict=True):
        found.total, found.bytes_read = total, bytes_read
        found.hits = None if problems or len(hits) > MAX_HITS else hits
    return everything


def find_shared(
    files: Iterable[OpenSegment],
    people: Sequence[SharedIdentifiers],
    values: Values,
    *,
    check: Check = bool,
) -> None:
    """Pass each record that a search in `people` selects to its `SharedIdentifiers`, which counts the people (`others.py`)."""
    ignored: list[str] = []
    joint = joined([one.search for one in people])
    for segment in files:
        for batch in _batches(segment, ignored, check):
            if batch.header.magic == CURRENT_MAGIC and not _may_match(segment, batch, joint, ignored):
                continue
            for record in _records(segment, batch, ignored):
                if joint.judge(record) == NO:
                    continue
                for one in people:
                    if one.search.judge(record) == YES:
                        one.add(Parts(record, values))


def find_keys(
    files: Iterable[OpenSegment],
    matches: Sequence[FoundRecord],
    outcomes: TransactionOutcomes,
    log_start_offset: int,
    *,
    is_whole: bool,
    check: Check = bool,
) -> Mapping[bytes, KeyScan]:
    """Group the matching records by key, and find the offsets of all records with these keys.

    `is_whole`: True if all records with these keys are among the matches, so that the files need not be read.
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
    """Read the matching records again, one batch at a time. Matches in other files than `files` are left out."""
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
    """Yield the batches of users' records whose checksums are right."""
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


# -- lines -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SearchedTopic:
    """The counts of one topic."""

    matched: int = 0
    total: int = 0
    undecided: int = 0
    problems: list[str] = field(default_factory=list)


class PartitionPlace(NamedTuple):
    """A snapshot of a partition's files, and an explainer for its records."""

    files: Iterable[OpenSegment]
    state: LogState
    outcomes: TransactionOutcomes
    explainer: Explainer


def record_lines(
    place: PartitionPlace,
    found: Sequence[FoundRecord],
    rules: Sequence[TopicRule],
    known: KnownIdentifiers,
    values: Values,
    check: Check = bool,
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield the line of each record, with the size of the record's key and value in bytes."""
    if not found:
        return
    state = place.state
    is_whole = not state.config.is_compacted or all(
        record.key is None or _is_known_key(record.key, rules, known) for record in found
    )
    scans = find_keys(place.files, found, place.outcomes, state.log_start_offset, is_whole=is_whole, check=check)
    for record, facts in read_matches(place.files, found):
        check()
        scan = KeyScan() if facts.key is None else scans[facts.key]
        explained = place.explainer.record(facts, scan)
        yield (
            {
                "kind": "record",
                "topic": state.topic,
                **record_fields(state.partition, record),
                **decoded_fields(record, values),
                **_roles(record, rules, known, values),
                **_explained(explained),
            },
            len(record.key or b"") + len(record.value or b""),
        )


def _is_known_key(key: bytes, rules: Sequence[TopicRule], known: KnownIdentifiers) -> bool:
    """Tell whether the key is an identifier of the person, so that the search finds all its records."""
    text = key.decode(errors="replace")
    return any(known.has(name, text) for rule in rules for name, places in rule.identity.items() if WHOLE_KEY in places)


def _roles(record: Record, rules: Sequence[TopicRule], known: KnownIdentifiers, values: Values) -> Mapping[str, object]:
    parts = Parts(record, values)
    roles = [rule for rule in rules if matching(rule, parts, known)]
    return {
        "by": sorted({name for rule in roles for name in matching(rule, parts, known)}),
        "fields": {place.text: category for rule in rules for place, category in rule.fields.items()},
        "others": [one.text for one in others_in(rules, roles, parts, known)],
        "keep": [
            {"until_ms": rule.keep.until_ms(record.timestamp), "because": rule.keep.because}
            for rule in roles
            if rule.keep is not None
        ],
    }


def _explained(explained: RecordExplanation) -> Mapping[str, object]:
    return {
        "status": explained.status,
        "superseded_by": explained.superseded_by,
        "why": [{"kind": gate.kind, "text": gate.text, "until_ms": gate.until_ms} for gate in explained.gates],
        "until_ms": explained.goes_ms,
        "until_is": explained.bound,
    }


def step_line(step: IdentifierStep) -> Mapping[str, Any]:
    """Return the line for an identifier."""
    name, value = step.identifier
    source = {"topic": step.topic, "partition": step.partition, "offset": step.offset, "by": step.by}
    return {"kind": "identifier", "name": name, "value": value, **source}


def topic_line(topic: str, counts: SearchedTopic, schema_problems: Iterable[str]) -> Mapping[str, Any]:
    """Return the line that ends a topic."""
    problems = list(counts.problems)
    if counts.undecided:
        problems.append(
            f"{counted(counts.undecided, 'undecided record')}: neither JSON nor bytes that a known schema fits, possibly the "
            "person's"
        )
        problems += schema_problems
    return {"kind": "topic", "topic": topic, "records": counts.matched, "of": counts.total, "problems": problems}


def end_line(
    known: KnownIdentifiers, topics: Iterable[SearchedTopic], without_topic: Sequence[str], count: int
) -> Mapping[str, Any]:
    """Return the final line."""
    not_searched = known.not_searched()
    problems = sum(len(one.problems) + one.undecided for one in topics)
    return {
        "kind": "end",
        "records": count,
        "identifiers": len(known.steps),
        "without_topic": list(without_topic),
        "not_searched": [{"topic": name, "identifiers": [*names]} for name, names in not_searched.items()],
        "is_complete": not problems and not not_searched,
    }
