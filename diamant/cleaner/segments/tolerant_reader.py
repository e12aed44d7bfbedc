"""Reads the files of a log directory without a broker and without changing them, for `diamant log dump`, `stats` and `find`.

    with open_log_directory(env, path) as directory:
        for partition in directory.partitions:
            for segment in partition.segments:
                for batch in iter_batches(env, segment, problems.append): ...

A directory that a broker has locked is refused. If a `.lock` file exists, it is locked, so that no broker can start on the
directory. Diamant removes that file in an orderly stop, so a broker may start during the read. This does no harm: only whole
batches are read, and a file that disappears is reported as a problem.

Memory: `READ_BYTES`, or one batch if that is larger, up to `MAX_BATCH_BYTES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import TracebackType
from typing import NamedTuple, NoReturn, TypeAlias
from zlib import crc32

from crc32c import crc32c

from diamant.protocol.batches.batch_records import iter_records, records_payload
from diamant.protocol.batches.compression import MAX_BATCH_BYTES, NONE
from diamant.protocol.batches.header import (
    ATTRIBUTES,
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MAGIC,
    MAX_OFFSET,
    MIN_BATCH_LENGTH,
    MIN_ENTRY_LENGTH,
    BatchHeader,
    Record,
)
from diamant.protocol.batches.legacy import parse_legacy_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition, read_offset_checkpoint
from diamant.storage.env.env import Env, File, ReadLock
from diamant.storage.errors import CorruptLog, StorageError, WrongInput

READ_BYTES = 4 * 1024 * 1024

_PREFIX = Struct(">qiIb")  # offset, length, epoch or CRC, magic


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect found while reading."""

    path: str
    position: int | None
    """Byte position in the file; None if the problem concerns the whole file."""
    reason: str

    @classmethod
    def of(cls, path: str, error: StorageError | OSError) -> Problem:
        """Convert an error into a problem of `path`, or of the file that the error names."""
        if isinstance(error, OSError):
            return cls(str(error.filename or path), None, f"cannot be read: {error.strerror or error}")
        return cls(path, None, str(error))

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}" if self.position is None else f"{self.path} at {self.position}: {self.reason}"
        )


Report: TypeAlias = Callable[[Problem], object]
"""A function that is called for each problem; then reading continues."""


def fail(problem: Problem) -> NoReturn:
    """Raise a problem as CorruptLog. This is the `Report` of readers that need every batch."""
    raise CorruptLog(problem.path, problem.position or 0, problem.reason)


Advance: TypeAlias = Callable[[int], object]
"""A function that is called with the number of bytes read since the previous call."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """The `.log` file of a segment at the time of listing."""

    path: str
    base_offset: int
    size: int
    end_offset: int | None = None
    """Base offset of the next segment; None for the last one, which may still be written to."""

    @property
    def is_last(self) -> bool:
        """True if it is the partition's last segment."""
        return self.end_offset is None

    def index(self, suffix: str) -> str:
        """Return the path of the segment's index with this suffix; the file may not exist."""
        return self.path.removesuffix(names.LOG_SUFFIX) + suffix


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """One partition's directory, on the local machine or in any file system that Spark tasks can read."""

    topic: str
    partition: int
    directory: str
    segments: tuple[SegmentFile, ...]
    """The segments, ascending by base offset, including those entirely below the log start."""
    log_start_offset: int
    files: frozenset[str] = frozenset()
    """Names of all files in the directory."""
    filesystem: str = ""
    """The file system that has these paths (`spark.environment.locations`); empty for the local one."""

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Names of files with the suffixes `.deleted`, `.cleaned`, `.swap` or `.aside`, ascending."""
        return tuple(name for name, parsed in self._parsed() if parsed.stage)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Offsets of the producer snapshots, ascending."""
        return tuple(one.offset for _, one in self._parsed() if one.suffix == names.SNAPSHOT_SUFFIX and not one.stage)

    def _parsed(self) -> Iterator[tuple[str, names.SegmentFileName]]:
        for name in sorted(self.files):
            parsed = names.parse_segment_file(name)
            if parsed is not None:
                yield name, parsed

    def has(self, path: str) -> bool:
        """Return whether the listing contains a file."""
        return os.path.basename(path) in self.files

    @property
    def name(self) -> str:
        """Topic and partition, such as `my-topic-0`."""
        return names.partition_dir_name(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size for segment in self.segments)


