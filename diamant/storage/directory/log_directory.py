"""A log directory: its lock, clean-shutdown mark, checkpoints and partitions.

The loop thread owns it. `load_logs` opens partitions in several threads.

Source: Kafka's LogManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar
from uuid import UUID

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.directory.checkpoint_files import CheckpointFiles, CheckpointState
from diamant.storage.directory.removal_queue import RemovalQueue
from diamant.storage.env.env import Env, Lock, parent
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import create_log, load_log
from diamant.storage.recovery.segment_recovery import SyncedDamage
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_SIGNS = (names.META_PROPERTIES, names.RECOVERY_POINT_CHECKPOINT, names.LOCK)
"""Files that identify a broker's directory."""


class PartitionSource(NamedTuple):
    """The metadata of a partition expected in the directory."""

    topic_id: UUID
    config: LogConfig


class Deletions(NamedTuple):
    """The topics that earlier runs have deleted."""

    topic_ids: Collection[UUID] = ()
    until_ms: int = 0
    """When the previous run last wrote to the metadata log, according to the file system."""


_NONE = Deletions()


class LoadFailure(NamedTuple):
    """A partition that could not be opened (or created, if `is_new`); the other partitions are available."""

    topic: str
    partition: int
    error: Exception
    is_new: bool = False


class LeftDirectory(NamedTuple):
    """A directory of a deleted partition that still has its original name."""

    metadata_offset: int
    """The deletion is durable once the metadata log is synced up to this offset. Until then the directory must stay, because the
    partition may exist again after a power failure.
    """
    delay_ms: int
    """Delay between the rename and the removal."""


