"""Finds the records that have a key or match a pattern, in any number of logs: `diamant log find` on Spark.

The result has a row for each record:

    topic, partition, offset, timestamp, key, places, status, segment, position

`places` lists where the pattern or key was found: `key`, `value`, `header NAME`. `status` is that of
cleaner/offline/find_records.py: live, superseded, tombstone, aborted, undecided, keyless, below log start. It depends on the
latest record of the key. A search for a key finds that record in the same pass; a search for a pattern needs a second pass, over
the topics with matches.

A pattern is a Java regular expression (`java.util.regex`) in which each character is one byte; a non-ASCII character matches its
UTF-8 bytes. If the pattern has no special characters, batches that do not contain it are skipped without decoding their records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diamant.cleaner.explain import explanation
from diamant.cleaner.spark.environment.spark_errors import SparkMisuse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "places", "status", "segment", "position")
_READ = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "value_size",
    "outcome",
    "log_id",
    "segment",
    "position",
)
_LATEST = ("log_id", "offset", "key", "value_size", "outcome")
_SPECIAL = frozenset("\\.^$*+?{}[]|()")


def find(
    session: SparkSession,
    paths: Sequence[str],
    *,
    key: bytes | None = None,
    pattern: str | None = None,
    topics: Sequence[str] = (),
) -> DataFrame:
    """Return the records below `paths` that have `key` or match `pattern`, as `COLUMNS`, by topic, partition and offset.

    Raises SparkMisuse if not exactly one of key and pattern is given, if the pattern is not a regular expression, or if there is
    nothing to read. Executors keep the matches of a pattern in memory or on disk until the session ends.
    """
    from pyspark.sql import functions as f

    from diamant.cleaner.spark.analyses.log_table import log_table
    from diamant.cleaner.spark.source.data_source import read_log

    if (key is None) == (pattern is None):
        raise SparkMisuse("expected either a key or a pattern")
    logs = log_table(session, paths, topics)
    chosen = ",".join(topics)
    if key is not None:
        columns = [name for name in _READ if name not in ("value", "headers")]
        records = read_log(session, *paths, columns=columns, topics=chosen, include_below_log_start=True)
        found = records.where(f.col("key") == f.lit(key)).withColumn("places", f.array(f.lit("key")))
        return with_status(found, found, logs)
    assert pattern is not None
    check_pattern(session, pattern)
    needle = "" if _SPECIAL.intersection(pattern) else pattern
    records = read_log(session, *paths, columns=_READ, topics=chosen, include_below_log_start=True, containing=needle)
    found = matches(records, pattern).drop("value", "headers").cache()
    keys = found.where(f.col("key").isNotNull()).select("log_id", "key").distinct()
    of_logs = [row["log_id"] for row in keys.select("log_id").distinct().collect()]
    of_topics = logs.where(f.col("log_id").isin(of_logs)).select("topic").distinct().collect()
    candidates = found
    if of_topics:
        wanted = ",".join(row["topic"] for row in of_topics)
        everything = read_log(session, *paths, columns=_LATEST, topics=wanted)
        candidates = everything.join(keys, ["log_id", "key"], "left_semi")
    return with_status(found, candidates, logs)


def matches(records: DataFrame, pattern: str) -> DataFrame:
    """Return the records that match `pattern` in the key, the value or a header. Adds the column `places`."""
    from pyspark.sql import functions as f

    def has(column: Column) -> Column:
        return f.coalesce(f.rlike(f.decode(column, "ISO-8859-1"), f.lit(as_latin(pattern))), f.lit(False))

    in_headers = f.transform(
        f.filter("headers", lambda header: has(header["key"].cast("binary")) | has(header["value"])),
        lambda header: f.concat(f.lit("header "), header["key"]),
    )
    places = f.concat(
        f.when(has(f.col("key")), f.array(f.lit("key"))).otherwise(f.array().cast("array<string>")),
        f.when(has(f.col("value")), f.array(f.lit("value"))).otherwise(f.array().cast("array<string>")),
        in_headers,
    )
    return records.withColumn("places", places).where(f.size("places") > 0)


def with_status(found: DataFrame, candidates: DataFrame, logs: DataFrame) -> DataFrame:
    """Add the status to the found records. Return them as `COLUMNS`, by topic, partition and offset.

    candidates: log_id, key, offset, value_size and outcome of all records with the found keys. logs: `log_table`.
    """
    from pyspark.sql import functions as f

    starts = f.broadcast(logs.select("log_id", "log_start_offset"))
    counts = (f.col("outcome") == "committed") & f.col("key").isNotNull()
    latest = (
        candidates.where(counts)
        .join(starts, "log_id")
        .where(f.col("offset") >= f.col("log_start_offset"))
        .groupBy("log_id", "key")
        .agg(f.max(f.struct(f.col("offset"), f.col("value_size").isNull().alias("is_tombstone"))).alias("latest"))
    )
    status = (
        f.when(f.col("offset") < f.col("log_start_offset"), explanation.IS_BELOW_LOG_START)
        .when(f.col("outcome") == "aborted", explanation.IS_ABORTED)
        .when(f.col("outcome") == "open", explanation.IS_UNDECIDED)
        .when(f.col("key").isNull(), explanation.IS_KEYLESS)
        .when(f.col("offset") < f.col("latest.offset"), explanation.IS_SUPERSEDED)
        .when(f.col("latest.is_tombstone"), explanation.IS_TOMBSTONE)
        .otherwise(explanation.IS_LIVE)
    )
    return (
        found.join(starts, "log_id")
        .join(latest, ["log_id", "key"], "left")
        .withColumn("status", status)
        .select(*COLUMNS)
        .orderBy("topic", "partition", "segment", "offset")
    )


def as_latin(pattern: str) -> str:
    """Convert a pattern so that it matches text in which each character represents one byte."""
    return pattern.encode(errors="surrogateescape").decode("latin-1")


def check_pattern(session: SparkSession, pattern: str) -> None:
    """Raise SparkMisuse if `pattern` is not a regular expression."""
    from pyspark.errors import IllegalArgumentException

    try:
        session._jvm.java.util.regex.Pattern.compile(as_latin(pattern))  # type: ignore[union-attr]
    except IllegalArgumentException as error:
        reason = str(error).splitlines()[0]
        raise SparkMisuse(f"the pattern is not a regular expression: {reason}") from None