class Batch(NamedTuple):
    """A whole batch in a file."""

    position: int
    header: BatchHeader
    crc_is_valid: bool
    buffer: bytes
    """Bytes in which the batch begins at `at`."""
    at: int

    def records(self) -> Iterator[Record]:
        """Yield the records. Raises CorruptBatch like `iter_records`."""
        return iter_records(self.buffer, self.at)

    def may_have(self, needle: bytes) -> bool:
        """Return False if `needle` does not occur in the records' bytes, which then need no parsing. Raises CorruptBatch."""
        if not needle or self.header.magic != CURRENT_MAGIC:
            return True
        if self.header.codec == NONE:
            return self.buffer.find(needle, self.at + HEADER_SIZE, self.at + self.header.size) >= 0
        return needle in records_payload(self.buffer, self.at, self.header)


@dataclass(slots=True)
class OpenLogDirectory:
    """A log directory, or one partition of it, locked against brokers until `close`."""

    path: str
    """The log directory; for a single partition, the directory above it."""
    partitions: tuple[PartitionFiles, ...]
    cleaner_checkpoint: dict[tuple[str, int], int] = field(default_factory=dict)
    """End of each partition's clean section, from `cleaner-offset-checkpoint`."""
    cleaner_checkpoint_ms: int | None = None
    """Time of the last write to `cleaner-offset-checkpoint`; None if the file does not exist."""
    problems: list[Problem] = field(default_factory=list)
    """Problems of the directory itself, not of its partitions, whose batches have not been read yet."""
    set_aside: tuple[str, ...] = ()
    """Directories that await deletion (`-delete`) or belong to no topic (`-stray`, `-future`), and files that a broker's
    start removed from a log (`.aside`)."""
    was_orderly: bool = True
    """True if the directory has the file `.kafka_cleanshutdown`, which a broker leaves in an orderly stop."""
    lock: ReadLock | None = None

    def __enter__(self) -> OpenLogDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self.lock is not None:
            self.lock.release()

    def keep_topics(self, topics: Collection[str]) -> None:
        """Keep only the partitions of these topics; all if `topics` is empty. Raises WrongInput if a topic has none."""
        missing = set(topics) - {partition.topic for partition in self.partitions}
        if missing:
            raise WrongInput(f"there is no topic {min(missing)!r} in {self.path}")
        if topics:
            self.partitions = tuple(partition for partition in self.partitions if partition.topic in topics)


def open_log_directory(env: Env, path: str) -> OpenLogDirectory:
    """Find the partitions in `path`, a log directory or the directory of one partition. The metadata log is omitted
    unless `path` is its directory.

    Raises StorageError if a broker has locked the directory, or if it has no partitions.
    """
    path = os.path.abspath(path)
    is_partition = is_partition_directory(env, path)
    log_directory = os.path.dirname(path) if is_partition else path
    opened = OpenLogDirectory(log_directory, (), lock=lock_for_reading(env, log_directory))
    opened.was_orderly = env.exists(f"{log_directory}/{names.CLEAN_SHUTDOWN}")
    try:
        starts = _read_checkpoint(env, opened, names.LOG_START_OFFSET_CHECKPOINT)
        opened.cleaner_checkpoint = _read_checkpoint(env, opened, names.CLEANER_CHECKPOINT)
        if env.exists(f"{log_directory}/{names.CLEANER_CHECKPOINT}"):
            opened.cleaner_checkpoint_ms = env.mtime_ms(f"{log_directory}/{names.CLEANER_CHECKPOINT}")
        if is_partition:
            try:
                partition = names.parse_partition_dir(os.path.basename(path))
            except ValueError as error:
                raise StorageError(f"{error}; rename the copy to the partition's original name") from None
            opened.partitions = (list_partition(env, path, partition, starts),)
        else:
            _list_partitions(env, opened, starts)
        opened.set_aside += tuple(
            f"{one.directory}/{name}"
            for one in opened.partitions
            for name in one.leftovers
            if name.endswith(names.ASIDE_SUFFIX)
        )
    except BaseException:
        opened.close()
        raise
    return opened


def is_partition_directory(env: Env, path: str) -> bool:
    """Tell whether a directory has segments in it, which makes it a partition's directory, not a log directory."""
    return any(names.is_segment_file(name) for name in env.list_dir(path))


def check_is_log_directory(env: Env, path: str, *, has_partitions: bool, problems: Sequence[Problem] = ()) -> None:
    """Raise WrongInput if a directory has no partitions and was not formatted by a broker."""
    if not has_partitions and not env.exists(f"{path}/{names.META_PROPERTIES}"):
        unread = f". {problems[0]}" if problems else ""
        raise WrongInput(
            f"{path}: not a log directory: expected directories such as my-topic-0 with segments in them, or one of these "
            f"directories; found no partition{unread}"
        )


def lock_for_reading(env: Env, log_directory: str) -> ReadLock | None:
    """Lock a log directory against brokers; None if it has no `.lock` file. Raises StorageError if a broker has locked it."""
    try:
        return env.lock_for_reading(f"{log_directory}/{names.LOCK}")
    except StorageError as error:
        raise StorageError(f"{error}; stop the broker that runs on {log_directory}, or read a copy") from None


