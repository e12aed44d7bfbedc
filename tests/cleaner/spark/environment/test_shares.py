"""Distribution of logs: those divided among all cores, and those that are one task."""

from __future__ import annotations

import pytest

from diamant.cleaner.spark.clean.in_session import WHOLE_BYTES, whole_bytes
from diamant.cleaner.spark.environment.shares import are_shared_evenly, largest_share

GIB = 1 << 30


@pytest.mark.parametrize(
    ("sizes", "cores", "is_even"),
    [
        ([], 2, True),
        ([5], 1, True),
        ([5], 2, False),
        ([5, 5], 2, True),
        ([5, 5, 5], 2, True),
        ([1, 3, 2], 2, True),
        ([9, 1, 1, 1], 2, False),
        ([5] * 5, 4, False),
        ([5] * 9, 4, True),
    ],
)
def test_logs_are_shared_evenly_if_no_core_has_a_third_more_than_its_share(
    sizes: list[int], cores: int, is_even: bool
) -> None:
    """Logs are distributed whole, the largest first, each to the core with the least."""
    assert are_shared_evenly(sizes, cores) == is_even


@pytest.mark.parametrize(
    ("sizes", "cores", "size"), [([], 2, 0), ([7], 2, 0), ([100, 5, 5, 5], 2, 5), ([1, 2, 4, 8], 1, 8)]
)
def test_a_partition_too_large_for_a_core_is_divided_among_all(sizes: list[int], cores: int, size: int) -> None:
    """The others are distributed whole."""
    assert largest_share(sizes, cores) == size


@pytest.mark.parametrize(
    ("sizes", "cores", "size"),
    [([90 * GIB], 3, 90 * GIB), ([90 * GIB], 4, WHOLE_BYTES), ([90 * GIB, *[GIB] * 16], 4, GIB), ([], 1, 0)],
)
def test_few_cores_divide_no_round(sizes: list[int], cores: int, size: int) -> None:
    """Dividing it would cost too much CPU time. With more cores, rounds that would leave cores idle are divided."""
    assert whole_bytes(sizes, cores) == size
