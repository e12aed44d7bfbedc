r"""The small text files of a log directory (Kafka's CheckpointFile, PartitionMetadataFile, CleanShutdownFileHandler).

Offset checkpoints (recovery points, high watermarks, log starts, cleaner offsets) and the leader epochs of a partition:

    0                       version
    2                       number of lines that follow
    my-topic 0 42           topic partition offset; for leader epochs: epoch start-offset, ascending
    my-topic 1 7

An empty file, or one with only a version, has no entries. All are UTF-8 with `\n` after each line. They are caches: if one is
missing or damaged, startup only takes longer, or logs begin at their first segment. (Without recovery points, the broker also
cannot decide which part of a damaged log to truncate: see `recovery.open_log`.)

`partition.metadata`, without a line end after the second line (Kafka calls a partition without this file stray):

    version: 0
    topic_id: l2nmKpPwQoOznXvtmR-QdQ

`.kafka_cleanshutdown`, whose existence marks a clean shutdown:

    {"version":0,"brokerEpoch":13}
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.uuid_text import ZERO_ID, uuid_from_text, uuid_to_text

TopicPartition: TypeAlias = tuple[str, int]

VERSION = 0
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
CUT_NOTHING = 2**63 - 1
"""Recovery point of a refused partition. Until an operator decides, every startup checks the whole log and truncates nothing."""


# -- offset checkpoints ------------------------------------------------------------------------------------------------


def read_offset_checkpoint(env: Env, path: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint; return no entries if the file is missing. Raises CorruptLog, naming the line."""
    offsets = {}
    for number, fields in read_entries(env, path, 3):
        try:
            offsets[fields[0], int(fields[1])] = int(fields[2])
        except ValueError:
            raise CorruptLog(path, number, f"expected topic, partition and offset, got {' '.join(fields)!r}") from None
    return offsets


def read_recovery_point(env: Env, log_directory: str, partition: TopicPartition) -> int | None:
    """Return the recovery point of a partition: 0 if the file has no entry for it, None if there is no file.

    Raises CorruptLog as in `read_offset_checkpoint`.
    """
    path = f"{log_directory}/{names.RECOVERY_POINT_CHECKPOINT}"
    return read_offset_checkpoint(env, path).get(partition, 0) if env.exists(path) else None


