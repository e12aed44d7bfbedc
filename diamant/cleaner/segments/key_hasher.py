"""Converts the keys of a chunk's rows to tuples of hash and offset (`kernels/offset_map.py`)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.kernels import numbers, offset_map
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import ACCEPTED, DISORDERED, LAST_SEEN, PLACE, ROW, STATE_FIELDS

if TYPE_CHECKING:
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.segments.row_records import RowRecords

NEVER = 2**63 - 1
"""A number greater than any offset."""
ALWAYS = -(2**63)
"""A number less than any offset."""


def hash_words(hash_key: bytes) -> tuple[int, int]:
    """Return the two halves of a 16-byte hash key as the integers that kernels take."""
    return int.from_bytes(hash_key[:8], "little"), int.from_bytes(hash_key[8:16], "little")


class KeyHasher:
    """Hashes the keys of rows in offset order. Owned by one thread.

    With `must_ascend`, `hash` fails if record offsets do not ascend, or lie outside their batch's range of offsets or inside that
    of an earlier batch.
    """

    def __init__(self, hash_key: bytes, tuples: int = ENGINE_LIMITS.tuples, *, must_ascend: bool = True) -> None:
        self.tuples = numbers("Q", tuples, 3)
        """uint64[tuples, 3]: two words of hash, and the offset, for each key. Each step of `hash` overwrites them."""
        self._k0, self._k1 = hash_words(hash_key)
        self._state = array("q", bytes(8 * STATE_FIELDS))
        self.must_ascend = must_ascend
        self.restart()

    @property
    def last_seen(self) -> int:
        """Greatest offset so far, of records and of batches; -1 before the first. Later records must have greater offsets."""
        return self._state[LAST_SEEN]

    @last_seen.setter
    def last_seen(self, offset: int) -> None:
        self._state[LAST_SEEN] = offset

    @property
    def disordered_row(self) -> int | None:
        """The first row in this call of `hash` with such offsets if they are accepted; else None."""
        return self._state[DISORDERED] - 1 if self._state[DISORDERED] > 0 else None

    def restart(self) -> None:
        """Reset `last_seen`, so that lower offsets may follow."""
        self.last_seen = -1

    def hash(
        self, records: RowRecords, chunk: Rows, start: int, end: int, *, least: int = ALWAYS, end_offset: int = NEVER
    ) -> Iterator[int]:
        """Hash the keys in the rows with step MAP that have offsets from `least` up to but excluding `end_offset`.

        Yields the number of filled `tuples` whenever they are full, and at the end. `RowRecords.ranges` must have prepared the
        records. Sets the NOTE of each row. Raises CorruptLog for unreadable records.
        """
        state = self._state
        state[ROW] = start
        state[PLACE] = 0
        state[DISORDERED] = 0 if self.must_ascend else ACCEPTED
        while True:
            fault, count = offset_map.hash_records(
                chunk.data, records.unpacked, chunk.rows, end, state, self.tuples, self._k0, self._k1, least, end_offset
            )
            if fault in (fields.CORRUPT, fields.OUT_OF_ORDER):
                records.fail(chunk, state[ROW])
            yield count
            if fault == fields.NO_FAULT:
                return
