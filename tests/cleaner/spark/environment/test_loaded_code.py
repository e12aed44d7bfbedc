"""Loaded modules and the garbage collections of a worker."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from diamant.cleaner.spark.environment.loaded_code import freeze_loaded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _frozen(_: Iterable[int]) -> Iterator[tuple[int, int]]:
    freeze_loaded()
    first = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    freeze_loaded()
    yield first, gc.get_freeze_count() - first
    kept.clear()


@pytest.mark.slow
def test_a_worker_freezes_what_it_has_loaded(spark: SparkSession) -> None:
    """Once, and again only after new modules were loaded, so the number does not grow with the tasks."""
    [(first, more)] = spark.sparkContext.parallelize([0], 1).mapPartitions(_frozen).collect()
    assert first > 10_000
    assert more <= 0


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    """A driver, or a program that has Diamant in it."""
    before = gc.get_freeze_count()
    freeze_loaded()
    assert gc.get_freeze_count() == before
