"""A whole log directory: its lock, its clean-shutdown mark, its checkpoints, and the partitions in it.

The loop thread owns it. `load_logs` opens partitions in a few threads and hands the finished logs back; `delete_due` and the
checkpoint writers do blocking file calls and are made to be called from a worker thread with data taken on the loop thread.

Source: Kafka's LogManager.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.env.env import Env, Lock
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import create_log, load_log
from diamant.storage.recovery.recovery import SyncedDamage
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment

TopicPartition = tuple[str, int]

_SIGNS = (names.META_PROPERTIES, names.RECOVERY_POINT_CHECKPOINT, names.LOCK)
"""Files that a broker leaves in its directory."""

MAX_DELETIONS = 1000
"""Number of queued files removed at a time: about 1 ms."""


class PartitionSource(NamedTuple):
    """The metadata of a partition that should be in the directory."""

    topic_id: UUID
    config: LogConfig


class LoadFailure(NamedTuple):
    """A partition that could not be opened; the others are up."""

    topic: str
    partition: int
    error: Exception


class CheckpointState(NamedTuple):
    """The three offset checkpoints as of one moment."""

    recovery_points: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    number: int = 0
    """Number of them that the directory had made before."""

    def only(self, is_wanted: Callable[[TopicPartition], bool]) -> CheckpointState:
        """Return the metadata of some partitions."""
        points, marks, starts = (
            {key: offset for key, offset in offsets.items() if is_wanted(key)} for offsets in self[:3]
        )
        return CheckpointState(points, marks, starts, self.number)


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
        self._deletions: list[tuple[int, str]] = []
        self._left: set[TopicPartition] = set()
        """Deleted partitions whose directories have kept their names: no new one may find them. Bound: as many as there are."""
        self._has_lost_recovery_points = False
        """True if there is no whole file that says where recovery has to begin."""
        self._states = 0
        self._kept = CheckpointState({}, {}, {})
        """Checkpoints of the partitions in `failures`, valid when they can be opened again."""
        self._checkpoint_lock = threading.Lock()
        """Guards the following three, and the files."""
        self._written = CheckpointState({}, {}, {})
        """The contents of the files, or what they may be after a write that failed."""
        self._has_written = False
        """True if they are all there and whole."""
        self._forgotten: dict[TopicPartition, int] = {}
        """Deleted partitions that were made again: states up to this number describe the old one."""

    @classmethod
    def open(cls, env: Env, path: str, *, producer_expiration_ms: int) -> LogDirectory:
        """Lock `path` and take its clean-shutdown mark, so that a crash from now on counts as one.

        Raises StorageError if another process holds the directory or it is none of partitions (nothing is changed there then),
        OSError if it cannot be used.
        """
        if env.is_dir(path):
            _partition_directories(env, path)
        env.make_dirs(path)
        lock = env.lock(f"{path}/{names.LOCK}")
        marker = f"{path}/{names.CLEAN_SHUTDOWN}"
        was_clean = env.exists(marker)
        if was_clean:
            env.remove(marker)
        # Also if it is not there: a start that came to no end may have removed it, and a loss of power would bring it back.
        env.sync_dir(path)
        return cls(env, path, lock, was_clean=was_clean, producer_expiration_ms=producer_expiration_ms)

    def load_logs(self, expected: dict[TopicPartition, PartitionSource], *, threads: int) -> None:
        """Open every partition that the metadata know; blocks.

        Directories of unknown partitions are set aside as `-stray` with their data, as Kafka does; those being deleted are
        queued again. A partition that cannot be opened is in `failures`, the others come up.
        """
        found = CheckpointState(
            self._read_recovery_points(),
            self._read_checkpoint(names.HIGH_WATERMARK_CHECKPOINT),
            self._read_checkpoint(names.LOG_START_OFFSET_CHECKPOINT),
        )
        to_load = []
        for directory, topic_partition in _partition_directories(self.env, self.path):
            if topic_partition is not None:
                to_load.append(topic_partition)
            elif names.set_aside_suffix(directory) == names.DELETE_DIR_SUFFIX:
                self._schedule([directory], 0)
        with ThreadPoolExecutor(max(1, threads), thread_name_prefix="recovery") as pool:
            known = [topic_partition for topic_partition in to_load if self._is_known(topic_partition, expected)]
            results = pool.map(
                lambda topic_partition: self._load(topic_partition, expected[topic_partition], found), known
            )
            for topic_partition, result in zip(known, results, strict=True):
                if isinstance(result, Log):
                    self.adopt(result)
                else:
                    self.failures.append(LoadFailure(*topic_partition, result))
        self._written = found
        self._keep(found)
        for failure in self.failures:
            # The next start follows no orderly stop, and finds a file of recovery points: neither is a leave to cut here.
            if self._has_lost_recovery_points or isinstance(failure.error, SyncedDamage):
                self._kept.recovery_points[failure.topic, failure.partition] = checkpoints.CUT_NOTHING
        self._keep_findings(found.recovery_points)
        for (topic, partition), source in expected.items():
            if (topic, partition) not in self.logs and (topic, partition) not in self.unopened:
                self.create_log(topic, partition, source.topic_id, source.config)

    def _keep_findings(self, found: dict[TopicPartition, int]) -> None:
        """Write down what a start that follows a crash of this broker must know before anything is appended.

        What was refused stays so. Of a log that has lost its end, what is appended now is not as if it had been synced. And if no
        file was found, a partition without a line is from now on one that was made after the last checkpoint.
        """
        points = self.checkpoint_state().recovery_points
        is_news = any(
            key in points and (points[key] < offset or points[key] == checkpoints.CUT_NOTHING != offset)
            for key, offset in found.items()
        )
        if not is_news and not self._has_lost_recovery_points:
            return
        try:
            checkpoints.write_offset_checkpoint(self.env, f"{self.path}/{names.RECOVERY_POINT_CHECKPOINT}", points)
        except OSError as error:
            self.messages.append(f"what this start has found cannot be noted before the next checkpoints: {error}")
        else:
            self._written = self._written._replace(recovery_points=points)

    def _is_known(self, topic_partition: TopicPartition, expected: dict[TopicPartition, PartitionSource]) -> bool:
        topic, partition = topic_partition
        directory = f"{self.path}/{topic}-{partition}"
        source = expected.get(topic_partition)
        reason = "the metadata do not know it"
        if source is not None:
            try:
                found = checkpoints.read_partition_metadata(self.env, directory)
            except CorruptLog as error:
                found = None
                self.messages.append(str(error))
            if found == source.topic_id:
                return True
            reason = f"its topic id is {found}, the metadata say {source.topic_id}"
        stray = f"{self.path}/{names.stray_dir_name(topic, partition)}"
        self.env.rename(directory, stray)
        self.messages.append(f"{directory}: set aside as {stray}: {reason}")
        return False

    def _load(
        self,
        topic_partition: TopicPartition,
        source: PartitionSource,
        found: CheckpointState,
    ) -> Log | Exception:
        topic, partition = topic_partition
        recovery_point = self._recovery_point(found.recovery_points.get(topic_partition))
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
                log_start_offset=found.log_starts.get(topic_partition, 0),
                is_clean=self.was_clean,
                producer_expiration_ms=self._producer_expiration_ms,
                messages=self.messages,
            )
            if recovery_point is None or recovery_point == checkpoints.CUT_NOTHING:
                log.flush()  # all of it was found to be whole: no later start is to cut off any of that
            return log
        except Exception as error:  # whatever it is, the other partitions come up
            return error

    def _recovery_point(self, found: int | None) -> int | None:
        return (None if self._has_lost_recovery_points else 0) if found is None else found

    def _read_recovery_points(self) -> dict[TopicPartition, int]:
        said = len(self.messages)
        found = self._read_checkpoint(names.RECOVERY_POINT_CHECKPOINT)
        is_there = self.env.exists(f"{self.path}/{names.RECOVERY_POINT_CHECKPOINT}")
        self._has_lost_recovery_points = not is_there or len(self.messages) > said
        return found

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

    def _keep(self, found: CheckpointState) -> None:
        """Keep of what checkpoints say the lines of the partitions in `failures`."""
        self._kept = found.only(self.unopened.__contains__)

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> Log:
        """Make an empty partition. The topic must be in the metadata log first, or a restart calls it stray."""
        self.take_away_left([(topic, partition)])
        self.forget_checkpoints([(topic, partition)])
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
        log.on_files_removed = self._schedule
        log.on_flush_due = self._flush_due
        log.on_index_damaged = self._index_damaged
        self.logs[log.topic, log.partition] = log

    def _flush_due(self, log: Log) -> None:
        if self.on_flush_due is not None:
            self.on_flush_due(log)

    def _index_damaged(self, log: Log, segment: Segment) -> None:
        if self.on_index_damaged is not None:
            self.on_index_damaged(log, segment)

    def delete_log(self, log: Log) -> None:
        """Rename the partition's directory to `-delete` and queue its removal after `file.delete.delay.ms`."""
        del self.logs[log.topic, log.partition]
        log.is_deleted = True
        for segment in log.segments:
            segment.is_deleted = True
            try:
                segment.flush_indexes()
            except OSError:
                pass  # only so that Kafka finds whole indexes when it removes the directory; a full disk needs the room
            # Its readers keep it open. Nothing else may keep it on the disk once it has no name.
            segment.let_go_of_file()
        self._take_away((log.topic, log.partition), log.config.file_delete_delay_ms)
        for callback in log.on_change:
            callback()

    def delete_unopened(self, topic: str) -> None:
        """As `delete_log` for those partitions of a topic that could not be opened, without a delay: nothing reads
        them.

        OSError if a directory keeps its name, once all others are gone.
        """
        doomed = [(topic, failure.partition) for failure in self.failures if failure.topic == topic]
        # Even if the directories stay: these must not be opened, and what checkpoints say of them holds for no other.
        self.failures = [failure for failure in self.failures if failure.topic != topic]
        self._keep(self._kept)
        self._left.update(doomed)
        self.take_away_left(doomed)

    def take_away_left(self, partitions: Iterable[TopicPartition]) -> None:
        """Try again to take away what is left of deleted partitions, before others get their names.

        OSError if a directory keeps its name, once all others are gone.
        """
        failure: OSError | None = None
        for partition in self._left.intersection(partitions):
            try:
                self._take_away(partition, 0)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _take_away(self, partition: TopicPartition, delay_ms: int) -> None:
        """Rename a directory to `-delete`, and queue its removal; one that is not there is gone already."""
        self._left.add(partition)
        topic, index = partition
        doomed = f"{self.path}/{names.delete_dir_name(topic, index)}"
        with suppress(FileNotFoundError):
            self.env.rename(f"{self.path}/{topic}-{index}", doomed)
            self._schedule([doomed], delay_ms)
        self._left.discard(partition)

    def _schedule(self, paths: Iterable[str], delay_ms: int) -> None:
        due_ms = self.env.clock.now_ms() + delay_ms
        for path in paths:
            heapq.heappush(self._deletions, (due_ms, path))

    @property
    def next_deletion_ms(self) -> int | None:
        """Time of the next removal of a queued file or directory (clock of the Env)."""
        return self._deletions[0][0] if self._deletions else None

    def deletions_in(self, directory: str) -> list[tuple[int, str]]:
        """Return the time (clock of the Env) and path of each file in a directory that is to be removed; ascending."""
        prefix = f"{directory}/"
        return sorted(one for one in self._deletions if one[1].startswith(prefix))

    def take_due_deletions(self) -> list[str]:
        """Paths whose delay is over, some of them if there are thousands; the caller hands them to `remove_paths`, which may
        run in a thread, and asks again.
        """
        now_ms = self.env.clock.now_ms()
        due: list[str] = []
        while self._deletions and self._deletions[0][0] <= now_ms and len(due) < MAX_DELETIONS:
            due.append(heapq.heappop(self._deletions)[1])
        return due

    def remove_paths(self, paths: Iterable[str]) -> dict[str, OSError]:
        """Remove files and directories; what is gone already is no error. Returns what could not be removed, and why."""
        left = {}
        for path in paths:
            try:
                if self.env.is_dir(path):
                    self.env.remove_tree(path)
                else:
                    # An erasure does not wait for what is queued here, and may be removing it now.
                    self.env.remove(path, missing_ok=True)
            except OSError as error:
                left[path] = error
        return left

    def remove_again(self, paths: Iterable[str]) -> None:
        """Queue what `remove_paths` has left; it is due at once."""
        self._schedule(paths, 0)

    def checkpoint_state(self) -> CheckpointState:
        """The offsets to be checkpointed, taken on the loop thread; of what could not be opened those of before."""
        kept, logs = self._kept, self.logs
        self._states += 1
        return CheckpointState(
            {**kept.recovery_points, **{key: log.recovery_point for key, log in logs.items()}},
            {**kept.high_watermarks, **{key: log.high_watermark for key, log in logs.items()}},
            {
                **kept.log_starts,
                **{key: log.log_start_offset for key, log in logs.items() if log.needs_start_checkpoint},
            },
            self._states,
        )

    def write_checkpoints(self, state: CheckpointState) -> None:
        """Write those checkpoints that changed since the last time; blocks, so not for the loop thread.

        States are written in the order in which they were made.
        """
        with self._checkpoint_lock:
            forgotten = {key: number for key, number in self._forgotten.items() if number >= state.number}
            self._write(
                state.only(lambda key: key not in forgotten) if forgotten else state, is_all=not self._has_written
            )
            self._forgotten = forgotten

    def forget_checkpoints(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the checkpoints say nothing of partitions that are about to be made; may block, so not for the loop thread.

        Lines about deleted ones of these names would count after a crash, and a log start that lies above the end of a
        log removes what is in it.
        """
        with self._checkpoint_lock:
            made = dict.fromkeys(partitions, self._states)
            self._forgotten.update(made)
            if any(key in offsets for key in made for offsets in self._written[:3]):
                self._write(self._written.only(lambda key: key not in made), is_all=False)

    def _write(self, state: CheckpointState, *, is_all: bool) -> None:
        written = self._written
        try:
            for name, new, old in (
                (names.RECOVERY_POINT_CHECKPOINT, state.recovery_points, written.recovery_points),
                (names.LOG_START_OFFSET_CHECKPOINT, state.log_starts, written.log_starts),
                (names.HIGH_WATERMARK_CHECKPOINT, state.high_watermarks, written.high_watermarks),
            ):
                if is_all or new != old:
                    checkpoints.write_offset_checkpoint(self.env, f"{self.path}/{name}", new)
        except OSError:
            # Which of them were replaced is unknown: all are written the next time.
            self._has_written = False
            self._written = CheckpointState(
                {**written.recovery_points, **state.recovery_points},
                {**written.high_watermarks, **state.high_watermarks},
                {**written.log_starts, **state.log_starts},
            )
            raise
        self._written = state
        self._has_written |= is_all

    def close(self, *, is_clean: bool = True, broker_epoch: int = -1, threads: int = 1) -> None:
        """Close all partitions and release the lock; blocks.

        With `is_clean` everything is synced first, checkpoints are written and the clean-shutdown mark set, unless a
        partition could not be flushed or opened. What the disk refused is in `messages`: a full disk does not hinder the
        rest, and the next start recovers.
        """
        logs = list(self.logs.values())
        all_flushed = is_clean and not self.failures
        try:
            with ThreadPoolExecutor(max(1, threads), thread_name_prefix="close") as pool:
                for error in pool.map(lambda log: _close(log, is_clean=is_clean), logs):
                    if error is not None:
                        all_flushed = False
                        self.messages.append(str(error))
            if is_clean:
                self.write_checkpoints(self.checkpoint_state())
            if all_flushed and all(log.write_failure is None for log in logs):
                checkpoints.write_clean_shutdown(self.env, self.path, broker_epoch)
        except OSError as error:
            self.messages.append(f"the stop is not a clean one: {error}")
        finally:
            self._lock.release()


def _partition_directories(env: Env, path: str) -> list[tuple[str, TopicPartition | None]]:
    """The directories of partitions in `path`, with None for those that are set aside; StorageError if there are others.

    As in Kafka every directory has to be a partition's. Where no broker has left its files, it may be a user's own, and
    a name like `photos-2024` is not enough: a start would set that aside.
    """
    is_ours = any(env.exists(f"{path}/{name}") for name in _SIGNS)
    found: list[tuple[str, TopicPartition | None]] = []
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
        found.append((directory, None if names.set_aside_suffix(name) else topic_partition))
    return found


def _not_ours(path: str, name: str) -> str:
    return f"{path}: not a data directory, it holds {name!r}; take an empty one, or a new name. Nothing was changed"


def _close(log: Log, *, is_clean: bool) -> OSError | None:
    try:
        log.close(is_clean=is_clean)
    except OSError as error:
        return error
    return None
