"""Finds the records of a person in any number of partitions: `diamant log person` on Spark.

Topics are searched one after another, because identifiers found in one lead to records in the next. Each topic is a job with a
task for each partition. Executors open the files by the driver's paths, and use its schemas (`shipped_schemas`). A task that
searches a partition in an object store first copies it to the executor's disk, because a log can only be opened from local files;
samples are read in place. The driver holds in memory the output lines of one topic, or the sample of one topic to draft a map.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

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
from diamant.cleaner.segments.tolerant_reader import PartitionFiles, list_partition
from diamant.cleaner.spark.environment.loaded_code import freeze_loaded
from diamant.cleaner.spark.environment.locations import READ_AHEAD_BYTES, Location
from diamant.cleaner.spark.environment.shipped_code import Versions, check_versions
from diamant.cleaner.spark.source.partition_logs import log_directories, place_of
from diamant.cleaner.spark.source.shipped_schemas import ShippedSchemas
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Values
from diamant.storage import names
from diamant.storage.env.env import RealEnv

if TYPE_CHECKING:
    from pyspark.broadcast import Broadcast
    from pyspark.sql import SparkSession

    from diamant.protocol.batches.header import Record
    from diamant.storage.env.env import Env, ReadableFile

Tasks: TypeAlias = Mapping[str, Sequence[PartitionTask]]
"""The partitions of each topic."""


class PersonSearch:
    """Searches the given partitions, in one Spark session."""

    def __init__(self, session: SparkSession, tasks: Tasks, places: SchemaPlaces) -> None:
        """Read the `_schemas` topics of the log directories."""
        logs = [one.partition for some in tasks.values() for one in some]
        self._context = session.sparkContext
        self._tasks = tasks
        self._schemas = ShippedSchemas.read(places, log_directories(logs))
        self._sent: Broadcast[tuple[Versions, ShippedSchemas]] = self._context.broadcast(
            (Versions.here(), self._schemas)
        )

    def lines(
        self, people: PeopleMap, given: Mapping[str, Sequence[str]], *, is_confirmed: bool = False
    ) -> Iterator[Line]:
        """Yield the lines of `person show`, as `directory_lines` does."""
        return directory_lines(self._tasks, people, given, self._search, is_confirmed=is_confirmed)

    def samples(self, records: int) -> Iterator[TopicSample]:
        """Yield a sample of each topic: up to about `records` of its newest records, in equal parts from its partitions."""
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
    """Search a partition; runs in an executor."""
    versions, shipped = sent.value
    check_versions(versions)
    with tempfile.TemporaryDirectory(prefix="diamant-person-") as scratch:
        schemas = shipped.schemas(place_of(task.partition).parent)
        here = task._replace(partition=_copied(task.partition, scratch))
        found = list(search_partition(RealEnv(), here, search, known, schemas, scratch))
    freeze_loaded()
    return found


def _copied(partition: PartitionFiles, scratch: str) -> PartitionFiles:
    """Return `partition` itself if it is local. Otherwise copy it, with the log directory's files that are read at opening."""
    place = place_of(partition)
    if place.is_local:
        return partition
    directory = f"{scratch}/files/{partition.name}"
    os.makedirs(directory)
    beside = (names.CLEAN_SHUTDOWN, names.RECOVERY_POINT_CHECKPOINT)
    for one in (*map(place.child, partition.files), *map(place.parent.child, beside)):
        target = directory if one.parent == place else f"{scratch}/files"
        try:
            with closing(one.open()) as source, open(f"{target}/{one.name}", "wb") as copy:
                for position in range(0, source.size(), READ_AHEAD_BYTES):
                    copy.write(source.pread(READ_AHEAD_BYTES, position))
        except FileNotFoundError:
            continue  # Retention has deleted the file since it was listed, or it never existed.
    log = partition.topic, partition.partition
    return replace(list_partition(RealEnv(), directory, log, {}), log_start_offset=partition.log_start_offset)


def _newest(sent: Broadcast[tuple[Versions, ShippedSchemas]], most: int, task: PartitionTask) -> list[Record]:
    check_versions(sent.value[0])
    files = cast("Env", _Files(task.partition.filesystem))
    found = list(newest_records(files, task.partition, most, lambda _: None))
    freeze_loaded()
    return found


@dataclass(frozen=True, slots=True)
class _Files:
    """The part of the `Env` interface that sampling needs."""

    filesystem: str

    def open(self, path: str, *, read_only: bool) -> ReadableFile:
        return Location(path, self.filesystem).open()
