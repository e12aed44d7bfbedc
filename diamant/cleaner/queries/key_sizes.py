"""Sums the sizes of the records of rows by key in a kernel, before `top_keys` counts them."""

from __future__ import annotations

from diamant.cleaner.queries.top_keys import MAX_KEY_BYTES, TopKeys
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import SoundRows
from diamant.kernels.constants.fields import BUFFER_FULL, PAYLOAD_END, PAYLOAD_START, RECORD_COUNT
from diamant.kernels.constants.sizes import BYTES, KEY_END, KEY_START, RECORDS, SIZES

GROUPS = 64 * 1024
"""Keys summed at a time."""
_KEY_BYTES = 4 * 1024 * 1024
_ENTRY_BYTES = 24


class KeySizes:
    """Owned by one thread. Memory: 12 MB; more for a batch whose records or bytes exceed that."""

    def __init__(self, top: TopKeys, key_hash: RandomHash, log_start_offset: int) -> None:
        self._top = top
        self._hash = key_hash
        self._log_start_offset = log_start_offset
        self._count = 0
        """Groups in use."""
        self._used = 0
        """Bytes of their keys."""
        self._make_room(GROUPS, _KEY_BYTES)

    def add_rows(self, rows: SoundRows, row: int, end: int) -> None:
        """Count the records of rows `row` to `end`, which are sound; skips those below the log start."""
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
        """Hand over the sums; to be called at the end."""
        self._top.add(map(self._sizes, range(self._count)))
        self._count = self._used = 0

    def _sizes(self, index: int) -> tuple[bytes, bytes, int, int]:
        groups = self._groups
        key = bytes(self._keys[groups[index, KEY_START] : groups[index, KEY_END]])
        key_hash = self._hash.of(key) if len(key) > MAX_KEY_BYTES else b""
        return key, key_hash, groups[index, RECORDS], groups[index, BYTES]

    def _make_room(self, groups: int, key_bytes: int) -> None:
        """Begin with empty groups."""
        self._groups = memoryview(bytearray(8 * SIZES * groups)).cast("q", (groups, SIZES))
        self._keys = memoryview(bytearray(key_bytes))
        self._table = memoryview(bytearray(2 * groups * _ENTRY_BYTES)).cast("Q", (2 * groups, 3))
        self._count = self._used = 0
