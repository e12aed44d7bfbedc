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
from diamant.cleaner.kernels.records import find_bad_crc
from diamant.cleaner.prompt.key_filter import MAX_KEYS, KeyFilter, hash_id
from diamant.cleaner.prompt.segment_facts import FactsCollector, KeyFacts, SegmentFacts, file_facts
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_reader import ChunkReader, Rows
from diamant.protocol.batches.batch import parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.result import OutputSegment
    from diamant.storage.env.env import Env, File

_TUPLES = 64 * 1024
_ALWAYS = -(2**63)
_NEVER = 2**63 - 1
_MAX_BATCH_BYTES = 256 * 1024 * 1024


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
        reading = _Reading(file, hash_key)
        for chunk in ChunkReader().chunks(file, 0, size):
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

    def __init__(self, file: File, hash_key: bytes) -> None:
        self.collector = FactsCollector()
        self.has_keyless = False
        self.has_unstamped = False
        self._file = file
        self._k0 = np.uint64(int.from_bytes(hash_key[:8], "little"))
        self._k1 = np.uint64(int.from_bytes(hash_key[8:16], "little"))
        self._unpacker = Unpacker()
        self._tuples = np.empty((_TUPLES, 3), np.uint64)
        self._state = np.zeros(offset_map.STATE_FIELDS, np.int64)
        self._state[offset_map.LAST_SEEN] = -1
        self._hashes: list[NDArray[np.uint64]] | None = []
        self._hash_count = 0

    def add(self, chunk: Rows) -> None:
        """Take the batches of a chunk."""
        rows, count = chunk.rows, chunk.count
        attributes = rows[fields.ATTRIBUTES, :count]
        is_data = (rows[fields.MAGIC, :count] == 2) & (attributes & fields.CONTROL == 0)
        rows[fields.STEP, :count] = np.where(is_data, offset_map.MAP, offset_map.SKIP)
        bad = find_bad_crc(chunk.data, rows, 0, count, offset_map.MAP)
        if bad >= 0:
            raise CorruptLog(
                self._file.path, chunk.position + int(rows[fields.POSITION, bad]), "the batch's CRC is wrong"
            )
        self._unpack(chunk)
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

    def _unpack(self, chunk: Rows) -> None:
        rows, count = chunk.rows, chunk.count
        self._unpacker.clear()
        data = chunk.data.data
        packed = (rows[fields.STEP, :count] == offset_map.MAP) & (rows[fields.RECORD_COUNT, :count] != 0)
        packed &= rows[fields.ATTRIBUTES, :count] & fields.CODEC_MASK != 0
        for row in np.flatnonzero(packed).tolist():
            payload = data[rows[fields.PAYLOAD_START, row] : rows[fields.PAYLOAD_END, row]]
            codec = int(rows[fields.ATTRIBUTES, row]) & fields.CODEC_MASK
            try:
                place = self._unpacker.unpack(codec, payload, _MAX_BATCH_BYTES)
            except CorruptBatch as error:
                at = chunk.position + int(rows[fields.POSITION, row])
                raise CorruptLog(self._file.path, at, error.reason) from error
            rows[fields.IS_UNPACKED, row] = 1
            rows[fields.PAYLOAD_START, row], rows[fields.PAYLOAD_END, row] = place

    def _hash(self, chunk: Rows) -> None:
        rows, state = chunk.rows, self._state
        state[offset_map.ROW] = state[offset_map.PLACE] = 0
        keyed = 0
        while True:
            fault, count = offset_map.hash_records(
                chunk.data,
                self._unpacker.buffer,
                rows,
                chunk.count,
                state,
                self._tuples,
                self._k0,
                self._k1,
                _ALWAYS,
                _NEVER,
            )
            if fault in (fields.CORRUPT, fields.OUT_OF_ORDER):
                at = chunk.position + int(rows[fields.POSITION, int(state[offset_map.ROW])])
                raise CorruptLog(self._file.path, at, "the records cannot be read")
            keyed += count
            self._keep(self._tuples[:count, 0].copy())
            if fault == fields.NO_FAULT:
                break
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
