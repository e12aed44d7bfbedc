"""Finds records in the partitions of a log directory: `diamant log find` without the printing.

The latest record of a key is known only after the whole partition has been read, so the partition's matches are returned then,
in offset order. Until then they are in a temporary file, and memory has only the latest offset of each matched key: `max_keys`
keys, some 200 bytes each. If more keys match, the rest of the partition is read in further passes. Keys are identified by 128-bit
hashes with a random secret.

A kernel picks the relevant records: records of the key, or records with a string that every match of the pattern contains, and
later records of the same keys. If there is no such string, the pattern is tried on every record.
"""

from __future__ import annotations

import pickle
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

from diamant.cleaner.explain import explanation
from diamant.cleaner.explain.record_picker import RecordPicker
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import SoundRows
from diamant.cleaner.segments.tolerant_reader import Advance, Batch, PartitionFiles, Problem, Report
from diamant.cleaner.segments.transaction_outcomes import DecidedBatches, Outcome
from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants.fields import STEP
from diamant.kernels.constants.picking import WATCHED, WITH_KEY, WITH_TEXT
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env

DEFAULT_MAX_KEYS = 500_000
_SPOOL_BYTES = 16 * 1024 * 1024
"""Size up to which the matches are kept in memory instead of in a file."""

_LEAST_NEEDLE_BYTES = 3
"""Shorter strings occur nearly everywhere, so searching for them would exclude too few batches."""
_PART = re.compile(rb"\[\^?\]?(?:\\.|[^\]\\])*\]|\{[^}]*\}|\\x..|\\[0-9]{1,3}|\\.|.", re.DOTALL)
"""A token of a regular expression: a set, a repetition, an escape, or a single byte."""


@dataclass(frozen=True, slots=True)
class Query:
    """A search for the records of a key, or for a regular expression in keys, values and headers."""

    key: bytes | None = None
    pattern: re.Pattern[bytes] | None = None

    def __post_init__(self) -> None:
        if (self.key is None) == (self.pattern is None):
            raise ValueError("expected either a key or a pattern")

    def places(self, record: Record) -> tuple[str, ...]:
        """Return the places in the record that match (`key`, `value`, `header NAME`); empty for most records."""
        if self.key is not None:
            return ("key",) if record.key == self.key else ()
        assert self.pattern is not None
        search = self.pattern.search
        found = []
        if record.key is not None and search(record.key):
            found.append("key")
        if record.value is not None and search(record.value):
            found.append("value")
        for name, value in record.headers:
            if search(name.encode(errors="surrogateescape")) or (value is not None and search(value)):
                found.append(f"header {name if name.isprintable() else ascii(name)}")
        return tuple(found)

    @property
    def needle(self) -> bytes:
        """Bytes that every match contains; empty if none are known."""
        if self.key is not None:
            return self.key
        assert self.pattern is not None
        return b"" if self.pattern.flags else text_in(self.pattern.pattern)


@dataclass(frozen=True, slots=True)
class Match:
    """One matching record."""

    topic: str
    partition: int
    offset: int
    segment: str
    """Path of the `.log` file."""
    position: int
    """Position of the record's batch in that file."""
    timestamp: int
    key: bytes | None
    places: tuple[str, ...]
    """Matching places: `key`, `value`, `header NAME`."""
    status: str
    """`live`, `superseded`, `tombstone` (the latest of its key), `aborted`, `undecided` (its transaction is open),
    `keyless` or `below log start`."""


def find_records(
    env: Env,
    partition: PartitionFiles,
    query: Query,
    report: Report,
    advance: Advance | None = None,
    *,
    max_keys: int = DEFAULT_MAX_KEYS,
    is_compiled: bool = ARE_COMPILED,
) -> Iterator[Match]:
    """Yield the matches in one partition in offset order. Damage is passed to `report`."""
    start: int | None = partition.segments[0].base_offset if partition.segments else None
    while start is not None:
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES, prefix="diamant-find-") as spool:
            round_ = _Round(env, partition, query, start, max_keys, spool, is_compiled=is_compiled)
            start = round_.read(report, advance)
            yield from round_.matches()
        # Later passes read the same bytes, so they report neither problems nor progress.
        report, advance = _nowhere, None


