"""Makes logs as quickly as the disk takes them: a few batches are built, and their keys, offsets and CRCs vary.

Keys have 16 bytes (`key-` and a number), values are hexadecimal digits at random, which compress to about half.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import NONE, compress
from diamant.protocol.batches.header import ATTRIBUTES, BATCH_LENGTH, CRC, HEADER_SIZE, LOG_OVERHEAD, Record

START_MS = 1_700_000_000_000
TEMPLATES, AT_ONCE = 16, 512
"""Batches that are built, and made of them at a time."""
KEY_PREFIX = b"key-"
KEY_DIGITS = 12

Keys = Callable[[int, int], NDArray[np.int64]]
"""From a first offset and a count to as many numbers of keys."""


class Written(NamedTuple):
    """What a log has."""

    records: int
    keys: int


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


def key_of(number: int) -> bytes:
    """Return the key with a number."""
    return KEY_PREFIX + b"%0*d" % (KEY_DIGITS, number)


class Batches:
    """Makes batches of `batch_records` records with values of `value_bytes`.

    `with_keys`: a value begins with its key, so that no two are equal. Otherwise there are few different ones.
    """

    def __init__(self, value_bytes: int, batch_records: int, codec: int = NONE, *, with_keys: bool = False) -> None:
        self.batch_records, self._codec = batch_records, codec
        self._begin = key_of(0) if with_keys else b""
        rng = np.random.default_rng(1)
        built = [
            self._template(rng.bytes(value_bytes * batch_records // 2 + 1).hex().encode()) for _ in range(TEMPLATES)
        ]
        self._rows = np.tile(np.array([list(batch) for batch in built], np.uint8), (AT_ONCE // TEMPLATES, 1))
        places, at = [], 0
        while (at := built[0].find(key_of(0), at)) >= 0:
            places.append(at + len(KEY_PREFIX))
            at += 1
        self._columns = np.array(places)[:, None] + np.arange(KEY_DIGITS)
        self._four_digits = np.array([list(b"%04d" % number) for number in range(10_000)], np.uint8)

    def made(self, offset: int, numbers: NDArray[np.int64]) -> list[bytearray]:
        """Return batches that begin at `offset` and have these keys, `AT_ONCE` batches at most."""
        rows = self._rows[: len(numbers) // self.batch_records]
        numbers = np.repeat(numbers, len(self._columns) // self.batch_records)
        digits = [self._four_digits[numbers // divisor % 10_000] for divisor in (10**8, 10**4, 1)]
        rows[:, self._columns.ravel()] = np.concatenate(digits, axis=1).reshape(len(rows), -1)
        offsets = offset + self.batch_records * np.arange(len(rows), dtype=np.int64)
        rows[:, :8] = offsets.astype(">i8")[:, None].view(np.uint8)
        batches = []
        for row in rows:
            batch = bytearray(row)
            if self._codec:
                batch[HEADER_SIZE:] = compress(self._codec, batch[HEADER_SIZE:])
                batch[BATCH_LENGTH : BATCH_LENGTH + 4] = (len(batch) - LOG_OVERHEAD).to_bytes(4, "big")
                batch[ATTRIBUTES + 1] = self._codec
            batch[CRC:ATTRIBUTES] = crc32c(memoryview(batch)[ATTRIBUTES:]).to_bytes(4, "big")
            batches.append(batch)
        return batches

    def _template(self, noise: bytes) -> bytearray:
        size = len(noise) // self.batch_records
        begin = self._begin
        values = [begin + noise[at + len(begin) : at + size] for at in range(0, size * self.batch_records, size)]
        records = [Record(index, START_MS, key_of(0), value) for index, value in enumerate(values)]
        return build_batch(records, base_offset=0, leader_epoch=0)


def write_log(directory: Path, batches: Batches, records: int, keys: Keys, segment_bytes: int) -> Written:
    """Write closed segments of about `segment_bytes` with offset indexes, and an empty active one; `records`, or a few more."""
    directory.mkdir(parents=True)
    offset, seen = 0, np.zeros(records + AT_ONCE * batches.batch_records, bool)
    while offset < records:
        base, position = offset, 0
        with (directory / f"{base:020d}.log").open("xb") as log, (directory / f"{base:020d}.index").open("xb") as index:
            while position < segment_bytes and offset < records:
                count = min(AT_ONCE, math.ceil((records - offset) / batches.batch_records))
                numbers = keys(offset, count * batches.batch_records)
                seen[numbers] = True
                for batch in batches.made(offset, numbers):
                    offset += batches.batch_records
                    if position:
                        index.write((offset - 1 - base).to_bytes(4, "big") + position.to_bytes(4, "big"))
                    log.write(batch)
                    position += len(batch)
        (directory / f"{base:020d}.timeindex").touch()
    for suffix in (".log", ".index", ".timeindex"):
        (directory / f"{offset:020d}{suffix}").touch()
    return Written(offset, int(seen.sum()))


def copy_of(source: Path, target: Path) -> Path:
    """Copy a log into a log directory of its own; closed `.log` files are links, since who cleans a log never writes to those."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    for path in source.iterdir():
        (os.link if path.suffix == ".log" and path.stat().st_size else shutil.copyfile)(path, target / path.name)
    return target


def log_bytes(directory: Path) -> int:
    """Return the size of all `.log` files."""
    return sum(path.stat().st_size for path in directory.glob("*.log"))
