"""Reads a segment for the sake of its keys, with the compiled loops: what `key_filter` and `segment_facts` keep of it.

For the compiled engine, in whatever process it runs, mode prompt only:

    plan = leave_alone(env, plan, dirty_hashes(map.table))     after the map is built, unless it has spilled
    file_key_facts(env, plan, output)                          for each output before it is handed over, if
                                                               `is_worth_filters(plan)`
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.kernels import fields, offset_map
from diamant.cleaner.prompt.key_filter import MAX_KEYS, KeyFilter, hash_id
from diamant.cleaner.prompt.segment_facts import FactsCollector, KeyFacts, SegmentFacts, file_facts
from diamant.cleaner.segments.key_hasher import KeyHasher
from diamant.cleaner.segments.row_records import RowRecords
from diamant.protocol.batches.header import parse_header
from diamant.storage import names
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.result import OutputSegment
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.storage.env.env import Env, File


def dirty_hashes(table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the first halves of the hashes of all keys in a map's table (`kernels/offset_map.py`)."""
    found: NDArray[np.uint64] = table[table[:, 2] != offset_map.EMPTY, 0]
    return found


def file_key_facts(env: Env, plan: CleanPlan, output: OutputSegment) -> None:
    """Read an output that is about to take its sources' place, and file its facts, with its filter.

    Of a batch that cannot be read here there is nothing to file; to say so is up to the next round.
    """
    path = names.log_file(plan.directory, output.base_offset) + names.CLEANED_SUFFIX
    try:
        facts, key_filter = read_key_facts(env, path, output.base_offset, output.size, plan.hash_key)
    except (CorruptLog, OSError):
        return
    file_facts(env, plan.directory, facts, b"" if key_filter is None else key_filter.to_bytes())


def read_key_facts(
    env: Env, path: str, base_offset: int, size: int, hash_key: bytes
) -> tuple[SegmentFacts, KeyFilter | None]:
    """Return the facts of the segment in `path`, and its filter unless it has too many keys. CorruptLog, OSError."""
    file = env.open(path, read_only=True)
    try:
        records = RowRecords()
        reading = _Reading(file, records, hash_key)
        for chunk in records.chunks(env, path, 0, size):
            reading.add(chunk)
    finally:
        file.close()
    facts = reading.collector.facts(base_offset, size, env.mtime_ms(path), env.birth_ms(path))
    key_filter = reading.filter()
    if key_filter is None:
        return facts, None
    keys = KeyFacts(hash_id(hash_key), len(key_filter.keys), reading.has_keyless, reading.has_unstamped)
    return replace(facts, keys=keys), key_filter


class _Reading:
    """One pass over a segment. Memory: 8 bytes for each key of up to `MAX_KEYS`, twice while they are sorted."""

    def __init__(self, file: File, records: RowRecords, hash_key: bytes) -> None:
        self.collector = FactsCollector()
        self.has_keyless = False
        self.has_unstamped = False
        self._file = file
        self._records = records
        self._hasher = KeyHasher(hash_key)
        self._hashes: list[NDArray[np.uint64]] | None = []
        self._hash_count = 0

    def add(self, chunk: Rows) -> None:
        """Take the batches of a chunk."""
        rows, count = chunk.rows, chunk.count
        attributes = rows[fields.ATTRIBUTES, :count]
        is_data = (rows[fields.MAGIC, :count] == 2) & (attributes & fields.CONTROL == 0)
        rows[fields.STEP, :count] = np.where(is_data, offset_map.MAP, offset_map.SKIP)
        self._hash(chunk)
        # A batch without a note has a tombstone, or something odd.
        is_noted = rows[fields.NOTE, :count] != 0
        has_horizon = attributes & fields.DELETE_HORIZON != 0
        self.has_unstamped |= bool(
            (is_data & ~is_noted & ~has_horizon & (rows[fields.RECORD_COUNT, :count] != 0)).any()
        )
        self._collect(chunk, ~is_data | (rows[fields.RECORD_COUNT, :count] == 0), has_horizon & ~is_noted)

    def filter(self) -> KeyFilter | None:
        """Return the filter of all keys that were read."""
        if self._hashes is None:
            return None
        return KeyFilter.of(np.concatenate(self._hashes) if self._hashes else np.empty(0, np.uint64))

    def _hash(self, chunk: Rows) -> None:
        keyed = 0
        for start, end in self._records.ranges(chunk, 0, chunk.count, offset_map.MAP):
            for count in self._hasher.hash(self._records, chunk, start, end):
                keyed += count
                self._keep(self._hasher.tuples[:count, 0].copy())
        rows = chunk.rows
        is_data = rows[fields.STEP, : chunk.count] == offset_map.MAP
        self.has_keyless |= keyed != int(rows[fields.RECORD_COUNT, : chunk.count][is_data].sum())

    def _keep(self, hashes: NDArray[np.uint64]) -> None:
        if self._hashes is None:
            return
        self._hashes.append(hashes)
        self._hash_count += len(hashes)
        if self._hash_count > MAX_KEYS:
            self._hashes = None

    def _collect(self, chunk: Rows, is_special: NDArray[np.bool_], expires: NDArray[np.bool_]) -> None:
        """Have the collector look at what is not plain data with records, and at the first batch."""
        rows, count = chunk.rows, chunk.count
        data = chunk.data.data
        wanted = is_special | (rows[fields.ATTRIBUTES, :count] & fields.TRANSACTIONAL != 0) | expires
        if chunk.position == 0:
            wanted[0] = True
        for row in np.flatnonzero(wanted).tolist():
            at = int(rows[fields.POSITION, row])
            if rows[fields.MAGIC, row] < 2:
                self.collector.add_old_format()
            else:
                self.collector.add(parse_header(data, at), self._file, chunk.position + at)
