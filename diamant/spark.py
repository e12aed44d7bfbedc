"""Reads Kafka log directories in Apache Spark, without a broker.

    from diamant.spark import read_log, spark_session

    with spark_session("local[*]") as spark:
        read_log(spark, "/var/lib/kafka", columns=["topic", "key"]).groupBy("topic").count().show()

In an existing session:

    from diamant.spark import KafkaLogDataSource, prepare_session

    prepare_session(spark)      # ships Diamant's code to executors, compares versions, registers the data source
    spark.read.format("kafka-log").load("/var/lib/kafka")

Needs `pip install '.[spark]'` in a clone of Diamant, and Java 17 or newer. docs/how-to/spark.md has the options and columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diamant.cleaner.spark.environment.spark_errors import SegmentChanged as SegmentChanged
    from diamant.cleaner.spark.environment.spark_errors import SparkError as SparkError
    from diamant.cleaner.spark.environment.spark_errors import SparkUnavailable as SparkUnavailable
    from diamant.cleaner.spark.session.session import prepare_session as prepare_session
    from diamant.cleaner.spark.session.session import spark_session as spark_session
    from diamant.cleaner.spark.source.data_source import KafkaLogDataSource as KafkaLogDataSource
    from diamant.cleaner.spark.source.data_source import read_log as read_log

_HOMES = {
    "KafkaLogDataSource": "source.data_source",
    "read_log": "source.data_source",
    "SegmentChanged": "environment.spark_errors",
    "SparkError": "environment.spark_errors",
    "SparkUnavailable": "environment.spark_errors",
    "prepare_session": "session.session",
    "spark_session": "session.session",
}
__all__ = [
    "KafkaLogDataSource",
    "read_log",
    "SegmentChanged",
    "SparkError",
    "SparkUnavailable",
    "prepare_session",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'diamant.spark' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"diamant.cleaner.spark.{home}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "pyspark").partition(".")[0]
        raise ImportError(f"{missing} is not installed: in a clone of Diamant, pip install '.[spark]'") from error
