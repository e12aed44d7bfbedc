"""Data that a query does not need is neither read nor decoded, as counted in bytes by the data source's own reader."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from diamant.protocol.batches.batch import iter_headers
from diamant.storage.errors import CorruptLog
from tests.builder import TIMESTAMP, make_record
from tests.cleaner.spark.big_log import BATCHES, RECORDS, SEGMENTS, write_big_log
from tests.cleaner.spark.source.reading import Reading, read

PER_SEGMENT = BATCHES * RECORDS
ALL = SEGMENTS * PER_SEGMENT


@pytest.fixture(scope="module")
def big_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of `SEGMENTS` segments with their indexes, a record per ms; see `big_log`."""
    root = tmp_path_factory.mktemp("big-log")
    for partition in range(2):
        write_big_log(root / f"t-{partition}")
    return root


@pytest.fixture(scope="module")
def whole(big_log: Path) -> Reading:
    """All of it, read without filters."""
    return read(big_log)


def column(name: str) -> tuple[str]:
    """Return a column as filters name it."""
    return (name,)


@pytest.mark.slow
def test_only_the_columns_asked_for_are_copied(big_log: Path, whole: Reading) -> None:
    """Values are most of a log: without them nearly nothing is copied; without keys, too, nothing at all."""
    keys = read(big_log, columns="offset,key")
    offsets = read(big_log, columns="offset,timestamp,producer_id,position")
    assert whole.counters.records == keys.counters.records == offsets.counters.records == 2 * ALL
    assert whole.counters.bytes_copied > 1000 * 2 * ALL
    assert keys.counters.bytes_copied == sum(len(key) for key in keys.column("key"))
    assert offsets.counters.bytes_copied == 0


def counted(found: Reading) -> tuple[int, int]:
    """Bytes read and decoded."""
    return found.counters.bytes_read, found.counters.bytes_decoded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "share"),
    [
        ([EqualTo(column("partition"), 1)], 1 / 2),
        ([EqualTo(column("topic"), "t"), In(column("partition"), (0, 5))], 1 / 2),
        ([EqualTo(column("topic"), "other")], 0),
        ([LessThan(column("offset"), PER_SEGMENT)], 1 / SEGMENTS),
        ([GreaterThanOrEqual(column("offset"), ALL - PER_SEGMENT)], 1 / SEGMENTS),
        ([GreaterThan(column("timestamp_ms"), TIMESTAMP + ALL - PER_SEGMENT - 1)], 1 / SEGMENTS),
        ([EqualTo(column("offset"), PER_SEGMENT + 1234)], 0.05),
        ([GreaterThanOrEqual(column("timestamp_ms"), TIMESTAMP + ALL - 100)], 0.05),
    ],
)
def test_filters_spare_reading_and_decoding(big_log: Path, whole: Reading, filters: list[Filter], share: float) -> None:
    """Names of files, the offset index and the time index are filters."""
    found = read(big_log, *filters)
    for part, all_of_it in zip(counted(found), counted(whole), strict=True):
        assert part <= all_of_it * (share + 0.001)
    # And nothing that is asked for is lost.
    expected = [row for row in whole.rows if all(holds(one, row) for one in filters)]
    assert [row for row in found.rows if all(holds(one, row) for one in filters)] == expected


def holds(one: Any, row: dict[str, Any]) -> bool:
    """Whether a row passes a filter."""
    value = row[one.attribute[0]]
    checks = {
        EqualTo: lambda: value == one.value,
        In: lambda: value in one.value,
        LessThan: lambda: value < one.value,
        LessThanOrEqual: lambda: value <= one.value,
        GreaterThan: lambda: value > one.value,
        GreaterThanOrEqual: lambda: value >= one.value,
    }
    return bool(checks[type(one)]())


@pytest.mark.slow
def test_the_end_of_a_range_of_times_spares_copying(big_log: Path) -> None:
    """No index gives an upper bound of times, so everything is read, but only matching records are copied."""
    until = datetime.fromtimestamp(TIMESTAMP / 1000, UTC) + timedelta(milliseconds=99)
    found = read(big_log, LessThanOrEqual(column("timestamp"), until))
    assert found.counters.records == 2 * 100
    assert found.counters.bytes_copied < 2 * 100 * 1200


@pytest.mark.slow
def test_filters_that_are_not_understood_change_nothing(big_log: Path) -> None:
    """Spark evaluates every filter itself."""
    found = read(big_log, Not(EqualTo(column("partition"), 1)), EqualTo(column("codec"), "none"), columns="offset")
    assert found.counters.records == 2 * ALL


