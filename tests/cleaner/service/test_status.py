"""The status of the cleaner, as values."""

from __future__ import annotations

import pytest

from diamant.cleaner.service.metrics import recopy_percent


@pytest.mark.parametrize(
    ("bytes_read", "bytes_written", "percent"),
    [(0, 0, 0), (0, 5, 500), (1000, 999, 99), (1000, 1000, 100), (3, 1, 33), (10**15, 10**15 // 4, 25)],
)
def test_recopy_percent(bytes_read: int, bytes_written: int, percent: int) -> None:
    """Rounded down to whole percents, as Kafka's gauge; zero bytes read count as one."""
    assert recopy_percent(bytes_read, bytes_written) == percent
