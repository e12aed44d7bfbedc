"""Counts the records of a partition, in batches of any kind, and collects its keys for a census.

A kernel counts the records of rows. Python code in this module counts single batches, and rows that the kernel rejects; it
reports faults.
"""

from __future__ import annotations

from typing import Protocol

from diamant.cleaner.queries.key_tables import ENTRY, Numbers, entries_in, entries_of
from diamant.cleaner.queries.top_keys import MAX_KEY_BYTES, KeySizes, TopKeys
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import Piece, SoundRows
from diamant.cleaner.segments.tolerant_reader import Batch, Problem, Report
from diamant.cleaner.segments.transaction_outcomes import Outcome
from diamant.kernels.constants import counts
from diamant.kernels.constants.fields import BUFFER_FULL, CORRUPT, RECORD_COUNT, STEP
from diamant.protocol.errors import CorruptBatch

_AT_ONCE = 8192
"""Number of entries passed to the census at a time."""


class Census(Protocol):
    """A receiver of keys: a `KeyCensus`, or a proxy for one."""

    @property
    def hash(self) -> RandomHash:
        """The hash that identifies keys."""
        ...

    def put(self, entries: Numbers, count: int) -> None:
        """Take the first `count` entries (`key_tables`)."""
        ...


class RecordCounter:
    """Counts records of one partition. Memory: 200 kB, or 24 bytes per record of a batch with more than `_AT_ONCE` records."""

    def __init__(
        self, census: Census, source: int, log_start_offset: int, report: Report, top: TopKeys | None = None
    ) -> None:
        """`source`: the number of the partition in the census."""
        self.sums = memoryview(bytearray(8 * counts.COUNTS)).cast("q")
        """The counts, indexed as in `kernels.constants.counts`."""
        self._census = census
        self._source = source
        self._log_start_offset = log_start_offset
        self._report = report
        self._top = top
        self._sizes = None if top is None else KeySizes(top, census.hash, log_start_offset)
        self._entries = entries_in(bytearray(_AT_ONCE * ENTRY.size))
        self._entry_count = 0
        self._hashes: list[bytes] = []
        self._tombstones = bytearray()

    def add(self, path: str, piece: Piece, outcome: Outcome) -> None:
        """Count records of one batch, or of rows with outcomes in STEP. A damaged batch is reported and not counted."""
        if isinstance(piece, SoundRows):
            self._add_rows(path, piece)
        else:
            self._add_batch(path, piece, outcome)

    def finish(self) -> None:
        """Pass on all collected keys and sizes. Must be called at the end."""
        self._flush()
        if self._sizes is not None:
            self._sizes.flush()

    def kinds(self, *, with_deleted: bool = False) -> Kinds:
        """Return the counts, except those of the census. `with_deleted` includes records below the log start."""
        sums = self.sums
        below = 0 if with_deleted else sums[counts.BELOW_LOG_START]
        return Kinds(
            records=sums[counts.RECORDS] - below,
            aborted=sums[counts.ABORTED],
            undecided=sums[counts.UNDECIDED],
            keyless=sums[counts.KEYLESS],
            below_log_start=sums[counts.BELOW_LOG_START] - below,
            markers=sums[counts.MARKERS],
        )

    def _flush(self) -> None:
        """Pass the collected keys to the census."""
        if self._entry_count:
            self._census.put(self._entries, self._entry_count)
            self._entry_count = 0
        if self._hashes:
            self._census.put(entries_of(self._source, self._hashes, self._tombstones), len(self._hashes))
            self._hashes.clear()
            self._tombstones.clear()

    def _add_rows(self, path: str, piece: SoundRows) -> None:
        from diamant.kernels.counting import count_records

        if self._hashes:
            self._flush()
        chunk, row = piece.chunk, piece.first
        while (first := row) < piece.end:
            fault, row, self._entry_count = count_records(
                chunk.data,
                piece.unpacked,
                chunk.rows,
                row,
                piece.end,
                self._log_start_offset,
                *self._census.hash.words,
                self._source,
                self._entries,
                self._entry_count,
                self.sums,
            )
            if self._sizes is not None:
                self._sizes.add_rows(piece, first, row)
            if fault == BUFFER_FULL:
                self._flush()
                count = int(chunk.rows[RECORD_COUNT, row])
                if count > len(self._entries):
                    self._entries = entries_in(bytearray(count * ENTRY.size))
            elif fault == CORRUPT:
                self._add_batch(path, piece.batch(row), Outcome(int(chunk.rows[STEP, row])))
                row += 1

    def _add_batch(self, path: str, batch: Batch, outcome: Outcome) -> None:
        if self._entry_count:
            self._flush()
        header, sums = batch.header, self.sums
        count = max(0, header.record_count)
        is_below = header.last_offset < self._log_start_offset
        if header.is_control:
            sums[counts.MARKERS] += 0 if is_below else count
        elif is_below:
            sums[counts.RECORDS] += count
            sums[counts.BELOW_LOG_START] += count
        elif header.record_count:
            try:
                self._add_records(batch, outcome)
            except CorruptBatch as error:
                self._report(Problem(path, batch.position, f"records of the batch: {error.reason}"))

    def _add_records(self, batch: Batch, outcome: Outcome) -> None:
        records = below_log_start = keyless = 0
        hashes = []
        tombstones = bytearray()
        hash_key = self._census.hash.of
        top = self._top
        sizes = []
        for offset, _, key, value, _, _ in batch.records():
            records += 1
            if offset < self._log_start_offset:
                below_log_start += 1
                continue
            if top is not None and key is not None:
                key_hash = hash_key(key) if len(key) > MAX_KEY_BYTES else b""
                sizes.append((key, key_hash, 1, len(key) + (0 if value is None else len(value))))
            if outcome:
                pass
            elif key is None:
                keyless += 1
            else:
                hashes.append(hash_key(key))
                tombstones.append(value is None)
        sums = self.sums
        sums[counts.RECORDS] += records
        sums[counts.BELOW_LOG_START] += below_log_start
        sums[counts.KEYLESS] += keyless
        if outcome:
            sums[counts.ABORTED if outcome == Outcome.ABORTED else counts.UNDECIDED] += records - below_log_start
        self._hashes += hashes
        self._tombstones += tombstones
        if len(self._hashes) >= _AT_ONCE:
            self._flush()
        if top is not None:
            top.add(sizes)
