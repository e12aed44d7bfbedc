"""Writes a partition as quickly as the disk takes it: one batch of records is built, and its keys, offsets and CRC vary.

Uncompressed batches of 64 records with keys of 16 bytes (`key-` and a number), closed segments with offset indexes, and an empty
active one. A log written for the largest size serves for all smaller ones: their segments are its first ones (`linked_prefix`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from diamant.protocol.batches.header import HEADER_SIZE, Record
from diamant.protocol.batches.records import build_batch

START_MS = 1_700_000_000_000
BATCH_RECORDS = 64
"""As many as have offset deltas of one byte: so all records of a log have the same size."""
BATCHES_AT_ONCE = 512
KEY_PREFIX = b"key-"
KEY_DIGITS = 12

Keys = Callable[[int, int], NDArray[np.int64]]
"""From a first offset and a count to as many numbers of keys."""


def overwritten_keys(seed: int = 2, records_per_key: int = 10) -> Keys:
    """Return keys at random, of which there are a tenth as many as records, wherever the log is cut off."""
    rng = np.random.default_rng(seed)
    return lambda first, count: rng.integers(0, max(1000, (first + count) // records_per_key), count)


def distinct_keys(total: int, seed: int = 3) -> Keys:
    """Return each of `total` keys once, and then any of them again."""
    rng = np.random.default_rng(seed)

    def keys(first: int, count: int) -> NDArray[np.int64]:
        numbers = np.arange(first, first + count)
        again = numbers >= total
        numbers[again] = rng.integers(0, total, int(again.sum()))
        return numbers

    return keys


class LogWriter:
    """Writes segments of about `segment_bytes` into a new partition directory."""

    def __init__(self, directory: Path, value_bytes: int, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        value = np.random.default_rng(1).integers(0, 256, value_bytes, np.uint8).tobytes()
        key = KEY_PREFIX + b"0" * KEY_DIGITS
        built = build_batch(
            [Record(index, START_MS, key, value) for index in range(BATCH_RECORDS)], base_offset=0, leader_epoch=0
        )
        self.batch_bytes = len(built)
        self.record_bytes = self.batch_bytes / BATCH_RECORDS
        self._batches = np.repeat(np.frombuffer(bytes(built), np.uint8)[None, :], BATCHES_AT_ONCE, axis=0)
        records = self._batches[:, HEADER_SIZE:].reshape(BATCHES_AT_ONCE, BATCH_RECORDS, -1)
        at = bytes(built).index(key) - HEADER_SIZE + len(KEY_PREFIX)
        self._digits = records[:, :, at : at + KEY_DIGITS]
        self._four_digits = np.array([list(b"%04d" % number) for number in range(10_000)], np.uint8)

    def write(self, records: int, keys: Keys) -> int:
        """Write the log; how many records it has: `records`, or a few more."""
        self._directory.mkdir(parents=True)
        offset = 0
        while offset < records:
            base, position = offset, 0
            with self._create(base, ".log") as log, self._create(base, ".index") as index:
                while position < self._segment_bytes and offset < records:
                    self._fill(offset, keys)
                    log.write(self._batches.data)
                    index.write(self._index_entries(base, offset, position))
                    position += self._batches.nbytes
                    offset += BATCH_RECORDS * BATCHES_AT_ONCE
            self._create(base, ".timeindex").close()
        make_active(self._directory, offset)
        return offset

    def _create(self, base: int, suffix: str) -> BinaryIO:
        return (self._directory / f"{base:020d}{suffix}").open("xb")

    def _fill(self, offset: int, keys: Keys) -> None:
        """Give the batches at hand the offsets from `offset` on, and their keys."""
        numbers = keys(offset, BATCH_RECORDS * BATCHES_AT_ONCE).reshape(BATCHES_AT_ONCE, BATCH_RECORDS)
        for place, divisor in ((0, 10**8), (4, 10**4), (8, 1)):
            self._digits[:, :, place : place + 4] = self._four_digits[numbers // divisor % 10_000]
        offsets = offset + BATCH_RECORDS * np.arange(BATCHES_AT_ONCE, dtype=np.int64)
        self._batches[:, :8] = offsets.astype(">i8")[:, None].view(np.uint8)
        crcs = np.array([crc32c(batch[21:].data) for batch in self._batches], ">u4")
        self._batches[:, 17:21] = crcs[:, None].view(np.uint8)

    def _index_entries(self, base: int, offset: int, position: int) -> bytes:
        """Return an entry for each batch but a segment's first: its last offset, and where it begins."""
        numbers = np.arange(0 if position else 1, BATCHES_AT_ONCE)
        entries = np.empty((len(numbers), 2), ">i4")
        entries[:, 0] = offset - base + BATCH_RECORDS * (numbers + 1) - 1
        entries[:, 1] = position + numbers * self.batch_bytes
        return entries.tobytes()


def make_active(directory: Path, base: int) -> None:
    """Make the empty segment at the end."""
    for suffix in (".log", ".index", ".timeindex"):
        (directory / f"{base:020d}{suffix}").touch()


def log_bytes(directory: Path) -> int:
    """Return the size of all `.log` files."""
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def linked_prefix(source: Path, target: Path, size: int) -> int:
    """Make a partition of the first segments of another, `size` bytes or a bit more; where it ends.

    `.log` files are links: who cleans a log never writes to those that are closed. Everything else is copied.
    """
    target.mkdir(parents=True)
    taken = 0
    closed = sorted(source.glob("*.log"))[:-1]
    for path, following in zip(closed, [*closed[1:], None], strict=True):
        os.link(path, target / path.name)
        for suffix in (".index", ".timeindex"):
            shutil.copyfile(path.with_suffix(suffix), target / path.with_suffix(suffix).name)
        taken += path.stat().st_size
        if taken >= size or following is None:
            break
    end = int((following or max(source.glob("*.log"))).stem)
    make_active(target, end)
    return end
