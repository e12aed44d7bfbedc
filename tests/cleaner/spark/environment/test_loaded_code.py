"""Loaded modules and the garbage collections of a worker."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import InputPartition

from diamant.cleaner.spark.environment import loaded_code
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.source.data_source import KafkaLogReader
from diamant.cleaner.spark.source.options import SourceOptions
from tests.builder import make_batch

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


def _frozen_by_a_read(found: Iterable[tuple[KafkaLogReader, InputPartition]]) -> Iterator[tuple[int, int]]:
    for reader, partition in found:
        gc.unfreeze()
        loaded_code._freeze.cache_clear()
        rows = sum(batch.num_rows for batch in reader.read(partition))
        yield rows, gc.get_freeze_count()


@pytest.mark.slow
def test_the_data_source_freezes_what_it_has_loaded(spark: SparkSession, tmp_path: Path) -> None:
    """At the end of each task it is frozen: a query of a few small segments would spend most of its time on collections."""
    directory = tmp_path / "topic-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(make_batch((b"k", b"v")))
    options = SourceOptions.parse({"path": str(tmp_path)})
    reader = KafkaLogReader(options, options.columns)
    tasks = [(reader, partition) for partition in reader.partitions()]
    [(rows, frozen)] = spark.sparkContext.parallelize(tasks, 1).mapPartitions(_frozen_by_a_read).collect()
    assert rows == 1
    assert frozen > 10_000


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    """A driver, or a program that has Diamant in it."""
    before = gc.get_freeze_count()
    freeze_loaded()
    assert gc.get_freeze_count() == before
