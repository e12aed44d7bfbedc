"""The largest keys by the bytes of their records, found in one pass and in bounded memory.

Exact up to `MAX_KEYS` different keys. With more, small keys are forgotten from time to time and count from 0 when they
come again; `missed_bytes` bounds the undercount of any key.

Memory: `MAX_KEYS` keys of at most `MAX_KEY_BYTES` and two numbers each, about 40 MB; longer keys are counted by their hash and
shown by their beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from heapq import nlargest
from typing import NamedTuple

MAX_KEYS = 100_000
MAX_KEY_BYTES = 128


class TopKey(NamedTuple):
    """A key, or up to `MAX_KEY_BYTES` of a longer one (whole letters if it is UTF-8), and the totals of its records."""

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
        """From the key's beginning and the hash of a longer key to records and bytes."""
        self.missed_bytes = 0

    def add(self, sizes: Iterable[tuple[bytes, bytes, int, int]]) -> None:
        """Add sizes: keys, the keys' hashes, their numbers of records and of bytes."""
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
    """Return a UTF-8 text without an incomplete letter at its end; other bytes unchanged."""
    for end in range(len(data), len(data) - 4, -1):
        with suppress(UnicodeDecodeError):
            data[:end].decode()
            return data[:end]
    return data