class LogDirectory:
    """The partitions of one log directory. Open it with `LogDirectory.open`, close it with `close`."""

    def __init__(self, env: Env, path: str, lock: Lock, *, was_clean: bool, producer_expiration_ms: int) -> None:
        self.env = env
        self.path = path
        self.was_clean = was_clean
        self.validation = Validation()
        self.logs: dict[TopicPartition, Log] = {}
        self.messages: list[str] = []
        self.failures: list[LoadFailure] = []
        self.on_flush_due: Callable[[Log], object] | None = None
        self.on_index_damaged: Callable[[Log, Segment], object] | None = None
        self._producer_expiration_ms = producer_expiration_ms
        self._lock = lock
        self.deletions = RemovalQueue(env)
        self.checkpoint_files = CheckpointFiles(env, path)
        self.left: dict[TopicPartition, LeftDirectory] = {}
        """Directories of deleted partitions, which new partitions must not use. At most one entry per directory."""
        self._has_lost_recovery_points = False
        """True if the recovery point checkpoint is missing or damaged."""
        self._kept = CheckpointState({}, {}, {})
        """Checkpoint entries of the partitions in `failures`, kept for a later start that can open them."""

    @classmethod
    def open(cls, env: Env, path: str, *, producer_expiration_ms: int) -> LogDirectory:
        """Lock `path` and remove its clean-shutdown mark, so that a later crash is recognised.

        Raises StorageError if another process holds the directory or it is not a data directory (which is left unchanged),
        OSError if it cannot be used.
        """
        if env.is_dir(path):
            _partition_directories(env, path)
        _make_durably(env, path)
        lock = env.lock(f"{path}/{names.LOCK}")
        try:
            marker = f"{path}/{names.CLEAN_SHUTDOWN}"
            was_clean = env.exists(marker)
            if was_clean:
                env.remove(marker)
            # Even if the mark is missing: an aborted start may have removed it, and a loss of power would restore it.
            env.sync_dir(path)
        except BaseException:
            lock.release()
            raise
        return cls(env, path, lock, was_clean=was_clean, producer_expiration_ms=producer_expiration_ms)

    def give_up(self) -> LogDirectory:
        """Release all files without writing; return a new LogDirectory that keeps the lock and is treated as cleanly stopped.

        A reset calls this before it replaces the files. Readers keep the files that they have open.
        """
        for log in self.logs.values():
            log.is_deleted = True
            log.hide(log.segments)
        self.left.clear()  # in the restored state, these names belong to its own partitions
        successor = LogDirectory(
            self.env, self.path, self._lock, was_clean=True, producer_expiration_ms=self._producer_expiration_ms
        )
        successor.deletions.add(self.deletions.outside(self.path))
        return successor

    def load_logs(
        self, expected: dict[TopicPartition, PartitionSource], *, threads: int, deletions: Deletions = _NONE
    ) -> None:
        """Open the partitions in `expected`, and create those that do not exist. Blocks on the disk.

        Like Kafka, sets directories of unknown partitions aside as `-stray`, with their data. Unlike Kafka, completes deletions
        interrupted by a crash or a disk error, and removes partitions whose creation a crash interrupted. Directories being
        deleted are queued for removal again. Partitions that cannot be opened are listed in `failures`; the others are usable.
        """
        state = CheckpointState(
            self._read_recovery_points(),
            self._read_checkpoint(names.HIGH_WATERMARK_CHECKPOINT),
            self._read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT),
        )
        to_load = []
        for directory, topic_partition in _partition_directories(self.env, self.path):
            if topic_partition is not None:
                to_load.append(topic_partition)
            elif names.set_aside_suffix(directory) == names.DELETE_DIR_SUFFIX:
                self.deletions.add([directory])
        known = [topic_partition for topic_partition in to_load if self._is_known(topic_partition, expected, deletions)]
        results = _map(lambda key: self._load(key, expected[key], state), known, threads, "recovery")
        for topic_partition, result in zip(known, results, strict=True):
            if isinstance(result, Log):
                self.adopt(result)
            else:
                self.failures.append(LoadFailure(*topic_partition, result))
        self.checkpoint_files.was_read(state)
        self._keep(state)
        for failure in self.failures:
            # The next startup will find a recovery point checkpoint and no clean-shutdown mark; it still must not cut this log.
            if self._has_lost_recovery_points or isinstance(failure.error, SyncedDamage):
                self._kept.recovery_points[failure.topic, failure.partition] = checkpoints.CUT_NOTHING
        self._keep_findings(state.recovery_points)
        for (topic, partition), source in expected.items():
            if (topic, partition) not in self.logs and (topic, partition) not in self.unopened:
                self.create_log(topic, partition, source.topic_id, source.config)

    def _keep_findings(self, offsets: dict[TopicPartition, int]) -> None:
        """Write the recovery points that a start after a crash will need; this must be done before any append.

        With them, refused partitions stay refused, and appends to a log that lost its end do not count as synced. If the
        checkpoint was missing, it is created: a partition without a line then counts as created after the last checkpoint.
        """
        points = self.checkpoint_state().recovery_points
        is_news = any(
            key in points and (points[key] < offset or points[key] == checkpoints.CUT_NOTHING != offset)
            for key, offset in offsets.items()
        )
        if not is_news and not self._has_lost_recovery_points:
            return
        try:
            self.checkpoint_files.write_recovery_points(points)
        except OSError as error:
            self.messages.append(
                f"the recovery points of this start cannot be written before the next checkpoint: {error}"
            )

    def _is_known(
        self,
        topic_partition: TopicPartition,
        expected: dict[TopicPartition, PartitionSource],
        deletions: Deletions,
    ) -> bool:
        directory = "{}/{}-{}".format(self.path, *topic_partition)
        source, topic_id = expected.get(topic_partition), _topic_id(self.env, directory, self.messages)
        if source is not None and topic_id == source.topic_id:
            return True
        # A directory set aside would stay forever, and would prevent the certification of erasures in a topic of this name.
        left = _why_left(self.env, directory, topic_id, deletions, was_clean=self.was_clean)
        if left is not None:
            self._take_away(topic_partition, 0)
            self.messages.append(f"{directory}: removed: {left}")
        else:
            reason = _why_unknown(source, topic_id, deletions)
            self.messages.append(_set_aside(self.env, self.path, topic_partition, reason))
        return False

    def _load(
        self,
        topic_partition: TopicPartition,
        source: PartitionSource,
        state: CheckpointState,
    ) -> Log | Exception:
        topic, partition = topic_partition
        recovery_point = self._recovery_point(state.recovery_points.get(topic_partition))
        try:
            log = load_log(
                self.env,
                f"{self.path}/{topic}-{partition}",
                topic,
                partition,
                source.topic_id,
                source.config,
                self.validation,
                recovery_point=recovery_point,
                log_start_offset=state.log_starts.get(topic_partition, 0),
                is_clean=self.was_clean,
                producer_expiration_ms=self._producer_expiration_ms,
                messages=self.messages,
            )
            if recovery_point is None or recovery_point == checkpoints.CUT_NOTHING:
                log.flush()  # the whole log is sound, so no later startup may truncate it
            return log
        except Exception as error:  # the other partitions must open, whatever the error
            return error

    def _recovery_point(self, stored: int | None) -> int | None:
        return (None if self._has_lost_recovery_points else 0) if stored is None else stored

    def _read_recovery_points(self) -> dict[TopicPartition, int]:
        said = len(self.messages)
        points = self._read_checkpoint(names.RECOVERY_POINT_CHECKPOINT)
        is_there = self.env.exists(f"{self.path}/{names.RECOVERY_POINT_CHECKPOINT}")
        self._has_lost_recovery_points = not is_there or len(self.messages) > said
        return points

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offset_checkpoint(self.env, f"{self.path}/{name}")
        except CorruptLog as error:
            self.messages.append(f"{error}; treated as empty")
            return {}

    @property
    def unopened(self) -> set[TopicPartition]:
        """The partitions in `failures`."""
        return {(failure.topic, failure.partition) for failure in self.failures}

    def _keep(self, state: CheckpointState) -> None:
        """Keep the checkpoint entries of the partitions in `failures`."""
        self._kept = state.only(self.unopened.__contains__)

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> Log:
        """Create an empty partition. The metadata log must already contain its topic, or a restart treats it as stray."""
        self.checkpoint_files.forget([(topic, partition)])
        log = create_log(
            self.env,
            f"{self.path}/{topic}-{partition}",
            topic,
            partition,
            topic_id,
            config,
            self.validation,
            producer_expiration_ms=self._producer_expiration_ms,
        )
        self.adopt(log)
        return log

    def adopt(self, log: Log) -> None:
        log.on_files_removed = self.deletions.add
        log.on_flush_due = self.on_flush_due
        log.on_index_damaged = self.on_index_damaged
        self.logs[log.topic, log.partition] = log

    def delete_log(self, log: Log, metadata_offset: int) -> None:
        """Stop using a deleted partition and add its directory to `left`. `metadata_offset`: the end of the deletion records."""
        del self.logs[log.topic, log.partition]
        log.is_deleted = True
        for segment in log.segments:
            segment.is_deleted = True
            # Readers keep the file open. Nothing else may, because an open file stays on disk after its removal.
            segment.release_file()
        self.left[log.topic, log.partition] = LeftDirectory(metadata_offset, log.config.file_delete_delay_ms)
        for callback in log.on_change:
            callback()

    def delete_unopened(self, topic: str, metadata_offset: int) -> None:
        """Like `delete_log`, but for a topic's unopened partitions, and without a delay, since they have no readers."""
        doomed = [(topic, failure.partition) for failure in self.failures if failure.topic == topic]
        # Do this even if the directories stay: they must not be opened, and no other partition may use their checkpoint entries.
        self.failures = [failure for failure in self.failures if failure.topic != topic]
        self._keep(self._kept)
        self.left.update(dict.fromkeys(doomed, LeftDirectory(metadata_offset, 0)))

    def take_away_left(self, partitions: Iterable[TopicPartition], synced_offset: int) -> None:
        """Rename the directories of deleted partitions to `-delete`, and queue their removal after `file.delete.delay.ms`.

        Skips deletions beyond `synced_offset` of the metadata log. Tries all, then raises OSError if a rename failed.
        """
        failure: OSError | None = None
        for partition in self.left.keys() & set(partitions):
            left = self.left[partition]
            if left.metadata_offset > synced_offset:
                continue
            try:
                self._take_away(partition, left.delay_ms)
                del self.left[partition]
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _take_away(self, partition: TopicPartition, delay_ms: int) -> None:
        """Rename a directory to `-delete` and queue its removal; a missing one counts as removed."""
        topic, index = partition
        doomed = f"{self.path}/{names.delete_dir_name(topic, index)}"
        with suppress(FileNotFoundError):
            self.env.rename(f"{self.path}/{topic}-{index}", doomed)
            self.deletions.add([doomed], delay_ms)

    def checkpoint_state(self) -> CheckpointState:
        """Return the offsets to checkpoint, including the kept entries of unopened partitions. Call on the loop thread."""
        kept, logs = self._kept, self.logs
        return CheckpointState(
            {**kept.recovery_points, **{key: log.recovery_point for key, log in logs.items()}},
            {**kept.high_watermarks, **{key: log.high_watermark for key, log in logs.items()}},
            {
                **kept.log_starts,
                **{key: log.log_start_offset for key, log in logs.items() if log.needs_start_checkpoint},
            },
            self.checkpoint_files.next_number(),
        )

    def close(
        self, *, is_clean: bool = True, is_settled: bool = True, broker_epoch: int = -1, threads: int = 1
    ) -> None:
        """Close all partitions and release the lock. Blocks on the disk.

        With `is_clean`, syncs everything and writes the checkpoints. The clean-shutdown mark is written too, unless a partition
        could not be flushed or opened, or a thread may still change files (`is_settled` is False). Disk errors are added to
        `messages` and do not stop the close, even on a full disk; the next start recovers.
        """
        logs = list(self.logs.values())
        all_flushed = is_clean and is_settled and not self.failures
        try:
            for error in _map(lambda log: _close(log, is_clean=is_clean), logs, threads, "close"):
                if error is not None:
                    all_flushed = False
                    self.messages.append(str(error))
            if is_clean:
                self.checkpoint_files.write(self.checkpoint_state())
            if all_flushed and all(log.write_failure is None for log in logs):
                checkpoints.write_clean_shutdown(self.env, self.path, broker_epoch)
        except OSError as error:
            self.messages.append(f"the shutdown is not clean: {error}")
        finally:
            self._lock.release()