def _list_partitions(env: Env, opened: OpenLogDirectory, starts: Mapping[TopicPartition, int]) -> None:
    found = []
    set_aside = []
    for name in env.list_dir(opened.path):
        directory = f"{opened.path}/{name}"
        if not env.is_dir(directory):
            continue
        if names.set_aside_suffix(name):
            set_aside.append(directory)
            continue
        partition = partition_in_use(name)
        if partition is None:
            continue
        try:
            found.append(list_partition(env, directory, partition, starts))
        except OSError as error:
            opened.problems.append(Problem.of(directory, error))
    # Directories of other programs may also be named like partitions, for example dbus-1.
    check_is_log_directory(
        env, opened.path, has_partitions=any(one.segments for one in found), problems=opened.problems
    )
    opened.partitions = tuple(sorted(found, key=lambda one: (one.topic, one.partition)))
    opened.set_aside = tuple(set_aside)


def partition_in_use(name: str) -> TopicPartition | None:
    """Parse the name of a partition's directory; return None for all other names and for the metadata log."""
    try:
        partition = names.parse_partition_dir(name)
    except ValueError:
        return None
    return None if names.set_aside_suffix(name) or partition[0] == names.METADATA_TOPIC else partition


def list_partition(
    env: Env, directory: str, partition: TopicPartition, starts: Mapping[TopicPartition, int]
) -> PartitionFiles:
    sizes = {
        name: env.file_size(f"{directory}/{name}")
        if names.is_segment_file(name) and name.endswith(names.LOG_SUFFIX)
        else 0
        for name in env.list_dir(directory)
    }
    return listed_partition(directory, partition, sizes, starts)


def listed_partition(
    directory: str,
    partition: TopicPartition,
    sizes: Mapping[str, int],
    starts: Mapping[TopicPartition, int],
    filesystem: str = "",
) -> PartitionFiles:
    """Describe the partition in a directory. `sizes`: its files, with the sizes of segments; `starts`: log start offsets."""
    parsed = ((names.parse_segment_file(name), name) for name in sizes)
    offsets = sorted(
        (one.offset, name) for one, name in parsed if one and not one.stage and one.suffix == names.LOG_SUFFIX
    )
    ends = [*(offset for offset, _ in offsets[1:]), None]
    segments = tuple(
        SegmentFile(f"{directory}/{name}", offset, sizes[name], end)
        for (offset, name), end in zip(offsets, ends, strict=False)
    )
    start = max(segments[0].base_offset if segments else 0, starts.get(partition, 0))
    return PartitionFiles(*partition, directory, segments, start, frozenset(sizes), filesystem)


def _read_checkpoint(env: Env, opened: OpenLogDirectory, name: str) -> dict[tuple[str, int], int]:
    path = f"{opened.path}/{name}"
    try:
        return read_offset_checkpoint(env, path)
    except CorruptLog as error:
        opened.problems.append(Problem(path, None, f"line {error.position}: {error.reason}"))
        return {}


def iter_batches(env: Env, segment: SegmentFile, report: Report, advance: Advance | None = None) -> Iterator[Batch]:
    """Yield the whole batches of a segment, of any magic.

    Problems are passed to `report` when they are found: a wrong checksum (the batch is yielded nevertheless, with `crc_is_valid`
    False), an offset out of order, and bytes that are not a batch, which end the segment.
    """
    try:
        file = env.open(segment.path, read_only=True)
    except OSError as error:
        report(Problem(segment.path, None, f"cannot be read: {error.strerror or error}"))
        return
    try:
        yield from iter_open_batches(file, segment, file.size(), report, advance)
    finally:
        file.close()


def iter_open_batches(
    file: File,
    segment: SegmentFile,
    size: int,
    report: Report,
    advance: Advance | None = None,
    read_bytes: int = READ_BYTES,
) -> Iterator[Batch]:
    """Yield the batches in the first `size` bytes of a segment's open file, like `iter_batches`."""
    yield from Walk(file, segment, size, report, advance, read_bytes).batches()


