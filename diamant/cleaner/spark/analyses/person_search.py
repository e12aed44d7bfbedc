"""The records of a person in any number of partitions: `diamant log person` on Spark.

Topics are searched one after another, as identifiers lead from one to the next; the partitions of a topic are tasks of one job.
Executors open the files by the driver's paths, and have its schemas (`shipped_schemas`). The driver's memory: the lines of a
topic, and for a draft of a map the sample of one topic.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from diamant.cleaner.person.directory_search import (
    Line,
    PartitionFound,
    PartitionTask,
    directory_lines,
    newest_records,
    search_partition,
)
from diamant.cleaner.person.identifiers import KnownIdentifiers, TopicSearch
from diamant.cleaner.person.people_map import PeopleMap, is_internal
from diamant.cleaner.person.sampling import TopicSample
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.cleaner.spark.environment.spark_errors import SparkMisuse
from diamant.cleaner.spark.source.partition_logs import log_directories, place_of
from diamant.cleaner.spark.source.shipped_schemas import ShippedSchemas
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Values
from diamant.storage.env.env import RealEnv

if TYPE_CHECKING:
    from pyspark.broadcast import Broadcast
    from pyspark.sql import SparkSession

    from diamant.protocol.batches.header import Record

Tasks: TypeAlias = Mapping[str, Sequence[PartitionTask]]
"""The partitions of each topic."""


class PersonSearch:
    """The partitions of some log directories, in one session."""

    def __init__(self, session: SparkSession, tasks: Tasks, places: SchemaPlaces) -> None:
        """Read the topics `_schemas`. Raises SparkMisuse for files that are not on a file system of the executors."""
        logs = [one.partition for some in tasks.values() for one in some]
        other = next((place_of(one) for one in logs if not place_of(one).is_local), None)
        if other is not None:
            raise SparkMisuse(
                f"{other}: a person is searched in files by path: expected a file system that executors share"
            )
        self._context = session.sparkContext
        self._tasks = tasks
        self._schemas = ShippedSchemas.read(places, log_directories(logs))
        self._sent: Broadcast[tuple[Versions, ShippedSchemas]] = self._context.broadcast(
            (Versions.here(), self._schemas)
        )

    def lines(
        self, people: PeopleMap, given: Mapping[str, Sequence[str]], *, is_confirmed: bool = False
    ) -> Iterator[Line]:
        """Yield the lines of `person show`. As `directory_lines`."""
        return directory_lines(self._tasks, people, given, self._search, is_confirmed=is_confirmed)

    def samples(self, records: int) -> Iterator[TopicSample]:
        """Yield a sample of each topic, with its newest records."""
        for topic, tasks in self._tasks.items():
            if is_internal(topic):
                continue
            sample = TopicSample(topic, tasks[0].config.is_compacted)
            values = Values(self._schemas.schemas(place_of(tasks[0].partition).parent), topic)
            most = -(-records // len(tasks))
            found = self._context.parallelize(tasks, len(tasks)).flatMap(partial(_newest, self._sent, most)).collect()
            for record in found:
                sample.add(record, values)
            yield sample

    def _search(
        self, search: TopicSearch, known: KnownIdentifiers, tasks: Sequence[PartitionTask]
    ) -> Iterable[PartitionFound | Line]:
        work = partial(_searched, self._sent, search, known)
        return self._context.parallelize(tasks, len(tasks)).flatMap(work).collect()


def _searched(
    sent: Broadcast[tuple[Versions, ShippedSchemas]], search: TopicSearch, known: KnownIdentifiers, task: PartitionTask
) -> list[PartitionFound | Line]:
    """Search a partition, in an executor."""
    versions, shipped = sent.value
    check_versions(versions)
    with tempfile.TemporaryDirectory(prefix="diamant-person-") as scratch:
        schemas = shipped.schemas(place_of(task.partition).parent)
        found = list(search_partition(RealEnv(), task, search, known, schemas, scratch))
    freeze_loaded()
    return found


def _newest(sent: Broadcast[tuple[Versions, ShippedSchemas]], most: int, task: PartitionTask) -> list[Record]:
    check_versions(sent.value[0])
    found = list(newest_records(RealEnv(), task.partition, most, lambda _: None))
    freeze_loaded()
    return found