def write_offset_checkpoint(env: Env, path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
    """Replace an offset checkpoint atomically and, with `sync`, durably; blocks on the disk."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    env.write_atomically(path, format_checkpoint(lines), sync=sync)


def read_entries(env: Env, path: str, field_count: int) -> list[tuple[int, list[str]]]:
    """Return `(line number, fields)` for each entry of a checkpoint file; an empty list if it is missing. Raises CorruptLog."""
    try:
        lines = env.read_bytes(path).decode("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise CorruptLog(path, 1, f"expected UTF-8 text: {error}") from None
    if not lines:
        return []
    if lines[0].strip() != str(VERSION):
        raise CorruptLog(path, 1, f"expected version {VERSION}, got {lines[0][:40]!r}")
    if len(lines) == 1:
        return []
    if not lines[1].strip().isdecimal():
        raise CorruptLog(path, 2, f"expected the number of entries, got {lines[1][:40]!r}")
    expected = int(lines[1])
    entries = [(number, line.split()) for number, line in enumerate(lines[2:], 3)]
    for number, fields in entries:
        if len(fields) != field_count:
            raise CorruptLog(path, number, f"expected {field_count} fields, got {lines[number - 1][:80]!r}")
    if len(entries) != expected:
        raise CorruptLog(path, 2, f"expected {expected} entries, got {len(entries)}")
    return entries


def format_checkpoint(lines: list[str]) -> bytes:
    """Return the content of a checkpoint file with these lines."""
    return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


# -- leader epochs -----------------------------------------------------------------------------------------------------


def encode_leader_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the content of a partition's `leader-epoch-checkpoint`."""
    return format_checkpoint([f"{epoch} {start_offset}\n" for epoch, start_offset in entries])


class LeaderEpochs:
    """The leader epochs of one partition and their start offsets (Kafka's LeaderEpochFileCache, KIP-101).

    `entries` are `(epoch, start offset)`, both ascending. Changes stay in memory until `sync` writes the file. Every flush calls
    `sync` before it advances the recovery point, and so does closing the log. After a crash, lost epochs are rebuilt from the
    batches at and above the recovery point. (Kafka writes each change immediately, which costs one fsync per partition at every
    startup.) Owned by one thread; only `sync` may run in another.
    """

    __slots__ = ("_env", "_written", "entries", "latest_epoch", "path")

    def __init__(self, env: Env, path: str, entries: list[tuple[int, int]] | None = None) -> None:
        self.path = path
        """Path of the file; must be updated when its directory is renamed."""
        self.entries = [] if entries is None else entries
        self.latest_epoch = self.entries[-1][0] if self.entries else UNDEFINED_EPOCH
        """Greatest epoch, -1 if there is none."""
        self._env = env
        self._written: list[tuple[int, int]] | None = None
        """The entries in the file; None if the file may not exist."""

    @classmethod
    def load(cls, env: Env, directory: str) -> LeaderEpochs:
        """Read the epochs of the partition in `directory`; there are none if the file is missing or empty.

        As in Kafka, an entry replaces earlier ones that contradict it. Raises CorruptLog if a line is invalid.
        """
        path = f"{directory}/{names.LEADER_EPOCH_CHECKPOINT}"
        entries: list[tuple[int, int]] = []
        for number, fields in read_entries(env, path, 2):
            try:
                epoch, start_offset = map(int, fields)
            except ValueError:
                raise CorruptLog(path, number, f"expected epoch and offset, got {' '.join(fields)!r}") from None
            entries = _with_epoch(entries, epoch, start_offset)
        epochs = cls(env, path, entries)
        if entries:
            epochs._written = epochs.entries
        return epochs

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset` and drop contradicting entries; return True if anything changed."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"{self.path}: expected a non-negative epoch and offset, got {epoch} and {start_offset}")
        entries = self.entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:
            return False
        self._replace(_with_epoch(entries, epoch, start_offset))
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or above `end_offset`."""
        if self.entries and self.entries[-1][1] >= end_offset:
            self._replace([entry for entry in self.entries if entry[1] < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end at or below `start_offset`; let the epoch that contains this offset begin there."""
        entries = self.entries
        count = bisect_right(entries, start_offset, key=lambda entry: entry[1])
        if count and entries[count - 1][1] != start_offset:
            self._replace([(entries[count - 1][0], start_offset), *entries[count:]])
        elif count > 1:
            self._replace(entries[count - 1 :])

    def clear(self) -> None:
        """Drop every epoch."""
        if self.entries:
            self._replace([])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the greatest known epoch at or below `epoch`, and its end offset (`endOffsetFor`).

        For an epoch below the first known one, returns `epoch` and the start offset of the first known one. Returns `(-1, -1)`
        if `epoch` is -1 or above the latest one, or if no epochs are known.
        """
        entries = self.entries
        if not entries or epoch == UNDEFINED_EPOCH or epoch > self.latest_epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        count = bisect_right(entries, epoch, key=lambda entry: entry[0])
        return (entries[count - 1][0] if count else epoch), entries[count][1]

    def epoch_for_offset(self, offset: int) -> int:
        """Return the epoch that wrote `offset`, -1 if unknown."""
        count = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[count - 1][0] if count else UNDEFINED_EPOCH

    def sync(self) -> None:
        """Write the file atomically and durably if the entries have changed; blocks on the disk.

        Like Kafka, also creates a file without entries. Does nothing if the directory is missing.
        """
        entries = self.entries
        if entries is self._written:
            return
        try:
            self._env.write_atomically(self.path, encode_leader_epochs(entries))
        except FileNotFoundError:
            return
        self._written = entries

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        # Always a new list: `sync` may be reading the old one in another thread.
        self.entries = entries
        self.latest_epoch = entries[-1][0] if entries else UNDEFINED_EPOCH


def _with_epoch(entries: list[tuple[int, int]], epoch: int, start_offset: int) -> list[tuple[int, int]]:
    """Return the entries that do not contradict the new epoch's start, followed by the new epoch."""
    return [*(entry for entry in entries if entry[0] < epoch and entry[1] < start_offset), (epoch, start_offset)]


# -- partition.metadata ------------------------------------------------------------------------------------------------


def format_partition_metadata(topic_id: UUID) -> bytes:
    """Return the content of `partition.metadata`."""
    return f"version: {VERSION}\ntopic_id: {uuid_to_text(topic_id)}".encode("ascii")


def write_partition_metadata(env: Env, directory: str, topic_id: UUID) -> None:
    """Write a partition's topic id durably; required before the first record is appended. Blocks on the disk."""
    env.write_atomically(f"{directory}/{names.PARTITION_METADATA}", format_partition_metadata(topic_id))


def read_partition_metadata(env: Env, directory: str) -> UUID | None:
    """Return a partition's topic id, None if the file is missing. Raises CorruptLog if the file is invalid."""
    path = f"{directory}/{names.PARTITION_METADATA}"
    try:
        lines = env.read_bytes(path).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    values = {}
    for number, (line, key) in enumerate(zip(lines, ("version", "topic_id"), strict=False), 1):
        name, _, value = line.partition(":")
        if name != key or not value[:1].isspace() or not value.strip():
            raise CorruptLog(path, number, f"expected '{key}: ...', got {line[:80]!r}")
        values[key] = value.strip()
    if "topic_id" not in values:
        raise CorruptLog(path, len(lines) + 1, "expected a version and a topic_id line")
    if not values["version"].isdecimal():
        raise CorruptLog(path, 1, f"expected a version number, got {values['version']!r}")
    try:
        topic_id = uuid_from_text(values["topic_id"])
    except ValueError as error:
        raise CorruptLog(path, 2, str(error)) from None
    if topic_id == ZERO_ID:
        raise CorruptLog(path, 2, "the topic id is zero")
    return topic_id


# -- .kafka_cleanshutdown ----------------------------------------------------------------------------------------------


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the content of the clean-shutdown mark."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode("ascii")


def write_clean_shutdown(env: Env, directory: str, broker_epoch: int = -1) -> None:
    """Mark a log directory as cleanly shut down. Must be the last write to it. Blocks on the disk."""
    env.write_atomically(f"{directory}/{names.CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch))


def read_clean_shutdown(env: Env, directory: str) -> int | None:
    """Return the broker epoch in the clean-shutdown mark; -1 if unknown, None if there is no mark.

    An empty file counts as a mark, since older brokers wrote empty ones (`CleanShutdownFileHandler.read`).
    """
    try:
        content = env.read_bytes(f"{directory}/{names.CLEAN_SHUTDOWN}")
    except FileNotFoundError:
        return None
    try:
        broker_epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, TypeError, KeyError):
        return -1
    return broker_epoch if isinstance(broker_epoch, int) else -1
