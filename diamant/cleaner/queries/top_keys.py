"""Finds the keys whose records have the most bytes, in one pass and in bounded memory.

Counts are exact up to `MAX_KEYS` different keys. With more keys, small keys are discarded from time to time, and counted from 0
if they occur again; `missed_bytes` bounds the undercount of any key.

Memory: `MAX_KEYS` keys of at most `MAX_KEY_BYTES` and two numbers each, about 40 MB. Longer keys are identified by their hash,
and only their beginning is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from heapq import nlargest
from typing import NamedTuple

from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import SoundRows
from diamant.kernels.constants.fields import BUFFER_FULL, PAYLOAD_END, PAYLOAD_START, RECORD_COUNT
from diamant.kernels.constants.sizes import BYTES, KEY_END, KEY_START, RECORDS, SIZES

MAX_KEYS = 100_000
MAX_KEY_BYTES = 128
GROUPS = 64 * 1024
"""Maximum number of keys summed at a time."""
_KEY_BYTES = 4 * 1024 * 1024
_ENTRY_BYTES = 24


class KeySizes:
    """Sums the sizes of the records in rows by key, in a kernel, for `TopKeys`. Owned by one thread.

    Memory: 12 MB; more for a batch whose records or bytes exceed that.
    """

    def __init__(self, top: TopKeys, key_hash: RandomHash, log_start_offset: int) -> None:
        self._top = top
        self._hash = key_hash
        self._log_start_offset = log_start_offset
        self._count = 0
        """Number of groups in use, one for each key."""
        self._used = 0
        """Number of bytes that the keys of these groups take."""
        self._make_room(GROUPS, _KEY_BYTES)

    def add_rows(self, rows: SoundRows, row: int, end: int) -> None:
        """Count the records of sound rows from `row` to `end`, except records below the log start."""
        from diamant.kernels.sizing import sum_sizes

        chunk = rows.chunk
        while row < end:
            fault, row, self._count, self._used = sum_sizes(
                chunk.data,
                rows.unpacked,
                chunk.rows,
                row,
                end,
                self._log_start_offset,
                *self._hash.words,
                self._table,
                self._groups,
                self._count,
                self._keys,
                self._used,
            )
            if fault == BUFFER_FULL:
                self.flush()
                records = int(chunk.rows[RECORD_COUNT, row])
                size = int(chunk.rows[PAYLOAD_END, row] - chunk.rows[PAYLOAD_START, row])
                self._make_room(max(records, len(self._groups)), max(size, len(self._keys)))

    def flush(self) -> None:
        """Pass the sums to `TopKeys`. Must be called at the end."""
        self._top.add(map(self._sizes, range(self._count)))
        self._count = self._used = 0

    def _sizes(self, index: int) -> tuple[bytes, bytes, int, int]:
        groups = self._groups
        key = bytes(self._keys[groups[index, KEY_START] : groups[index, KEY_END]])
        key_hash = self._hash.of(key) if len(key) > MAX_KEY_BYTES else b""
        return key, key_hash, groups[index, RECORDS], groups[index, BYTES]

    def _make_room(self, groups: int, key_bytes: int) -> None:
        """Allocate this many groups and bytes for keys, all unused."""
        self._groups = memoryview(bytearray(8 * SIZES * groups)).cast("q", (groups, SIZES))
        self._keys = memoryview(bytearray(key_bytes))
        self._table = memoryview(bytearray(2 * groups * _ENTRY_BYTES)).cast("Q", (2 * groups, 3))
        self._count = self._used = 0


class TopKey(NamedTuple):
    """A key, or up to `MAX_KEY_BYTES` of a longer key (whole characters if it is UTF-8), and the totals of its records."""

    key: bytes
    is_cut: bool
    records: int
    bytes: int
    """Size of keys and values, before compression."""


class TopKeys:
    """Counts records and bytes by key."""

    def __init__(self, count: int, *, max_keys: int = MAX_KEYS) -> None:
        self._count = count
        self._max_keys = max_keys
        self._found: dict[tuple[bytes, bytes], list[int]] = {}
        """Maps a key's first `MAX_KEY_BYTES` bytes, and its hash if it is longer, to the numbers of its records and bytes."""
        self.missed_bytes = 0

    def add(self, sizes: Iterable[tuple[bytes, bytes, int, int]]) -> None:
        """Add sizes, one per key: the key, its hash (empty if the key is short), the number of its records, and their bytes."""
        found = self._found
        for key, key_hash, records, size in sizes:
            name = (key, b"") if len(key) <= MAX_KEY_BYTES else (key[:MAX_KEY_BYTES], key_hash)
            counts = found.get(name)
            if counts is not None:
                counts[0] += records
                counts[1] += size
                continue
            if len(found) >= self._max_keys:
                self._forget()
                found = self._found
            found[name] = [records, size]

    def _forget(self) -> None:
        ascending = sorted(self._found.items(), key=lambda item: item[1][1])
        kept = max(self._count, self._max_keys // 2)
        self.missed_bytes += ascending[-kept - 1][1][1]
        self._found = dict(ascending[-kept:])

    def top(self) -> tuple[TopKey, ...]:
        """Return the keys with the most bytes, the largest first."""
        largest = nlargest(self._count, self._found.items(), key=lambda item: (item[1][1], item[1][0], item[0]))
        return tuple(
            TopKey(_whole_letters(key) if rest else key, bool(rest), records, size)
            for (key, rest), (records, size) in largest
        )


def _whole_letters(data: bytes) -> bytes:
    """Return UTF-8 without an incomplete character at its end; return other bytes unchanged."""
    for end in range(len(data), len(data) - 4, -1):
        with suppress(UnicodeDecodeError):
            data[:end].decode()
            return data[:end]
    return data
