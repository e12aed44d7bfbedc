"""Finds the partitions below a user's paths, and lists their files. The only files opened are small checkpoint files.

A path is a log directory, the directory of one partition, or a glob of either. A partition that is in several log directories,
for example as replicas of a cluster, counts as several logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from diamant.cleaner.segments.tolerant_reader import PartitionFiles, listed_partition, partition_in_use
from diamant.cleaner.spark.environment.locations import Entry, Location
from diamant.cleaner.spark.environment.spark_errors import SparkMisuse
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition, read_offset_checkpoint
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.storage.env.env import Env


def find_partitions(paths: Sequence[str], topics: Iterable[str] = ()) -> list[PartitionFiles]:
    """Return the partitions below `paths`, sorted by topic, number and directory; only those of `topics`, if any are given.

    Raises SparkMisuse if a path matches neither a log directory nor a partition, or if a topic is missing.
    """
    wanted = frozenset(topics)
    found: dict[Location, PartitionFiles] = {}
    starts: dict[Location, dict[TopicPartition, int]] = {}
    for text in paths:
        location = Location.parse(text)
        matches = location.expand()
        listed = [logs for match in matches if (logs := _partitions_at(match, starts)) is not None]
        if not listed:
            raise SparkMisuse(
                f"{location}: not a log directory: expected directories such as my-topic-0 with segments, a single one of these, "
                f"or a glob; found {'nothing' if not any(match.find() for match in matches) else 'no partition'}"
            )
        for logs in listed:
            for log in logs:
                found[place_of(log)] = log
    chosen = [log for log in found.values() if not wanted or log.topic in wanted]
    missing = wanted - {log.topic for log in chosen}
    if missing:
        raise SparkMisuse(
            f"there is no topic {sorted(missing)[0]!r} in {', '.join(str(Location.parse(one)) for one in paths)}"
        )
    return sorted(chosen, key=lambda log: (log.topic, log.partition, str(place_of(log))))


def place_of(log: PartitionFiles, path: str | None = None) -> Location:
    """Return the location of a partition's directory, or of the file at `path` in it."""
    return Location(log.directory if path is None else path, log.filesystem)


def list_again(log: PartitionFiles) -> PartitionFiles:
    """List a partition again. Raises FileNotFoundError if it was deleted."""
    return _partition(place_of(log), (log.topic, log.partition), place_of(log).entries(), {})


def log_id(directory: Location) -> int:
    """Return the id of the log in a partition's directory: 63 bits of a hash of its location."""
    return int.from_bytes(blake2b(str(directory).encode(), digest_size=8).digest(), "big") >> 1


def log_directories(logs: Iterable[PartitionFiles]) -> list[Location]:
    """Return the log directories of these partitions."""
    return sorted({place_of(log).parent for log in logs}, key=str)


def read_checkpoint(log_directory: Location, name: str) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint file of a log directory. A missing or damaged file counts as empty, as in a broker."""
    location = log_directory.child(name)
    try:
        return read_offset_checkpoint(cast("Env", _OneFile(location)), str(location))
    except CorruptLog:
        return {}


class _OneFile:
    """The part of the `Env` interface that reading one file needs."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def read_bytes(self, path: str) -> bytes:
        return self._location.read_bytes()


def _partitions_at(
    location: Location, starts: dict[Location, dict[TopicPartition, int]]
) -> list[PartitionFiles] | None:
    """Return the partitions in a log directory, or the one of which `location` is the directory; None for other directories."""
    try:
        entries = location.entries()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if any(names.is_segment_file(entry.name) for entry in entries):
        try:
            partition = names.parse_partition_dir(location.name)
        except ValueError as error:
            raise SparkMisuse(f"{location}: {error}; rename the copy to the partition's original name") from None
        return [_partition(location, partition, entries, starts)]
    logs = []
    for entry in entries:
        listed = partition_in_use(entry.name) if entry.is_dir else None
        if listed is None:
            continue
        directory = location.child(entry.name)
        try:
            logs.append(_partition(directory, listed, directory.entries(), starts))
        except FileNotFoundError:
            continue  # Deleted since the log directory was listed.
    # Directories of other programs may have such names, too, for example dbus-1.
    if not any(log.segments for log in logs) and not any(entry.name == names.META_PROPERTIES for entry in entries):
        return None
    return logs


def _partition(
    directory: Location,
    partition: TopicPartition,
    entries: list[Entry],
    starts: dict[Location, dict[TopicPartition, int]],
) -> PartitionFiles:
    log_directory = directory.parent
    if log_directory not in starts:
        starts[log_directory] = read_checkpoint(log_directory, names.LOG_START_OFFSET_CHECKPOINT)
    sizes = {entry.name: entry.size for entry in entries}
    return listed_partition(directory.path, partition, sizes, starts[log_directory], directory.filesystem)
