"""The keys of a chunk's rows as tuples of hash and offset (`kernels/offset_map.py`)."""

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
    """Return the two halves of a hash key of 16 bytes, for kernels."""
    return int.from_bytes(hash_key[:8], "little"), int.from_bytes(hash_key[8:16], "little")


class KeyHasher:
    """Hashes the keys of rows in offset order. Owned by one thread.

    With `must_ascend`, batches are refused if the offsets of their records do not ascend up to the batch's last offset.
    """

    def __init__(self, hash_key: bytes, tuples: int = ENGINE_LIMITS.tuples, *, must_ascend: bool = True) -> None:
        self.tuples = numbers("Q", tuples, 3)
        """Two words of hash, and the offset, for each key; overwritten by each step of `hash`."""
        self._k0, self._k1 = hash_words(hash_key)
        self._state = array("q", bytes(8 * STATE_FIELDS))
        self.must_ascend = must_ascend
        self.restart()

    @property
    def last_seen(self) -> int:
        """Offset of the last record, with or without a key; -1 before the first. Later offsets must be greater."""
        return self._state[LAST_SEEN]

    @last_seen.setter
    def last_seen(self, offset: int) -> None:
        self._state[LAST_SEEN] = offset

    @property
    def disordered_row(self) -> int | None:
        """The first row in this call of `hash` whose record offsets do not ascend up to the batch's last offset."""
        return self._state[DISORDERED] - 1 if self._state[DISORDERED] > 0 else None

    def restart(self) -> None:
        """Reset `last_seen`, so that lower offsets may follow."""
        self.last_seen = -1

    def hash(
        self, records: RowRecords, chunk: Rows, start: int, end: int, *, least: int = ALWAYS, end_offset: int = NEVER
    ) -> Iterator[int]:
        """Hash the keys of the rows with step MAP, for offsets from `least` up to but excluding `end_offset`.

        Yields, at least once, the number of `tuples` filled. The records must be ready (`RowRecords.ranges`). Sets the NOTE
        of each row. Raises CorruptLog for unreadable records.
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
