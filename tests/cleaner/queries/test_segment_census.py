"""Record counts by segment, compared with the counts of the whole partition and with a plain model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.queries.partition_count import count_by_keys
from diamant.cleaner.queries.segment_census import SegmentCensus, count_by_segment
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.storage.env.env import RealEnv


def make_log(path: Path, records: list[tuple[str, str | None]]) -> list[OpenSegment]:
    """Return the segments of a partition with these records, a few in each."""
    with Broker(data_dir=str(path), listen="127.0.0.1:0", log_cleaner_enable=False) as broker:
        broker.create_topic("t", compact=True, internal_segment_bytes=1000)
        for key, value in records:
            broker.produce("t", value, key=key)
    env = RealEnv()
    files = sorted((path / "t-0").glob("*.log"))
    return [OpenSegment.of(env, str(one), int(one.stem), one.stat().st_size) for one in files]


def count(segments: list[OpenSegment], **options: object) -> SegmentCensus:
    """Count the records, without transactions."""
    return count_by_segment(RealEnv(), segments, len(segments), TransactionOutcomes(), 0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("max_bytes", [64 << 20, 0])
def test_each_record_counts_where_it_lies(tmp_path: Path, is_compiled: bool, max_bytes: int) -> None:
    """A later record of the key in any segment supersedes it, also if the keys do not fit into memory."""
    rng = random.Random(7)
    keys = 40 if max_bytes else 3000  # more than fit into the least table
    records = [(f"k{rng.randrange(keys)}", rng.choice(["v", "w", None])) for _ in range(400 if max_bytes else 2500)]
    segments = make_log(tmp_path / "data", records)
    found = count(segments, is_compiled=is_compiled, max_bytes=max_bytes)
    latest = {key: offset for offset, (key, _) in enumerate(records)}
    ends = [one.base_offset for one in segments[1:]] + [len(records)]
    for one, end in zip(found.segments, ends, strict=True):
        inside = range(one.base_offset, end)
        assert one.kinds.records == len(inside)
        assert one.kinds.superseded == sum(latest[records[offset][0]] != offset for offset in inside)
        assert one.kinds.tombstones == sum(
            latest[records[offset][0]] == offset and records[offset][1] is None for offset in inside
        )
    whole, _ = count_by_keys(segments, TransactionOutcomes(), 0, is_compiled=is_compiled)
    assert sum((one.kinds for one in found.segments), Kinds()) == whole
    assert not found.problems
    for one in segments:
        one.file.close()


def test_horizons_of_tombstones(tmp_path: Path) -> None:
    """A round that keeps a tombstone stamps its batch; before it there is no horizon."""
    path = tmp_path / "data"
    with Broker(data_dir=str(path), listen="127.0.0.1:0", diamant_clock="manual") as broker:
        broker.create_topic("t", compact=True, internal_segment_bytes=300, min_cleanable_dirty_ratio=1)
        for number in range(8):
            broker.produce("t", None if number == 2 else "v", key=f"k{number}")
        figures = broker.services.segment_figures()
        log = broker.node.topics.log("t", 0)
        before = broker.call(figures.count(log)).census.segments
        assert [one.last_horizon_ms for one in before if one.kinds.tombstones] == [None]
        broker.compact("t")
        after = broker.call(figures.count(log)).census.segments
        now_ms = broker.clock.now_ms()
        [horizon_ms] = [one.last_horizon_ms for one in after if one.kinds.tombstones]
        assert horizon_ms is not None
        assert 0 < horizon_ms - now_ms <= 86_400_000


def test_a_damaged_batch_is_a_problem_and_not_counted(tmp_path: Path) -> None:
    """The rest of the partition is counted."""
    segments = make_log(tmp_path / "data", [(f"k{number}", "v") for number in range(40)])
    path = Path(segments[0].path)
    data = bytearray(path.read_bytes())
    data[70] ^= 0xFF
    path.write_bytes(data)
    found = count(segments)
    assert len(found.problems) == 1
    assert sum(one.kinds.records for one in found.segments) == 39
    for one in segments:
        one.file.close()