def test_a_key_that_is_looked_for_spares_batches(big_log: Path) -> None:
    """Only batches in which its bytes occur are decoded."""
    found = read(big_log, EqualTo(column("key"), b"key-17"), columns="offset,key")
    assert b"key-17" in found.column("key")
    assert found.counters.batches_decoded < found.counters.batches
    assert found.counters.bytes_decoded < read(big_log, columns="offset,key").counters.bytes_decoded / 2


@pytest.mark.parametrize("split_bytes", [0, 200_000, 1_000_000, 64 << 20])
def test_large_segments_are_split_at_batches(big_log: Path, split_bytes: int) -> None:
    """Each record is returned once, for any split."""
    found = read(big_log, columns="partition,offset", split_bytes=split_bytes)
    sizes = [task.size for task in found.tasks]
    segment_size = max(part.size for task in found.tasks for part in task.ranges)
    if 0 < split_bytes < segment_size:
        assert len(found.tasks) > 2 * SEGMENTS
        assert max(sizes) < 2 * split_bytes
    else:
        assert len(found.tasks) == 2 * SEGMENTS
    rows = sorted((row["partition"], row["offset"]) for row in found.rows)
    assert rows == [(partition, offset) for partition in range(2) for offset in range(ALL)]


SPLIT: dict[str, Any] = {"split_bytes": 300_000}
LAST = [(number + 1) * RECORDS - 1 for number in range(BATCHES)]
"""Last offsets of the first segment's batches."""


@pytest.mark.parametrize(
    ("entries", "filters", "options"),
    [
        pytest.param([(10, 10, 7), (20, 20, 7)], [], SPLIT, id="inside of a batch"),
        pytest.param([(5, 10, 0)], [GreaterThan(column("offset"), LAST[5])], {}, id="too far"),
        pytest.param(
            [(5, 5, 0), (9, 6, 0), (10, 7, 0)], [LessThanOrEqual(column("offset"), LAST[8])], {}, id="not far enough"
        ),
        pytest.param(
            [(5, 5, 0), (9, 9, 1), (10, 9, 2)], [LessThanOrEqual(column("offset"), LAST[8])], {}, id="end inside"
        ),
        pytest.param([(5, BATCHES - 1, 1000)], [], {"split_bytes": 1000}, id="near the end"),
    ],
)
def test_an_index_that_points_wrongly_is_reported(
    tmp_path: Path, entries: list[tuple[int, int, int]], filters: list[Filter], options: dict[str, Any]
) -> None:
    """The error has its name and the workaround. In mode PERMISSIVE it is a row, and no record is missing.

    `entries`: the number of a batch, and its position in the index: so many bytes after the start of another one.
    """
    write_big_log(tmp_path / "t-0")
    path = min((tmp_path / "t-0").glob("*.index"))
    begins = [position for position, _ in iter_headers(path.with_suffix(".log").read_bytes())]
    path.write_bytes(b"".join(struct.pack(">ii", LAST[one], begins[other] + more) for one, other, more in entries))
    with pytest.raises(
        CorruptLog, match=rf"{path.name} at \d+: .* has position \d+, .*trust_indexes=false reads without"
    ):
        read(tmp_path, *filters, columns="offset", **options)
    expected = {offset for offset in range(ALL) if all(holds(one, {"offset": offset}) for one in filters)}
    found = read(tmp_path, *filters, columns="offset,_corrupt", mode="PERMISSIVE", **options)
    assert {row["offset"] for row in found.rows if row["_corrupt"] is None} >= expected
    assert len([row for row in found.rows if row["_corrupt"]]) == 1
    found = read(tmp_path, *filters, columns="offset", trust_indexes=False, **options)
    assert set(found.column("offset")) >= expected


def test_indexes_that_kafka_preallocated_are_read_up_to_their_zeros(tmp_path: Path) -> None:
    """A copy of a live directory has such indexes."""
    write_big_log(tmp_path / "t-0")
    for suffix in ("index", "timeindex"):
        for path in (tmp_path / "t-0").glob(f"*.{suffix}"):
            path.write_bytes(path.read_bytes() + bytes(8 * 12 * 50))
    since = TIMESTAMP + ALL - 100
    found = read(tmp_path, GreaterThanOrEqual(column("timestamp_ms"), since), columns="offset", split_bytes=500_000)
    assert sorted(found.column("offset"))[-100:] == list(range(ALL - 100, ALL))


def test_latest_per_key_looks_at_all_that_follows(big_log: Path) -> None:
    """A record below an upper bound is not the latest of its key if the latest lies above it."""
    assert make_record("key-0=x").key == b"key-0"
    found = read(big_log, LessThan(column("offset"), PER_SEGMENT), columns="offset", latest_per_key=True)
    assert found.rows == []
    whole = read(big_log, columns="partition,offset", latest_per_key=True)
    assert len(whole.rows) == 2 * 500
