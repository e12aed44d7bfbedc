"""Finds values that compacted topics should not have kept: superseded for too long, or stranded on another partition.

    superseded        a later committed record of the partition has the key; the value is superseded from the timestamp of
                      the next such record on
    overdue           superseded for longer than the topic's max.compaction.lag.ms, or than the given deadline
    erased, overdue   overdue, and the next record of the key is a tombstone, so the producer wanted to delete the value
    stranded          the partition's latest record of the key has a value, although another partition has a younger record
                      of the key. Compaction works within a partition, so it keeps the value forever. This happens after
                      partitions have been added to a topic

The result has a row for each topic:

    topic, policy, partitions, deadline_ms, records, superseded, oldest_superseded_ms, overdue, overdue_ms, erased_overdue,
    stranded, is_broken

oldest_superseded_ms is the timestamp of the oldest superseded value; overdue_ms is the largest delay. All times are the records'
timestamps, which producers set unless the topic has LogAppendTime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.spark.analyses.log_table import COMPACT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession


HASHES = ("key_hash_1", "key_hash_2")
COUNTED_COLUMNS = ("log_id", "offset", "timestamp_ms", "key", "value_size", "outcome", "is_control")
"""The columns of the data source that an audit reads."""


def read_audit(
    session: SparkSession,
    paths: Sequence[str],
    topics: Sequence[str] = (),
    *,
    now_ms: int,
    deadline_ms: int | None = None,
    is_all: bool = False,
) -> DataFrame:
    """Audit the compacted topics below `paths` and those whose policy is unknown, or all topics if `is_all`.

    A policy is unknown if the metadata log is missing or does not have the topic. Segments of other topics are not opened.
    """
    from pyspark.sql import functions as f

    from diamant.cleaner.spark.analyses.log_table import log_table
    from diamant.cleaner.spark.source.data_source import read_log

    logs = log_table(session, paths, topics)
    if not is_all:
        logs = logs.where(f.col("cleanup_policy").isNull() | f.col("cleanup_policy").contains(COMPACT))
    chosen = sorted({row["topic"] for row in logs.select("topic").distinct().collect()})
    records = read_log(
        session, *paths, columns=COUNTED_COLUMNS, topics=",".join(chosen or topics), isolation="read_committed"
    )
    # An empty option `topics` would mean all topics.
    return audit(records if chosen else records.limit(0), logs, now_ms=now_ms, deadline_ms=deadline_ms)


def audit(records: DataFrame, logs: DataFrame, *, now_ms: int, deadline_ms: int | None = None) -> DataFrame:
    """Audit the topics of `logs` (`log_table`) by their committed `records` (`COUNTED_COLUMNS`); return a row for each topic.

    `deadline_ms` applies to topics that do not set max.compaction.lag.ms, and to those that set a longer lag.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_log = f.broadcast(logs.select("log_id", "topic", "partition", "max_compaction_lag_ms"))
    keyed = with_hashes(
        records.where((f.col("outcome") == "committed") & ~f.col("is_control") & f.col("key").isNotNull())
    )
    limit = f.least(f.col("max_compaction_lag_ms"), f.lit(deadline_ms).cast("long"))  # `least` ignores NULL.
    next_one = Window.partitionBy("log_id", *HASHES).orderBy("offset")
    judged = (
        keyed.withColumns(
            {
                "since_ms": f.lead("timestamp_ms").over(next_one),
                "is_superseded": f.lead("offset").over(next_one).isNotNull(),
                "is_erased": f.lead(f.col("value_size").isNull()).over(next_one),
            }
        )
        # Join after the shuffle, so that records do not carry their topic's name through it.
        .join(of_log, "log_id")
        .withColumn("late_ms", f.lit(now_ms) - f.col("since_ms") - limit)
    )
    youngest = f.max(f.struct("latest_ms", "partition")).over(Window.partitionBy("topic", *HASHES))
    is_stranded = f.col("has_value") & (f.col("partition") != f.col("youngest.partition"))
    of_topics = (
        _of_keys(judged)
        .withColumn("youngest", youngest)
        .groupBy("topic")
        .agg(
            *(f.sum(name).alias(name) for name in ("records", "superseded", "overdue", "erased_overdue")),
            f.min("oldest_superseded_ms").alias("oldest_superseded_ms"),
            f.max("overdue_ms").alias("overdue_ms"),
            f.count(f.when(is_stranded, 1)).alias("stranded"),
        )
    )
    topics = logs.groupBy("topic").agg(
        f.max("cleanup_policy").alias("policy"),
        f.count("*").cast("int").alias("partitions"),
        f.max(limit).alias("deadline_ms"),
    )
    counts = ("records", "superseded", "overdue", "erased_overdue", "stranded")
    return (
        topics.join(of_topics, "topic", "left")
        .fillna(0, list(counts))
        .select(
            "topic",
            "policy",
            "partitions",
            "deadline_ms",
            "records",
            "superseded",
            "oldest_superseded_ms",
            "overdue",
            "overdue_ms",
            "erased_overdue",
            "stranded",
            ((f.col("overdue") > 0) | (f.col("stranded") > 0)).alias("is_broken"),
        )
        .orderBy("topic")
    )


def _of_keys(judged: DataFrame) -> DataFrame:
    """Return a row for each key of each partition. This needs no shuffle, because the window has grouped the records by key."""
    from pyspark.sql import functions as f

    is_late = f.col("is_superseded") & (f.col("late_ms") > 0)
    is_latest = ~f.col("is_superseded")
    return judged.groupBy("log_id", "topic", "partition", *HASHES).agg(
        f.count("*").alias("records"),
        f.count(f.when(f.col("is_superseded"), 1)).alias("superseded"),
        f.min(f.when(f.col("is_superseded"), f.col("timestamp_ms"))).alias("oldest_superseded_ms"),
        f.count(f.when(is_late, 1)).alias("overdue"),
        f.max(f.when(is_late, f.col("late_ms"))).alias("overdue_ms"),
        f.count(f.when(is_late & f.col("is_erased"), 1)).alias("erased_overdue"),
        f.max(f.when(is_latest, f.col("timestamp_ms"))).alias("latest_ms"),
        f.max(f.when(is_latest, f.col("value_size").isNotNull())).alias("has_value"),
    )


def with_hashes(records: DataFrame) -> DataFrame:
    """Replace the key of each record by two hashes, both NULL if there is no key.

    Spark computes them with different seeds. An attacker who constructs colliding keys affects only his own records.
    """
    from pyspark.sql import functions as f

    def hashed(seed: int) -> Column:
        return f.when(f.col("key").isNull(), None).otherwise(f.xxhash64(f.lit(seed), f.col("key")))

    return records.withColumns({name: hashed(seed) for seed, name in enumerate(HASHES)}).drop("key")