def _map(do: Callable[[_In], _Out], items: Sequence[_In], threads: int, name: str) -> list[_Out]:
    """Apply `do` to each item in the calling thread and `threads` - 1 others, or fewer if the system refuses some."""
    results: dict[int, _Out] = {}
    left = iter(enumerate(items))

    def work() -> None:
        for number, item in left:
            results[number] = do(item)

    helpers: list[Future[None]] = []
    others = min(threads, len(items)) - 1
    with ThreadPoolExecutor(max(1, others), thread_name_prefix=name) as pool:
        with suppress(RuntimeError):
            for _ in range(others):
                helpers.append(pool.submit(work))
        work()
    for helper in helpers:
        helper.result()
    return [results[number] for number in range(len(items))]


def _partition_directories(env: Env, path: str) -> list[tuple[str, TopicPartition | None]]:
    """Return each partition directory in `path` with its partition, which is None for a directory set aside.

    Raises StorageError for any other directory, as Kafka does. If `path` has none of a broker's files, it may be a user's own
    directory, where a name like `photos-2024` proves nothing; a partition's directory must then contain a segment file.
    """
    is_ours = any(env.exists(f"{path}/{name}") for name in _SIGNS)
    partitions: list[tuple[str, TopicPartition | None]] = []
    for name in env.list_dir(path):
        directory = f"{path}/{name}"
        if (
            not env.is_dir(directory)
            or name.startswith(f"{names.METADATA_TOPIC}-")
            or name == names.REMOTE_LOG_INDEX_CACHE
        ):
            continue
        try:
            topic_partition = names.parse_partition_dir(name)
        except ValueError as error:
            if is_ours:
                raise StorageError(f"{directory}: {error}; move it out of the log directory") from error
            raise StorageError(_not_ours(path, name)) from error
        if not is_ours and not any(map(names.parse_segment_file, env.list_dir(directory))):
            raise StorageError(_not_ours(path, name))
        partitions.append((directory, None if names.set_aside_suffix(name) else topic_partition))
    return partitions


