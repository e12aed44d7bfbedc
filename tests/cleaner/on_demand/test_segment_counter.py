"""Counts of segments by headers: with kernels and without them, over all kinds of batches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diamant.cleaner.on_demand.header_counts import SegmentCounter, SegmentCounts
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from tests.builder import make_marker, make_message

HORIZONS = (None, 1_700_000_000_000, 1_700_000_100_000)


def both(path: Path, log_start_offset: int = 0) -> SegmentCounts:
    """Count a segment in both ways, and compare."""
    plain, compiled = (
        SegmentCounter(is_compiled=is_compiled).count(RealEnv(), str(path), path.stat().st_size, log_start_offset)
        for is_compiled in (False, True)
    )
    assert plain == compiled
    return compiled


@pytest.mark.parametrize("seed", range(8))
def test_kernels_count_as_headers_do(tmp_path: Path, seed: int) -> None:
    """Values, tombstones with and without a horizon, and markers are counted, in every codec; with the log start anywhere."""
    print(f"seed {seed}")
    chance, data, offset = random.Random(seed), bytearray(), 0
    values = tombstones = markers = 0
    for _ in range(60):
        if chance.random() < 0.1:
            data += make_marker(7, is_commit=True, base_offset=offset)
            offset, markers = offset + 1, markers + 1
            continue
        if seed % 2 and chance.random() < 0.1:
            data += make_message(1, offset, b"k", b"old", timestamp=1)
            offset, values = offset + 1, values + 1
            continue
        horizon_ms = chance.choice(HORIZONS)
        records = [
            Record(offset + index, 1, b"k%d" % index, chance.choice((b"v", None)))
            for index in range(chance.choice((1, 3, 40)))
        ]
        codec = chance.randrange(len(compression.CODEC_NAMES))
        data += build_batch(records, codec=codec, delete_horizon_ms=horizon_ms)
        nulls = sum(one.value is None for one in records) if horizon_ms else 0
        values, tombstones = values + len(records) - nulls, tombstones + nulls
        offset += len(records)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(data)
    found = both(path)
    assert (found.values, found.tombstones, found.markers) == (values, tombstones, markers)
    assert found.first_horizon_ms in HORIZONS
    for start in range(0, offset, 37):
        both(path, start)


def test_damage_is_an_error_in_both(tmp_path: Path) -> None:
    """A batch whose tombstones have to be counted has a checksum; the error names its place."""
    first = build_batch([Record(0, 1, b"k", b"v")])
    second = build_batch([Record(1, 1, b"k", None)], delete_horizon_ms=5)
    second[-1] ^= 1
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(first + second)
    for is_compiled in (False, True):
        with pytest.raises(CorruptLog, match=f"at {len(first)}: the batch's CRC is wrong"):
            SegmentCounter(is_compiled=is_compiled).count(RealEnv(), str(path), path.stat().st_size)