class _Round:
    """One pass: finds the matches from an offset on until too many keys match; then it only follows the keys found so far."""

    def __init__(
        self,
        env: Env,
        partition: PartitionFiles,
        query: Query,
        start: int,
        max_keys: int,
        spool: IO[bytes],
        *,
        is_compiled: bool,
    ) -> None:
        self._env = env
        self._query = query
        self._needle = query.needle
        self._start = start
        self._next_start: int | None = None
        self._max_keys = max_keys
        self._spool = spool
        self._found = 0
        is_compiled = is_compiled and (query.key is not None or bool(self._needle))
        mode = WITH_TEXT if query.key is None else WITH_KEY
        self._picker = RecordPicker(mode, self._needle) if is_compiled else None
        self._hash = RandomHash(is_compiled=False) if self._picker is None else self._picker.hash
        self._latest: dict[bytes, int] = {}
        """Maps the hash of each matched key to twice the offset of its latest record, plus 1 if that is a tombstone."""
        self._partition = replace(
            partition,
            segments=tuple(
                segment
                for segment, following in zip(partition.segments, (*partition.segments[1:], None), strict=True)
                if following is None or following.base_offset > start
            ),
        )

    def read(self, report: Report, advance: Advance | None) -> int | None:
        """Read the partition. Return the offset at which the next pass starts; None if no other pass is needed."""
        is_compiled = self._picker is not None
        for segment, piece, outcome in DecidedBatches(
            self._env, self._partition, report, advance, is_compiled=is_compiled
        ):
            if isinstance(piece, SoundRows):
                self._look_at_rows(piece, segment.path, report)
            else:
                self._look_at_batch(piece, segment.path, outcome, report)
        return self._next_start

    def matches(self) -> Iterator[Match]:
        """Yield the matches."""
        self._spool.seek(0)
        for _ in range(self._found):
            match, hashed = pickle.load(self._spool)  # noqa: S301  (an unlinked file of this process)
            yield match if hashed is None else replace(match, status=self._status(match.offset, hashed))

    def _look_at_rows(self, rows: SoundRows, path: str, report: Report) -> None:
        assert self._picker is not None
        for row, record in self._picker.pick(rows, self._start):
            outcome = Outcome(int(rows.chunk.rows[STEP, row]))
            if record is None:
                self._look_at_batch(rows.batch(row), path, outcome, report)
            elif record.offset >= self._start:
                self._look_at(record, path, rows.position(row), outcome)

    def _look_at_batch(self, batch: Batch, path: str, outcome: Outcome, report: Report) -> None:
        header = batch.header
        if header.is_control or header.last_offset < self._start or not header.record_count:
            return
        try:
            # Later records of a matched key count even if they do not match the pattern.
            needle = b"" if self._query.pattern is not None and self._latest else self._needle
            if batch.may_have(needle):
                for record in batch.records():
                    if record.offset >= self._start:
                        self._look_at(record, path, batch.position, outcome)
        except CorruptBatch as error:
            report(Problem(path, batch.position, f"records of the batch: {error.reason}"))

    def _look_at(self, record: Record, path: str, position: int, outcome: Outcome) -> None:
        offset, timestamp, key, value, _, _ = record
        is_committed = outcome == Outcome.COMMITTED and offset >= self._partition.log_start_offset
        places = () if self._next_start is not None else self._query.places(record)
        hashed = None
        if key is not None and is_committed and (places or self._latest):
            hashed = self._hash.of(key)
            if hashed in self._latest:
                self._latest[hashed] = offset * 2 + (value is None)
            elif places:
                if len(self._latest) >= self._max_keys:
                    self._next_start = offset
                    if self._picker is not None and self._picker.mode == WITH_TEXT:
                        self._picker.mode = WATCHED
                    return
                self._latest[hashed] = offset * 2 + (value is None)
                if self._picker is not None:
                    self._picker.watch((hashed,))
        if places:
            partition = self._partition
            status = _status_without_key(offset < partition.log_start_offset, outcome)
            match = Match(partition.topic, partition.partition, offset, path, position, timestamp, key, places, status)
            pickle.dump((match, hashed), self._spool)
            self._found += 1

    def _status(self, offset: int, hashed: bytes) -> str:
        latest = self._latest[hashed]
        if offset < latest >> 1:
            return explanation.IS_SUPERSEDED
        return explanation.IS_TOMBSTONE if latest & 1 else explanation.IS_LIVE


def text_in(pattern: bytes) -> bytes:
    """Return the longest string that is easily found and that every match of a regular expression without flags contains.

    Groups are ignored. The result is empty if there is no such string, or only one so short that it occurs nearly everywhere.
    """
    longest = text = b""
    depth = 0
    for part in _PART.findall(b"" if b"(?#" in pattern else pattern):
        if part == b"|" and not depth:
            return b""
        is_literal = part not in b".^$|()*+?" if len(part) == 1 else part[:1] == b"\\" and not part[1:].isalnum()
        if is_literal and not depth:
            text += part[-1:]
        else:
            # With a `*`, `?` or `{`, the last byte may occur zero times.
            longest = max(longest, text[:-1] if part[:1] in b"*?{" else text, key=len)
            text = b""
        depth += (part == b"(") - (part == b")")
    longest = max(longest, text, key=len)
    return longest if len(longest) >= _LEAST_NEEDLE_BYTES or longest == pattern else b""


def _status_without_key(is_below_log_start: bool, outcome: Outcome) -> str:
    """Return the status of a match that is not a committed record with a key."""
    if is_below_log_start:
        return explanation.IS_BELOW_LOG_START
    if outcome == Outcome.ABORTED:
        return explanation.IS_ABORTED
    return explanation.IS_UNDECIDED if outcome == Outcome.OPEN else explanation.IS_KEYLESS


def _nowhere(problem: Problem) -> None:
    """Discard a problem, because the first pass reported it."""
