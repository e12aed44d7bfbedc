"""Which keys take the most room, in one pass and in bounded memory.

Exact as long as there are at most `MAX_KEYS` different keys. With more, keys that have little so far are forgotten now and then
and count from 0 when they come again; `missed_bytes` says how much any key may have been short-counted by.

Memory: `MAX_KEYS` keys of at most `MAX_KEY_BYTES` and two numbers each, about 40 MB; longer keys count by their hash and show
their beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from heapq import nlargest
from typing import NamedTuple

from diamant.cleaner.queries.key_census import HASH_BYTES

MAX_KEYS = 100_000
MAX_KEY_BYTES = 128


class TopKey(NamedTuple):
    """A key, or up to `MAX_KEY_BYTES` of a longer one (whole letters if it is UTF-8), and what its records come to."""

    key: bytes
    is_cut: bool
    records: int
    bytes: int
    """Of keys and values, before compression."""


class TopKeys:
    """Counts records and bytes by key."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: dict[tuple[bytes, bytes], list[int]] = {}
        """By the key's beginning, and the hash of a key that is longer: records, bytes."""
        self.missed_bytes = 0

    def add(self, records: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Count records, as their keys, the keys' hashes and how many bytes they have."""
        found = self._found
        for key, key_hash, size in records:
            name = (key, b"") if len(key) <= MAX_KEY_BYTES else (key[:MAX_KEY_BYTES], key_hash[:HASH_BYTES])
            counts = found.get(name)
            if counts is not None:
                counts[0] += 1
                counts[1] += size
                continue
            if len(found) >= MAX_KEYS:
                self._forget()
                found = self._found
            found[name] = [1, size]

    def _forget(self) -> None:
        ascending = sorted(self._found.items(), key=lambda item: item[1][1])
        kept = max(self._count, MAX_KEYS // 2)
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
    """Return the beginning of a text in UTF-8 without the part of a letter at its end; anything else as it is."""
    for end in range(len(data), len(data) - 4, -1):
        with suppress(UnicodeDecodeError):
            data[:end].decode()
            return data[:end]
    return data