def _topic_id(env: Env, directory: str, messages: list[str]) -> UUID | None:
    try:
        return checkpoints.read_partition_metadata(env, directory)
    except CorruptLog as error:
        messages.append(str(error))
        return None


def _make_durably(env: Env, path: str) -> None:
    """Create a directory and its missing parents, and sync their names; else a power failure could lose all files in them."""
    missing = []
    while not env.is_dir(path):
        missing.append(path)
        path = parent(path)
    for made in reversed(missing):
        env.make_dirs(made)
        with suppress(PermissionError):  # a directory can be created without permission to read the parent
            env.sync_dir(parent(made))


def _is_unfinished(env: Env, directory: str) -> bool:
    """Return whether a directory has no records, as when a crash interrupted its creation or undid it in the metadata."""
    own = (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT)
    return all(
        name.removesuffix(".tmp") in own
        or (names.parse_segment_file(name) is not None and not env.file_size(f"{directory}/{name}"))
        for name in env.list_dir(directory)
    )


def _changed_ms(env: Env, directory: str) -> int:
    """Return the latest time at which the directory or a file in it was changed, renamed or added."""
    return max(map(env.changed_ms, [directory, *(f"{directory}/{name}" for name in env.list_dir(directory))]))


def _why_left(env: Env, directory: str, topic_id: UUID | None, deletions: Deletions, *, was_clean: bool) -> str | None:
    """Return why a directory that belongs to no partition may be removed; None if a user may have put it there."""
    if topic_id in deletions.topic_ids and _changed_ms(env, directory) <= deletions.until_ms:
        return f"it was left when its topic {topic_id} was deleted"
    return "a crash left it, and it never had a record" if not was_clean and _is_unfinished(env, directory) else None


def _why_unknown(source: PartitionSource | None, topic_id: UUID | None, deletions: Deletions) -> str:
    if topic_id in deletions.topic_ids:
        return f"its topic {topic_id} was deleted; it was changed or put back since"
    if source is not None:
        return f"its topic id is {topic_id}, the metadata say {source.topic_id}"
    return "the metadata do not contain it"


def _set_aside(env: Env, path: str, topic_partition: TopicPartition, reason: str) -> str:
    """Rename a partition's directory to `-stray`; return a message that says why."""
    topic, partition = topic_partition
    directory, stray = f"{path}/{topic}-{partition}", f"{path}/{names.stray_dir_name(topic, partition)}"
    env.rename(directory, stray)
    return f"{directory}: set aside as {stray}: {reason}"


def _not_ours(path: str, name: str) -> str:
    return f"{path}: not a data directory, it holds {name!r}; choose an empty or a new directory. Nothing was changed"


def _close(log: Log, *, is_clean: bool) -> OSError | None:
    try:
        log.close(is_clean=is_clean)
    except OSError as error:
        return error
    return None
