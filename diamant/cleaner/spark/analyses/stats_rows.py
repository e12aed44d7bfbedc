"""Record counts of partitions by kind: `diamant log stats` for any number of partitions. `counted_logs` counts the records."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from diamant.cleaner.rules.record_kinds import NAMES
from diamant.cleaner.spark.analyses.counted_logs import count_logs
from diamant.cleaner.spark.analyses.log_table import FACTS, facts_of
from diamant.cleaner.spark.source.partition_logs import find_partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

SCHEMA = ", ".join([FACTS, *(f"{name} bigint" for name in (*NAMES, "log_end_offset", "distinct_keys"))])
_NAMES = [column.split()[0] for column in SCHEMA.split(", ")]


def read_stats(session: SparkSession, paths: Sequence[str], topics: Sequence[str] = ()) -> DataFrame:
    """Count the records of all partitions below `paths`.

    Raises SparkMisuse for the same reasons as `find_partitions`, and CorruptLog wrapped by Spark.

    Each log has a row, with the columns of `log_table` except the last, those of `Kinds`, log_end_offset and distinct_keys.
    log_end_offset is the offset after the last batch that still exists; NULL for an empty log.
    """
    return session.createDataFrame(stats_rows(session.sparkContext, paths, topics), SCHEMA)


def stats_rows(context: SparkContext, paths: Sequence[str], topics: Sequence[str] = ()) -> list[Row]:
    """Like `read_stats`, but without Spark SQL, whose first use in a session takes one or two seconds."""
    from pyspark.sql import Row

    logs = find_partitions(paths, topics)
    facts = facts_of(logs)
    counted = count_logs(context, paths, logs)
    new_row = Row(*_NAMES)
    return [
        new_row(*fact[:-1], *astuple(one.kinds), one.log_end_offset, one.kinds.distinct_keys)
        for fact, one in zip(facts, counted, strict=True)
    ]
