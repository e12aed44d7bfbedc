"""Checks, without a round, whether the dirty part of a log supersedes anything. If all its keys are new, it does not.

The check reads the keys of the dirty part, and then each clean segment that may contain one of them; filters (`key_filter`)
exclude the others. It finds the oldest of these:

    a dirty record with the key of an earlier record    the earlier one is superseded
    a dirty tombstone
    a dirty record without a key, or a marker of an aborted transaction: a round removes these, or the transaction's records

Bounds: `max_bytes` to read, `max_keys` keys in memory with a total of `MAX_KEY_BYTES`, and `MAX_BATCH_BYTES` per decompressed
batch; if one is exceeded, the result is unknown. With more than `MAX_FILTERED_KEYS` keys, filters are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diamant.cleaner.facts.key_filter import cannot_hold
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.protocol.batches.control import ControlType, parse_control_type
from diamant.protocol.batches.header import CURRENT_MAGIC, BatchHeader, Record
from diamant.protocol.errors import DecompressionBomb
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog

MAX_KEY_BYTES = 16 * 1024 * 1024
MAX_FILTERED_KEYS = 10_000
MAX_BATCH_BYTES = 16 * 1024 * 1024
BUFFER_BYTES = 1024 * 1024


class BoundExceeded(Exception):
    """A bound was exceeded."""


@dataclass(frozen=True, slots=True)
class LookedAtSegment:
    """A segment as it was when the check began."""

    base_offset: int
    path: str
    size: int
    first_append_ms: int
    """Time of the first append to the segment, or an earlier time."""
    last_append_ms: int
    """Time of the last append to the segment. Later timestamps count as this time, so that they make no record younger."""


@dataclass(frozen=True, slots=True)
class LookPlan:
    """The segments to examine, ascending."""

    directory: str
    segments: Sequence[LookedAtSegment]
    first_dirty_offset: int
    log_start_offset: int
    timestamp_ahead_ms: int
    """Maximum time by which a record's timestamp may be later than its append."""
    hash_key: bytes
    max_bytes: int
    max_keys: int


@dataclass(frozen=True, slots=True)
class LookReport:
    """The result of the check."""

    oldest_ms: int | None
    """Time since which something could have been removed, or an earlier time; None if there is nothing to remove."""
    bytes_read: int


def look(env: Env, plan: LookPlan) -> LookReport:
    """Check a log. Callable from any thread. Raises BoundExceeded, CorruptLog, and OSError if a segment has been removed."""
    return _Look(env, plan).report()


class _Look:
    def __init__(self, env: Env, plan: LookPlan) -> None:
        self._env = env
        self._plan = plan
        self._bytes = 0
        self._key_bytes = 0
        self._since: dict[bytes, int] = {}
        """Maps each key of the dirty part to the append time of its first record there."""
        self._found: list[int] = []

    def report(self) -> LookReport:
        plan = self._plan
        ends = [looked_at.base_offset for looked_at in plan.segments[1:]]
        append_ms = 0
        for index, segment in enumerate(plan.segments):
            if index < len(ends) and ends[index] <= plan.first_dirty_offset:
                continue
            append_ms = max(append_ms, segment.first_append_ms)
            for header, record in self._records(segment):
                if record.offset >= plan.first_dirty_offset:
                    append_ms = max(append_ms, min(self._append_ms(header, record), segment.last_append_ms))
                    self._note_dirty(header, record, append_ms)
        for segment in plan.segments:
            if segment.base_offset >= plan.first_dirty_offset or self._cannot_hold_any(segment):
                continue
            for header, record in self._records(segment):
                if record.offset < plan.first_dirty_offset and not header.is_control and record.key in self._since:
                    self._found.append(self._since[record.key])
        return LookReport(min(self._found, default=None), self._bytes)

    def _note_dirty(self, header: BatchHeader, record: Record, append_ms: int) -> None:
        if header.is_control:
            if parse_control_type(record.key) == ControlType.ABORT:
                self._found.append(append_ms)
            return
        key = record.key
        if key is None or record.value is None or key in self._since:
            self._found.append(append_ms)
        if key is not None and key not in self._since:
            self._key_bytes += len(key)
            if len(self._since) >= self._plan.max_keys or self._key_bytes > MAX_KEY_BYTES:
                raise BoundExceeded("too many keys")
            self._since[key] = append_ms

    def _append_ms(self, header: BatchHeader, record: Record) -> int:
        if header.is_log_append_time:
            return header.max_timestamp
        return record.timestamp - self._plan.timestamp_ahead_ms

    def _records(self, segment: LookedAtSegment) -> Iterator[tuple[BatchHeader, Record]]:
        self._bytes += segment.size
        if self._bytes > self._plan.max_bytes:
            raise BoundExceeded(f"more than {self._plan.max_bytes} bytes to read")
        file = self._env.open(segment.path, read_only=True)
        try:
            for chunk in read_chunks(file, 0, segment.size, BUFFER_BYTES):
                for batch in chunk.batches(MAX_BATCH_BYTES):
                    batch.check()
                    if batch.header.magic == CURRENT_MAGIC and not batch.header.record_count:
                        continue
                    if batch.header.is_control:
                        batch.control_type()  # CorruptLog if it cannot be read
                    for record in batch.iter_records():
                        if record.offset >= self._plan.log_start_offset:
                            yield batch.header, record
        except CorruptLog as error:
            if isinstance(error.__cause__, DecompressionBomb):
                raise BoundExceeded("a large batch") from None
            raise
        finally:
            file.close()

    def _cannot_hold_any(self, segment: LookedAtSegment) -> bool:
        if not self._since:
            return True
        if len(self._since) > MAX_FILTERED_KEYS:
            return False
        return cannot_hold(self._env, segment.path, segment.base_offset, segment.size, self._since, self._plan.hash_key)
