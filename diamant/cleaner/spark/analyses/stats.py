"""The contents of partitions by kind: `diamant log stats` for as many of them as a cluster can read.

    logs = log_table(spark, paths)
    records = read_log(spark, *paths, columns=COUNTED_COLUMNS, include_control=True, include_below_log_start=True)
    stats(records, logs).show()

Every data record is exactly one of these, the first that fits: below_log_start, aborted, undecided, keyless, superseded,
tombstones, live (cleaner/offline/stats.py). What is shuffled is a row for each key of each task: two
hashes, an offset and counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.spark.analyses.log_table import COUNTED_COLUMNS, HASHES, with_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

COUNTS = (
    "records",
    "live",
    "superseded",
    "tombstones",
    "aborted",
    "undecided",
    "keyless",
    "below_log_start",
    "control_records",
)
_READ_OPTIONS = {"include_control": True, "include_below_log_start": True}


def read_stats(session: SparkSession, paths: Sequence[str], topics: Sequence[str] = ()) -> DataFrame:
    """Return the statistics of all partitions below `paths`. SparkError if there are none."""
    from diamant.cleaner.spark.analyses.log_table import log_table
    from diamant.cleaner.spark.source.data_source import read_log

    records = read_log(session, *paths, columns=COUNTED_COLUMNS, topics=",".join(topics), **_READ_OPTIONS)
    return stats(records, log_table(session, paths, topics))


def stats(records: DataFrame, logs: DataFrame) -> DataFrame:
    """Return a row for each log, with the columns of `log_table` but the last, `COUNTS`, distinct_keys and log_end_offset.

    records: `COUNTED_COLUMNS`. logs: `log_table`. log_end_offset is that after the last record that is there, NULL in an empty
    log: what compaction removed at the very end is not in sight.
    """
    from pyspark.sql import functions as f

    starts = f.broadcast(logs.select("log_id", "log_start_offset"))
    classed = with_hashes(records.join(starts, "log_id")).withColumn(
        "kind",
        f.when(f.col("is_control"), "control_records")
        .when(f.col("offset") < f.col("log_start_offset"), "below_log_start")
        .when(f.col("outcome") == "aborted", "aborted")
        .when(f.col("outcome") == "open", "undecided")
        .when(f.col(HASHES[0]).isNull(), "keyless")
        .otherwise("keyed"),
    )
    # Only keyed records tell keys apart; of the others each kind is one group.
    is_keyed = f.col("kind") == "keyed"
    keys = [f.when(is_keyed, f.col(name)).alias(name) for name in HASHES]
    groups = (
        classed.select(
            "log_id",
            "kind",
            *keys,
            "offset",
            # The greatest of these tells the latest record, and whether it is a tombstone.
            (f.col("offset") * 2 + f.col("value_size").isNull().cast("long")).alias("latest"),
        )
        .groupBy("log_id", "kind", *HASHES)
        .agg(f.count("*").alias("count"), f.max("latest").alias("latest"))
    )
    of_kind = {
        name: f.sum(f.when(f.col("kind") == name, f.col("count")))
        for name in ("aborted", "undecided", "keyless", "below_log_start", "control_records")
    }
    is_tombstone = f.col("latest") % 2 == 1
    counted = groups.groupBy("log_id").agg(
        f.sum(f.when(f.col("kind") != "control_records", f.col("count"))).alias("records"),
        f.count(f.when(is_keyed & ~is_tombstone, 1)).alias("live"),
        f.sum(f.when(is_keyed, f.col("count") - 1)).alias("superseded"),
        f.count(f.when(is_keyed & is_tombstone, 1)).alias("tombstones"),
        *(column.alias(name) for name, column in of_kind.items()),
        (f.max(f.col("latest")) / 2).cast("long").alias("last_offset"),
    )
    return (
        logs.join(counted, "log_id", "left")
        .fillna(0, list(COUNTS))
        .select(
            *(name for name in logs.columns if name != "max_compaction_lag_ms"),
            *COUNTS,
            (f.col("live") + f.col("tombstones")).alias("distinct_keys"),
            (f.col("last_offset") + 1).alias("log_end_offset"),
        )
        .orderBy("topic", "partition", "directory")
    )