class Walk:
    """One pass over a segment, of which at most `read_bytes` or one batch are in memory."""

    def __init__(
        self,
        file: File,
        segment: SegmentFile,
        size: int,
        report: Report,
        advance: Advance | None,
        read_bytes: int = READ_BYTES,
    ) -> None:
        self._file = file
        self._size = size
        self._path = segment.path
        self._report = report
        self._advance = advance
        self._read_bytes = read_bytes
        self._counted = 0
        self.position = 0
        """Start of the next batch; at the end of the segment, its size."""
        self.last_offset = min(segment.base_offset - 1, MAX_OFFSET)
        """The greatest offset so far."""

    def batches(self, stop: int | None = None) -> Iterator[Batch]:
        """Yield the batches from `position` on that begin before byte `stop`."""
        size = self._size
        stop = size if stop is None else min(stop, size)
        position = start = self.position
        buffer = b""
        unpack_prefix = _PREFIX.unpack_from
        while position < stop:
            at = position - start
            if at + HEADER_SIZE_UP_TO_MAGIC > len(buffer):
                buffer, start, at = self._read(position, self._read_bytes), position, 0
                if len(buffer) < HEADER_SIZE_UP_TO_MAGIC:
                    self._problem(position, f"the last {size - position} bytes are not a whole batch")
                    position = size
                    break
            _, length, _, magic = unpack_prefix(buffer, at)
            entry_size = length + LOG_OVERHEAD
            if reason := self._unsound(position, length, magic):
                self._problem(position, reason)
                position = size
                break
            if at + entry_size > len(buffer):
                buffer, start, at = self._read(position, max(self._read_bytes, entry_size)), position, 0
                if len(buffer) < entry_size:
                    self._problem(position, f"the file ends after {len(buffer)} bytes: it was cut while it was read")
                    position = size
                    break
            reason = _crc_fault(buffer, at, entry_size, magic)
            if reason:
                self._problem(position, reason)
            try:
                header = BatchHeader._make(HEADER_STRUCT.unpack_from(buffer, at)) if magic == CURRENT_MAGIC else (
                    parse_legacy_header(buffer, at)
                )  # fmt: skip
            except CorruptBatch as error:
                if not reason:
                    self._problem(position, error.reason)
            else:
                if not reason:
                    self._check_order(position, header)
                yield Batch(position, header, not reason, buffer, at)
            position += entry_size
        self.position = position
        self.count(position)

    def _read(self, position: int, count: int) -> bytes:
        self.count(position)
        return self._file.pread(min(count, self._size - position), position)

    def count(self, position: int) -> None:
        """Call `advance` with the number of bytes read since the last call, up to `position`."""
        if self._advance is not None and position > self._counted:
            self._advance(position - self._counted)
            self._counted = position

    def _problem(self, position: int, reason: str) -> None:
        self._report(Problem(self._path, position, reason))

    def _unsound(self, position: int, length: int, magic: int) -> str:
        """Return the reason why the batch at `position` cannot be read; "" if it can."""
        left = self._size - position
        if length < MIN_ENTRY_LENGTH:
            if length == 0 and self._is_zero_from(position):
                return f"the last {left} bytes are zero: reserved and never written, or lost in a crash"
            return f"batch length is {length}, expected at least {MIN_ENTRY_LENGTH}"
        if not 0 <= magic <= CURRENT_MAGIC:
            return f"magic is {magic}, expected 0 to {CURRENT_MAGIC}"
        if magic == CURRENT_MAGIC and length < MIN_BATCH_LENGTH:
            return f"batch length is {length}, expected at least {MIN_BATCH_LENGTH}"
        if length + LOG_OVERHEAD > left:
            return f"the batch has {length + LOG_OVERHEAD} bytes, only {left} are left in the file"
        if length + LOG_OVERHEAD > MAX_BATCH_BYTES:
            return f"the batch has {length + LOG_OVERHEAD} bytes, at most {MAX_BATCH_BYTES} are read"
        return ""

    def _is_zero_from(self, position: int) -> bool:
        while position < self._size:
            if any(data := self._file.pread(READ_BYTES, position)) or not data:
                return False
            position += len(data)
        return True

    def _check_order(self, position: int, header: BatchHeader) -> None:
        if header.base_offset <= self.last_offset:
            self._problem(position, f"base offset is {header.base_offset}, expected one above {self.last_offset}")
        if header.last_offset_delta < 0:
            self._problem(position, f"last offset {header.last_offset} lies before base offset {header.base_offset}")
        if header.last_offset >= MAX_OFFSET:
            self._problem(position, f"last offset is {header.last_offset}, expected one below {MAX_OFFSET}")
        self.last_offset = min(max(self.last_offset, header.last_offset), MAX_OFFSET)


def _crc_fault(buffer: bytes, at: int, size: int, magic: int) -> str:
    """Return a description of the mismatch between the entry's checksum and its bytes; "" if they match."""
    with memoryview(buffer) as view:
        if magic == CURRENT_MAGIC:
            declared = int.from_bytes(view[at + 17 : at + 21], "big")
            actual = crc32c(view[at + ATTRIBUTES : at + size])
        else:
            declared = int.from_bytes(view[at + LOG_OVERHEAD : at + MAGIC], "big")
            actual = crc32(view[at + MAGIC : at + size])
    if declared == actual:
        return ""
    return f"the batch's checksum is {declared:08x}, that of its {size:,} bytes as read is {actual:08x}"
