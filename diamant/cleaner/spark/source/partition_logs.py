"""Finds the partitions below the paths that a user names, and lists their files: no file but small checkpoints is opened.

A path is a log directory, the directory of one partition, or a glob of either. One partition may be found in several log
directories, as the replicas of a cluster are: each counts as a log of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from diamant.cleaner.spark.environment.errors import SparkError
from diamant.cleaner.spark.environment.locations import Entry, Location
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment's `.log` file, as it was listed."""

    location: Location
    base_offset: int
    size: int
    end_offset: int | None
    """Base offset of the next one, None of the last: that one may still be written to."""

    @property
    def is_last(self) -> bool:
        """True if it is the partition's last segment."""
        return self.end_offset is None

    def index(self, suffix: str) -> Location:
        """Return where its index with that suffix would be."""
        return self.location.parent.child(self.location.name.removesuffix(names.LOG_SUFFIX) + suffix)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The files of one partition in one log directory."""

    topic: str
    partition: int
    directory: Location
    segments: tuple[ListedSegment, ...]
    """Ascending; those that hold nothing at or above the log start are among them."""
    snapshots: tuple[int, ...]
    """Offsets of its producer snapshots, ascending."""
    files: frozenset[str]
    """Names of all its files."""
    log_start_offset: int

    @property
    def name(self) -> str:
        """Topic and partition as in `my-topic-0`."""
        return names.partition_dir_name(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size for segment in self.segments)

    def has_segments_of(self, other: PartitionLog) -> bool:
        """True if the files of another listing are unchanged; new ones, and a longer last one, do not count."""
        sizes = {segment.location: segment.size for segment in self.segments}
        return all(
            sizes.get(one.location, -1) >= one.size if one.is_last else sizes.get(one.location) == one.size
            for one in other.segments
        )

    def has(self, location: Location) -> bool:
        """True if a file was in the directory when it was listed."""
        return location.name in self.files


def find_partitions(paths: Sequence[str], topics: Iterable[str] = ()) -> list[PartitionLog]:
    """Return the partitions below `paths`, of `topics` if any are named, by topic, number and directory.

    SparkError if a path matches nothing, or nothing that holds partitions.
    """
    wanted = frozenset(topics)
    found: dict[Location, PartitionLog] = {}
    starts: dict[Location, dict[tuple[str, int], int]] = {}
    for text in paths:
        location = Location.parse(text)
        matches = location.expand()
        listed = [logs for match in matches if (logs := _partitions_at(match, starts)) is not None]
        if not listed:
            raise SparkError(
                f"{location}: expected a log directory, with directories such as my-topic-0 in it, one of those, or a glob of "
                f"them; found {'nothing' if not any(match.find() for match in matches) else 'no partition'}"
            )
        for logs in listed:
            for log in logs:
                found[log.directory] = log
    chosen = [log for log in found.values() if not wanted or log.topic in wanted]
    missing = wanted - {log.topic for log in chosen}
    if missing:
        raise SparkError(
            f"there is no topic {sorted(missing)[0]!r} in {', '.join(str(Location.parse(one)) for one in paths)}"
        )
    return sorted(chosen, key=lambda log: (log.topic, log.partition, str(log.directory)))


def list_again(log: PartitionLog) -> PartitionLog:
    """Return the partition as it is now. FileNotFoundError if it was deleted."""
    return _partition(log.directory, log.topic, log.partition, log.directory.entries(), {})


def log_id(directory: Location) -> int:
    """Return the number of the log in a partition's directory: 63 bits of a hash of where it lies."""
    return int.from_bytes(blake2b(str(directory).encode(), digest_size=8).digest(), "big") >> 1


def log_directories(logs: Iterable[PartitionLog]) -> list[Location]:
    """Return the log directories that partitions lie in."""
    return sorted({log.directory.parent for log in logs}, key=str)


def read_checkpoint(log_directory: Location, name: str) -> dict[tuple[str, int], int]:
    """Return the offsets in a checkpoint file of a log directory; none if it is missing or damaged, as a start has it."""
    location = log_directory.child(name)
    try:
        return read_offset_checkpoint(cast("Env", _OneFile(location)), str(location))
    except CorruptLog:
        return {}


class _OneFile:
    """As much of an `Env` as it takes to read one file."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def read_bytes(self, path: str) -> bytes:
        return self._location.read_bytes()


def _partitions_at(location: Location, starts: dict[Location, dict[tuple[str, int], int]]) -> list[PartitionLog] | None:
    """Return the partitions in a log directory, or the one that a directory is; None if it is neither."""
    try:
        entries = location.entries()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if any(names.is_segment_file(entry.name) for entry in entries):
        try:
            topic, partition = names.parse_partition_dir(location.name)
        except ValueError as error:
            raise SparkError(f"{location}: {error}; a copy of a partition needs its name back") from None
        return [_partition(location, topic, partition, entries, starts)]
    logs = []
    for entry in entries:
        if not entry.is_dir or names.set_aside_suffix(entry.name):
            continue
        try:
            topic, partition = names.parse_partition_dir(entry.name)
        except ValueError:
            continue
        if topic == names.METADATA_TOPIC:
            continue
        directory = location.child(entry.name)
        try:
            logs.append(_partition(directory, topic, partition, directory.entries(), starts))
        except FileNotFoundError:
            continue  # Deleted since the log directory was listed.
    if not logs and not any(entry.name == names.META_PROPERTIES for entry in entries):
        return None
    return logs


def _partition(
    directory: Location,
    topic: str,
    partition: int,
    entries: list[Entry],
    starts: dict[Location, dict[tuple[str, int], int]],
) -> PartitionLog:
    log_directory = directory.parent
    if log_directory not in starts:
        starts[log_directory] = read_checkpoint(log_directory, names.LOG_START_OFFSET_CHECKPOINT)
    files = []
    snapshots = []
    for entry in entries:
        parsed = names.parse_segment_file(entry.name)
        if parsed is None or parsed.stage:
            continue
        if parsed.suffix == names.LOG_SUFFIX:
            files.append((parsed.offset, entry))
        elif parsed.suffix == names.SNAPSHOT_SUFFIX:
            snapshots.append(parsed.offset)
    files.sort()
    ends: list[int | None] = [offset for offset, _ in files[1:]]
    segments = tuple(
        ListedSegment(directory.child(entry.name), offset, entry.size, end)
        for (offset, entry), end in zip(files, [*ends, None], strict=False)
    )
    start = max(segments[0].base_offset if segments else 0, starts[log_directory].get((topic, partition), 0))
    return PartitionLog(
        topic,
        partition,
        directory,
        segments,
        tuple(sorted(snapshots)),
        frozenset(entry.name for entry in entries),
        start,
    )
