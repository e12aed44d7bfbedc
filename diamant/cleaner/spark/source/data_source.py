"""The Spark data source `kafka-log`: the records in log files, without a broker or a consumer.

    spark.dataSource.register(KafkaLogDataSource)
    spark.read.format("kafka-log").option("isolation", "read_committed").load("/var/lib/kafka")

See options.py for the options, source_columns.py for the columns. PySpark (4.3) does not tell a data source the columns that a
query uses, so the user names them: with the option `columns`, with `.schema("offset bigint, key binary")`, or with an argument
of `read_log`. Other columns are not decoded. Filters on topic, partition, offset and timestamp are pushed down if
`spark.sql.python.filterPushdown.enabled` is true, which it is in sessions made by `spark_session`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.cleaner.spark.source.filter_bounds import FilterBounds, bounds_of
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.partition_logs import find_partitions, log_directories
from diamant.cleaner.spark.source.read_plan import ReadTask, plan_tasks
from diamant.cleaner.spark.source.shipped_schemas import ShippedSchemas
from diamant.cleaner.spark.source.source_columns import KEY_JSON, VALUE_JSON, columns_of, ddl

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "kafka-log"


class KafkaLogDataSource(DataSource):
    """The data source `kafka-log`, which is read-only."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns named by the option `columns`, or all. Raises SparkError for invalid options."""
        return ddl(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> KafkaLogReader:
        """Return a reader for the columns of `schema`."""
        options = SourceOptions.parse(self.options)
        return KafkaLogReader(options, columns_of(schema, is_permissive=options.is_permissive))


class KafkaLogReader(DataSourceReader):
    """Plans a query in the driver and runs its tasks in executors. Spark pickles it to send it there."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        if {KEY_JSON, VALUE_JSON}.intersection(columns):
            directories = log_directories(find_partitions(options.paths))
            options = replace(options, schemas=ShippedSchemas.read(options.schema_places, directories))
        self.options = options
        self.columns = columns
        self.bounds = FilterBounds()
        self._driver = Versions.here()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Derive bounds from the filters, and return all filters, because Spark must still apply them."""
        self.bounds = bounds_of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each part of a segment that can hold requested records."""
        return [
            InputPartition(task)
            for task in plan_tasks(self.options, self.bounds, with_outcomes="outcome" in self.columns)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of a task."""
        task = partition.value
        if task is None:
            return  # If there are no tasks, Spark passes a partition of its own.
        assert isinstance(task, ReadTask)
        check_versions(self._driver)
        # Imported here, because it loads numpy and the kernels, which planning does not need.
        from diamant.cleaner.spark.source.range_reader import Counters
        from diamant.cleaner.spark.source.read_task import read_task

        counters = Counters()
        yield from read_task(task, self.options, self.columns, counters)
        if self.options.counters is not None:
            found = {"topic": task.topic, "partition": task.partition, "size": task.size, **asdict(counters)}
            place = Location.parse(self.options.counters)
            place.child(f"{uuid.uuid4().hex}.json").write_bytes(json.dumps(found).encode())
        freeze_loaded()


def read_log(session: SparkSession, *paths: str, columns: Sequence[str] = (), **options: str | int | bool) -> DataFrame:
    """Return the records below `paths` with these columns (default: all). Other columns are not decoded.

    The session must be prepared (`spark_session`, `prepare_session`), or have `KafkaLogDataSource` registered.
    """
    reader = session.read.format(FORMAT).option("paths", json.dumps(list(paths)))
    if columns:
        reader = reader.option("columns", columns if isinstance(columns, str) else ",".join(columns))
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()
