"""Picks the relevant records from rows with a kernel.

    for row, record in picker.pick(rows):       record is None if the plain reader must read the row's batch

Memory: 100 kB, or 24 bytes for each record of one larger batch; 32 to 64 bytes for each watched key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import SoundRows
from diamant.kernels.constants.fields import BUFFER_FULL, CORRUPT, RECORD_COUNT
from diamant.kernels.constants.picking import WITH_KEY
from diamant.protocol.batches.header import Record

_FIRST_SLOTS = 4096
_PICKED_AT_ONCE = 4096
_ENTRY_BYTES = 24


class RecordPicker:
    """A picker, owned by one thread; see the module."""

    def __init__(self, mode: int, wanted: bytes = b"") -> None:
        self.mode = mode
        """One of the modes in `kernels.constants.picking`."""
        self.hash = RandomHash(is_compiled=True)
        self.watched = 0
        """Number of watched keys: keys given to `watch`, and keys of picked records."""
        self._wanted = wanted
        self._table = _slots(_FIRST_SLOTS)
        self._picked = _places(_PICKED_AT_ONCE)

    def pick(self, rows: SoundRows, least_offset: int = 0) -> Iterator[tuple[int, Record | None]]:
        """Yield rows with the records picked from them, for batches that end at `least_offset` or above; None: see the module."""
        from diamant.kernels.picking import pick_records

        chunk, row = rows.chunk, rows.first
        while row < rows.end:
            fault, row, count, self.watched = pick_records(
                chunk.data,
                rows.unpacked,
                chunk.rows,
                row,
                rows.end,
                least_offset,
                self._wanted,
                self.mode,
                *self.hash.words,
                self._table,
                self.watched,
                self._picked,
            )
            picked = self._picked
            for index in range(count):
                yield picked[index, 0], rows.record(picked[index, 0], picked[index, 1], picked[index, 2])
            if fault == BUFFER_FULL:
                self._make_room(int(chunk.rows[RECORD_COUNT, row]))
            elif fault == CORRUPT:
                yield row, None
                row += 1

    def watch(self, hashes: Iterable[bytes]) -> None:
        """Also pick later records of the keys with these hashes. No effect in mode WITH_KEY."""
        from diamant.kernels.offset_map import put_tuples

        if self.mode == WITH_KEY:
            return
        for hashed in hashes:
            self._make_room(1)
            entry = memoryview(hashed + bytes(8)).cast("Q", (1, 3))
            _, self.watched = put_tuples(self._table, self.watched, len(self._table), entry, 0, 1)

    def watch_only(self, hashes: Iterable[bytes]) -> None:
        """Stop watching all keys except those with these hashes."""
        self._table = _slots(_FIRST_SLOTS)
        self.watched = 0
        self.watch(hashes)

    def _make_room(self, count: int) -> None:
        """Make room for `count` records and their keys."""
        from diamant.kernels.offset_map import move_slots

        if count > len(self._picked):
            self._picked = _places(count)
        while self.watched + count > len(self._table) * 3 // 4:
            larger = _slots(2 * len(self._table))
            move_slots(self._table, 0, len(self._table), larger)
            self._table = larger


def _slots(count: int) -> memoryview[int]:
    return memoryview(bytearray(_ENTRY_BYTES * count)).cast("Q", (count, 3))


def _places(count: int) -> memoryview[int]:
    return memoryview(bytearray(_ENTRY_BYTES * count)).cast("q", (count, 3))
