"""Reads log files with the data source's own reader in this process, without Spark: quick, and with visible counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import Filter

from diamant.cleaner.segments.tolerant_reader import SegmentFile, iter_batches
from diamant.cleaner.spark.source.data_source import KafkaLogReader
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.range_reader import Counters
from diamant.cleaner.spark.source.read_plan import ReadTask
from diamant.cleaner.spark.source.read_task import read_task
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.env.env import RealEnv


@dataclass
class Reading:
    """The rows read, and the counters."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[ReadTask] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, by partition and offset."""
        return [row[name] for row in self.rows]


def read(path: Path | str, *filters: Filter, columns: str = "", **options: Any) -> Reading:
    """Return the rows of the data source for these options and pushed filters, in offset order."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    parsed = SourceOptions.parse({"path": str(path), "columns": columns, **given})
    reader = KafkaLogReader(parsed, parsed.columns)
    reader.pushFilters(list(filters))
    found = Reading(tasks=[partition.value for partition in reader.partitions()])
    for task in sorted(found.tasks, key=lambda task: (task.topic, task.partition, str(task.ranges[0].location))):
        for batch in read_task(task, reader.options, parsed.columns, found.counters):
            batch.validate(full=True)
            found.rows += batch.to_pylist()
    return found


def plain_records(directory: Path) -> list[tuple[Record, BatchHeader]]:
    """Every record in a partition's directory with its batch's header, as the plain reader has it."""
    found = []
    for path in sorted(directory.glob("*.log")):
        segment = SegmentFile(str(path), int(path.stem), path.stat().st_size)
        for batch in iter_batches(RealEnv(), segment, lambda problem: None):
            found += [(record, batch.header) for record in batch.records()]
    return found
