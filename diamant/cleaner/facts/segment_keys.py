"""Reads the keys of a segment with the kernels, for `key_filter` and `segment_facts`.

Used by the compiled engine, in any process, in mode prompt only:

    plan = leave_alone(env, plan, dirty_hashes(map.table, map.size))    after the map is built, unless it has spilled
    file_key_facts(env, plan, output)                                   for each output before it is handed over, if
                                                                        `is_worth_filters(plan)`

Reading takes a quarter of a second of CPU time per GiB, while the output is being synced. Keeping the hashes when records are
written would save a third of that, but then even batches that are copied unread would have to be read. Rounds for an erasure can
avoid reading outputs (`lost_key`).
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.cleaner.facts.facts_file import file_facts
from diamant.cleaner.facts.key_filter import MAX_KEYS, KeyFilter, hash_id
from diamant.cleaner.facts.lost_key import Touched, facts_without_key
from diamant.cleaner.facts.segment_facts import FactsCollector, KeyFacts, SegmentFacts
from diamant.cleaner.rules.result import CheckDone, Throttle, never_done, no_throttle
from diamant.cleaner.segments.key_hasher import KeyHasher
from diamant.cleaner.segments.row_records import RowRecords
from diamant.kernels import key_filter as kernel
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import MAP
from diamant.protocol.batches.header import parse_header
from diamant.storage import names
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.cleaner.facts.filter_making import FactsTask
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.rules.result import OutputSegment
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.storage.env.env import Env, File


def dirty_hashes(table: memoryview[int], size: int) -> array[int]:
    """Return the first halves of the hashes of all `size` keys in a map's table (`kernels/offset_map.py`)."""
    found = array("Q", bytes(8 * size))
    kernel.take_table(table, found)
    return found


def file_key_facts(env: Env, plan: CleanPlan, output: OutputSegment, touched: Touched | None = None) -> None:
    """Read an output that is about to replace its sources, and store its facts with its filter.

    `touched`: the output's source, if its facts may make reading the output unnecessary.

    If a batch cannot be read, nothing is stored; the next round reports the error.
    """
    path = names.log_file(plan.directory, output.base_offset) + names.CLEANED_SUFFIX
    try:
        known = None if touched is None else facts_without_key(env, plan, output, touched)
        facts, key_filter = known or read_key_facts(env, path, output.base_offset, output.size, plan.hash_key)
    except (CorruptLog, OSError):
        return
    file_facts(env, plan.directory, facts, b"" if key_filter is None else key_filter.data)


def file_segment_facts(
    env: Env, task: FactsTask, *, check_done: CheckDone = never_done, throttle: Throttle = no_throttle
) -> None:
    """Read a closed segment, and store its facts with its filter, unless its file was replaced during the read.

    Raises CorruptLog, OSError, and the exceptions of `check_done`.
    """
    path = names.log_file(task.directory, task.base_offset)
    times = env.mtime_ms(path), env.birth_ms(path)
    facts, key_filter = read_key_facts(
        env, path, task.base_offset, task.size, task.hash_key, check_done=check_done, throttle=throttle
    )
    if (facts.modified_ms, facts.birth_ms) == times:
        file_facts(env, task.directory, facts, b"" if key_filter is None else key_filter.data)


def read_key_facts(
    env: Env,
    path: str,
    base_offset: int,
    size: int,
    hash_key: bytes,
    *,
    check_done: CheckDone = never_done,
    throttle: Throttle = no_throttle,
) -> tuple[SegmentFacts, KeyFilter | None]:
    """Return the facts of the segment in `path`, and its filter unless it has too many keys. Raises CorruptLog, OSError.

    `check_done` and `throttle` are called before each chunk, and may raise.
    """
    file = env.open(path, read_only=True)
    try:
        records = RowRecords()
        reading = _Reading(file, records, hash_key)
        for chunk in records.chunks(env, path, 0, size):
            check_done()
            throttle(chunk.size)
            reading.add(chunk)
    finally:
        file.close()
    facts = reading.collector.facts(base_offset, size, env.mtime_ms(path), env.birth_ms(path))
    key_filter = reading.filter()
    if key_filter is None:
        return facts, None
    keys = KeyFacts(hash_id(hash_key), key_filter.key_count, reading.has_keyless, reading.has_unstamped)
    return replace(facts, keys=keys), key_filter


class _Reading:
    """One pass over a segment. Memory: 8 bytes per key, for up to `MAX_KEYS` keys; twice that while they are sorted."""

    def __init__(self, file: File, records: RowRecords, hash_key: bytes) -> None:
        self.collector = FactsCollector()
        self.has_keyless = False
        self.has_unstamped = False
        self._file = file
        self._records = records
        self._hasher = KeyHasher(hash_key, must_ascend=False)
        self._hashes: array[int] | None = array("Q")

    def add(self, chunk: Rows) -> None:
        """Add the batches of a chunk."""
        kernel.choose_data(chunk.rows, chunk.count)
        keyed = self._hash(chunk)
        found = array("q", bytes(8 * chunk.count))
        special, records, has_unstamped = kernel.find_special(chunk.rows, chunk.count, found)
        self.has_keyless |= keyed != records
        self.has_unstamped |= has_unstamped
        rows = found[:special].tolist()
        if chunk.position == 0 and rows[:1] != [0]:
            self._collect(chunk, 0)
        for row in rows:
            self._collect(chunk, row)

    def filter(self) -> KeyFilter | None:
        """Return the filter of all keys read; None if there are too many."""
        return None if self._hashes is None else KeyFilter.of(self._hashes)

    def _hash(self, chunk: Rows) -> int:
        """Add the hashes of the keys of data records; return the number of records with a key."""
        keyed = 0
        for start, end in self._records.ranges(chunk, 0, chunk.count, MAP):
            for count in self._hasher.hash(self._records, chunk, start, end):
                keyed += count
                if self._hashes is not None:
                    taken = array("Q", bytes(8 * count))
                    kernel.take_hashes(self._hasher.tuples, taken)
                    self._hashes.extend(taken)
                    if len(self._hashes) > MAX_KEYS:
                        self._hashes = None
        return keyed

    def _collect(self, chunk: Rows, row: int) -> None:
        """Pass a batch to the collector."""
        at = chunk.rows[fields.POSITION, row]
        if chunk.rows[fields.MAGIC, row] < 2:
            self.collector.add_old_format()
        else:
            self.collector.add(parse_header(chunk.data, at), self._file, chunk.position + at)
