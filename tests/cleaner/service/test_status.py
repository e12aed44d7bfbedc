"""The status of the cleaner, as values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from diamant.cleaner.service.metrics import CleanerStatus, PartitionStatus, recopy_percent


def test_before_the_first_scan_everything_is_zero() -> None:
    """The default status equals Kafka's gauges before the first scan."""
    status = CleanerStatus()
    assert status.partitions == ()
    assert status.in_progress == ()
    assert status.finished == ()
    lists = ("partitions", "in_progress", "finished")
    gauges = {name: getattr(status, name) for name in CleanerStatus.__slots__ if name not in lists}
    assert set(gauges.values()) == {0}


def test_a_partition_that_was_never_cleaned() -> None:
    """It has no time of a last round, no removed records, and no reason to be uncleanable."""
    status = PartitionStatus("topic", 3)
    assert (status.last_cleaned_ms, status.uncleanable_reason) == (None, None)
    assert (status.records_removed, status.bytes_removed, status.rounds) == ({}, {}, {})


def test_a_status_is_a_value() -> None:
    """It cannot be changed, and two of the same fields are equal."""
    status = PartitionStatus("topic", 0, dirty_ratio=0.5, rounds={"inline": 2})
    assert status == PartitionStatus("topic", 0, dirty_ratio=0.5, rounds={"inline": 2})
    with pytest.raises(FrozenInstanceError):
        status.dirty_ratio = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("bytes_read", "bytes_written", "percent"),
    [(0, 0, 0), (0, 5, 500), (1000, 999, 99), (1000, 1000, 100), (3, 1, 33), (10**15, 10**15 // 4, 25)],
)
def test_recopy_percent(bytes_read: int, bytes_written: int, percent: int) -> None:
    """Rounded down to whole percents, as Kafka's gauge; zero bytes read count as one."""
    assert recopy_percent(bytes_read, bytes_written) == percent
