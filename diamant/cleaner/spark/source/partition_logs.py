"""Finds the partitions below a user's paths, and lists their files. Opens only small checkpoint files.

A path is a log directory, the directory of one partition, or a glob of either. The same partition in several log directories,
like the replicas of a cluster, counts as several logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

from diamant.cleaner.spark.environment.errors import SparkMisuse
from diamant.cleaner.spark.environment.locations import Entry, Location
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment's `.log` file at the time of listing."""

    location: Location
    base_offset: int
    size: int
    end_offset: int | None
    """Base offset of the next segment; None for the last one, which may still be written to."""

    @property
    def is_last(self) -> bool:
        """True if it is the partition's last segment."""
        return self.end_offset is None

    def index(self, suffix: str) -> Location:
        """Return the location of its index with that suffix; it may not exist."""
        return self.location.parent.child(self.location.name.removesuffix(names.LOG_SUFFIX) + suffix)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The files of one partition in one log directory."""

    topic: str
    partition: int
    directory: Location
    segments: tuple[ListedSegment, ...]
    """Ascending, including those entirely below the log start."""
    snapshots: tuple[int, ...]
    """Offsets of the producer snapshots, ascending."""
    files: frozenset[str]
    """Names of all files."""
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
        """True if the segments of an earlier listing are unchanged; new segments, and a longer last one, are allowed."""
        sizes = {segment.location: segment.size for segment in self.segments}
        return all(
            sizes.get(one.location, -1) >= one.size if one.is_last else sizes.get(one.location) == one.size
            for one in other.segments
        )

    def has(self, location: Location) -> bool:
        """True if the listing contains a file."""
        return location.name in self.files


def find_partitions(paths: Sequence[str], topics: Iterable[str] = ()) -> list[PartitionLog]:
    """Return the partitions below `paths` (of `topics`, if not empty), sorted by topic, number and directory.

    Raises SparkError if a path matches nothing, or nothing with partitions.
    """
    wanted = frozenset(topics)
    found: dict[Location, PartitionLog] = {}
    starts: dict[Location, dict[tuple[str, int], int]] = {}
    for text in paths:
        location = Location.parse(text)
        matches = location.expand()
        listed = [logs for match in matches if (logs := _partitions_at(match, starts)) is not None]
        if not listed:
            raise SparkMisuse(
                f"{location}: not a log directory: expected directories such as my-topic-0 with segments in it, one of those, or "
                f"a glob of them; found {'nothing' if not any(match.find() for match in matches) else 'no partition'}"
            )
        for logs in listed:
            for log in logs:
                found[log.directory] = log
    chosen = [log for log in found.values() if not wanted or log.topic in wanted]
    missing = wanted - {log.topic for log in chosen}
    if missing:
        raise SparkMisuse(
            f"there is no topic {sorted(missing)[0]!r} in {', '.join(str(Location.parse(one)) for one in paths)}"
        )
    return sorted(chosen, key=lambda log: (log.topic, log.partition, str(log.directory)))


def list_again(log: PartitionLog) -> PartitionLog:
    """List a partition again. Raises FileNotFoundError if it was deleted."""
    return _partition(log.directory, log.topic, log.partition, log.directory.entries(), {})


def log_id(directory: Location) -> int:
    """Return the id of the log in a partition's directory: 63 bits of a hash of its location."""
    return int.from_bytes(blake2b(str(directory).encode(), digest_size=8).digest(), "big") >> 1


def log_directories(logs: Iterable[PartitionLog]) -> list[Location]:
    """Return the log directories of these partitions."""
    return sorted({log.directory.parent for log in logs}, key=str)


def read_checkpoint(log_directory: Location, name: str) -> dict[tuple[str, int], int]:
    """Return the offsets in a checkpoint file of a log directory; empty if it is missing or damaged, as at a broker's start."""
    location = log_directory.child(name)
    try:
        return read_offset_checkpoint(cast("Env", _OneFile(location)), str(location))
    except CorruptLog:
        return {}


class _OneFile:
    """The part of an `Env` needed to read one file."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def read_bytes(self, path: str) -> bytes:
        return self._location.read_bytes()


def _partitions_at(location: Location, starts: dict[Location, dict[tuple[str, int], int]]) -> list[PartitionLog] | None:
    """Return the partitions in a log directory, or the single one if it is a partition's directory; None if it is neither."""
    try:
        entries = location.entries()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if any(names.is_segment_file(entry.name) for entry in entries):
        try:
            topic, partition = names.parse_partition_dir(location.name)
        except ValueError as error:
            raise SparkMisuse(f"{location}: {error}; rename the copy to the partition's original name") from None
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
    # Directories of other programs may have such names, too: dbus-1.
    if not any(log.segments for log in logs) and not any(entry.name == names.META_PROPERTIES for entry in entries):
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
