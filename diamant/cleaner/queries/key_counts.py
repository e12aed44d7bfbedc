"""Counts keys: how many there are, how many of their records are the latest, which keys live on several sources.

A source is a partition of one topic. Records are told by source, one source after the other and in offset order, so that
of two equal entries the later one is the newer. A key is known by 128 bits of BLAKE2b under a random key: two keys that
pass for one are as likely as a 128-bit random number guessed right, and cannot be made up by a producer.

    entry, 20 bytes:   8 first half of the hash | 8 second half | 4 source * 2 + (1 for a tombstone)

Memory: `max_bytes`, whatever the number of keys. Entries are gathered, and when the memory is full sorted, and only the
latest of each key and source kept. If that does not make room they go to 16 temporary files by the first 4 bits of the hash,
which are counted one by one, or, where one is too large, split by the next 4. Disk: 20 bytes per key and source, and 20 per
record that came back to a key after it had been written out.

The keys that take the most room are found in one pass and in bounded memory.

Exact as long as there are at most `MAX_KEYS` different keys. With more, keys that have little so far are forgotten now and then
and count from 0 when they come again; `missed_bytes` says how much any key may have been short-counted by.

Memory: `MAX_KEYS` keys of at most `MAX_KEY_BYTES` and two numbers each, about 40 MB; longer keys count by their hash and show
their beginning.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
from collections.abc import Iterable
from contextlib import suppress
from heapq import nlargest

HASH_BYTES = 16
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
_ENTRY = np.dtype([("high", np.uint64), ("low", np.uint64), ("source", np.uint32)])
_WORK_BYTES_PER_ENTRY = 4 * _ENTRY.itemsize
"""The entry, its sorted copy, the order, and the masks."""
_BUCKETS = 16
_MAX_DEPTH = 16
"""Levels of files, 4 bits of the first half of a hash each."""


class KeyCounts(NamedTuple):
    """The counts; each list has a number per source."""

    live: list[int]
    """Keys whose latest record has a value."""
    tombstones: list[int]
    """Keys whose latest record is a tombstone."""
    superseded: list[int]
    """Records that a later one of the same key and source makes obsolete."""
    keys: int
    """Different keys over all sources."""
    shared_keys: int
    """Keys that have a live record on more than one source."""


class KeyCensus:
    """The keys of the sources 0 to `sources` - 1. Use as a context manager: it may have temporary files."""

    def __init__(self, sources: int, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._sources = sources
        self._max_entries = max(1024, max_bytes // _WORK_BYTES_PER_ENTRY)
        self._hasher = blake2b(key=os.urandom(32), digest_size=HASH_BYTES)
        self._superseded = np.zeros(sources, np.int64)
        self._chunks: list[NDArray[np.void]] = []
        self._gathered = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> KeyCensus:
        return self

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    @property
    def has_spilled(self) -> bool:
        """True if memory did not suffice."""
        return self._directory is not None

    def hash(self, key: bytes) -> bytes:
        """Return the 16 bytes by which `key` is known here."""
        hasher = self._hasher.copy()
        hasher.update(key)
        return hasher.digest()

    def add(self, source: int, hashes: Sequence[bytes], tombstones: bytearray) -> None:
        """Count records of `source`: the hashes of their keys, and for each a 1 if it is a tombstone, else a 0.

        Some thousand records at a time are quick.
        """
        entries = np.empty(len(hashes), _ENTRY)
        halves = np.frombuffer(b"".join(hashes), ">u8")
        entries["high"] = halves[0::2]
        entries["low"] = halves[1::2]
        entries["source"] = np.frombuffer(tombstones, np.uint8)
        entries["source"] += source * 2
        self._chunks.append(entries)
        self._gathered += len(entries)
        if self._gathered >= self._max_entries:
            self._make_room()

    def finish(self) -> KeyCounts:
        """Count what was gathered."""
        totals = _Totals(self._sources)
        if self._directory is None:
            totals.add(self._latest(self._take()))
        else:
            self._spill(self._latest(self._take()), self._directory.name)
            self._count_files(self._directory.name, 1, totals)
        return KeyCounts(
            totals.live.tolist(), totals.tombstones.tolist(), self._superseded.tolist(), totals.keys, totals.shared_keys
        )

    def _take(self) -> NDArray[np.void]:
        gathered = np.concatenate(self._chunks) if self._chunks else np.empty(0, _ENTRY)
        self._chunks = []
        self._gathered = 0
        return gathered

    def _make_room(self) -> None:
        latest = self._latest(self._take())
        if len(latest) > self._max_entries // 2:
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="diamant-keys-")
            self._spill(latest, self._directory.name)
        else:
            self._chunks = [latest]
            self._gathered = len(latest)

    def _latest(self, entries: NDArray[np.void]) -> NDArray[np.void]:
        """Return the last entry of each key and source, sorted by key; counts the others as superseded."""
        if not len(entries):
            return entries
        # Stable: equal keys stay in the order in which they came.
        ordered = entries[np.argsort(entries["high"], kind="stable")]
        same_high = ordered["high"][1:] == ordered["high"][:-1]
        if (same_high & (ordered["low"][1:] != ordered["low"][:-1])).any():
            # Two keys with equal first halves, which chance hardly makes: sort by both.
            ordered = entries[np.lexsort((entries["low"], entries["high"]))]
            same_high = ordered["high"][1:] == ordered["high"][:-1]
        source = ordered["source"] >> 1
        is_followed = same_high & (ordered["low"][1:] == ordered["low"][:-1]) & (source[1:] == source[:-1])
        self._superseded += np.bincount(source[:-1][is_followed], minlength=self._sources)
        latest: NDArray[np.void] = ordered[np.append(~is_followed, True)]
        return latest

    def _spill(self, entries: NDArray[np.void], directory: str, depth: int = 0) -> None:
        """Append entries, sorted by key, to the files of `directory` by the 4 bits at `depth` of their hash."""
        bits = (entries["high"] >> np.uint64(4 * (_MAX_DEPTH - 1 - depth))) & np.uint64(_BUCKETS - 1)
        bounds = np.searchsorted(bits, np.arange(_BUCKETS + 1, dtype=np.uint64))
        for bucket in range(_BUCKETS):
            part = entries[bounds[bucket] : bounds[bucket + 1]]
            if len(part):
                with open(f"{directory}/{bucket:x}", "ab") as file:
                    file.write(part.tobytes())

    def _count_files(self, directory: str, depth: int, totals: _Totals) -> None:
        for path in sorted(Path(directory).iterdir()):
            if path.stat().st_size <= self._max_entries * _ENTRY.itemsize or depth == _MAX_DEPTH:
                totals.add(self._latest(np.fromfile(path, _ENTRY)))
                path.unlink()
                continue
            # Sorting each piece by itself already drops what is superseded in it; the rest is spread by the next bits.
            split = f"{path}.split"
            os.mkdir(split)
            with path.open("rb") as file:
                while data := file.read(self._max_entries * _ENTRY.itemsize):
                    self._spill(self._latest(np.frombuffer(data, _ENTRY)), split, depth)
            path.unlink()
            self._count_files(split, depth + 1, totals)


class _Totals:
    """Sums over pieces that have no key in common."""

    def __init__(self, sources: int) -> None:
        self._sources = sources
        self.live = np.zeros(sources, np.int64)
        self.tombstones = np.zeros(sources, np.int64)
        self.keys = 0
        self.shared_keys = 0

    def add(self, latest: NDArray[np.void]) -> None:
        """Count the latest entries of keys, sorted by key."""
        if not len(latest):
            return
        source = latest["source"] >> 1
        is_tombstone = (latest["source"] & 1).astype(bool)
        self.live += np.bincount(source[~is_tombstone], minlength=self._sources)
        self.tombstones += np.bincount(source[is_tombstone], minlength=self._sources)
        is_new_key = np.append(
            True, (latest["high"][1:] != latest["high"][:-1]) | (latest["low"][1:] != latest["low"][:-1])
        )
        starts = np.flatnonzero(is_new_key)
        self.keys += len(starts)
        self.shared_keys += int((np.add.reduceat(~is_tombstone, starts, dtype=np.int64) > 1).sum())


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

    def __init__(self, count: int, *, max_keys: int = MAX_KEYS) -> None:
        self._count = count
        self._max_keys = max_keys
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
            if len(found) >= self._max_keys:
                self._forget()
                found = self._found
            found[name] = [1, size]

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
    """Return the beginning of a text in UTF-8 without the part of a letter at its end; anything else as it is."""
    for end in range(len(data), len(data) - 4, -1):
        with suppress(UnicodeDecodeError):
            data[:end].decode()
            return data[:end]
    return data
