"""The keys of a chunk's rows as tuples of hash and offset (`kernels/offset_map.py`)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diamant.cleaner.rules.engine_limits import ENGINE_LIMITS
from diamant.kernels import numbers, offset_map
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import LAST_SEEN, PLACE, ROW, STATE_FIELDS

if TYPE_CHECKING:
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.segments.row_records import RowRecords

NEVER = 2**63 - 1
"""Greater than any offset."""
ALWAYS = -(2**63)
"""Lower than any offset."""


def hash_words(hash_key: bytes) -> tuple[int, int]:
    """Return the two halves of a hash key of 16 bytes, as kernels take them."""
    return int.from_bytes(hash_key[:8], "little"), int.from_bytes(hash_key[8:16], "little")


class KeyHasher:
    """Owned by one thread; rows come in the order of their offsets."""

    def __init__(self, hash_key: bytes, tuples: int = ENGINE_LIMITS.tuples) -> None:
        self.tuples = numbers("Q", tuples, 3)
        """Overwritten by each step of `hash`: two words of hash, and the offset."""
        self._k0, self._k1 = hash_words(hash_key)
        self._state = array("q", bytes(8 * STATE_FIELDS))
        self.restart()

    @property
    def last_seen(self) -> int:
        """Offset of the last record, whether it has a key or not; -1 before the first. What follows must lie above it."""
        return self._state[LAST_SEEN]

    @last_seen.setter
    def last_seen(self, offset: int) -> None:
        self._state[LAST_SEEN] = offset

    def restart(self) -> None:
        """Begin with lower offsets again."""
        self.last_seen = -1

    def hash(
        self, records: RowRecords, chunk: Rows, start: int, end: int, *, least: int = ALWAYS, end_offset: int = NEVER
    ) -> Iterator[int]:
        """Hash the keys of the rows with step MAP whose offsets are `least` or more and below `end_offset`.

        Yields, once at least, how many `tuples` there are. The records must be ready (`RowRecords.ranges`); each row
        gets its NOTE. CorruptLog for records that cannot be read.
        """
        state = self._state
        state[ROW] = start
        state[PLACE] = 0
        while True:
            fault, count = offset_map.hash_records(
                chunk.data, records.unpacked, chunk.rows, end, state, self.tuples, self._k0, self._k1, least, end_offset
            )
            if fault in (fields.CORRUPT, fields.OUT_OF_ORDER):
                records.fail(chunk, state[ROW])
            yield count
            if fault == fields.NO_FAULT:
                return
