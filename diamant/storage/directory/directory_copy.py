"""Copies a log directory in use, in the state in which a clean stop would leave it at that moment, and restores such copies.

    closed segments' `.log`         hard links, since these files never change
    other files                     copies, since indexes, producer snapshots, epochs and the metadata log change in place

The cost does not grow with the data, since an active segment above `MAX_TAIL_BYTES` is rolled first. Leftovers of a crash or the
cleaner (`.deleted`, `.cleaned`, `.swap`, `.aside`, directories set aside) are not copied. Nothing is synced: a copy survives the
end of the process, but not a power failure. Where hard links are not supported, closed segments are copied later, and their
files are kept open until then in case they are removed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.manual_clock_file import keep_clock
from diamant.storage.directory.log_directory import LogDirectory
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import MAX_LOG_FILE, Env, File
from diamant.storage.log.log import Log

MAX_TAIL_BYTES = 64 * 1024
"""Maximum size of an active segment that is copied; a larger one is rolled and linked."""

_CHUNK_BYTES = 1 << 20
_WRITTEN_ANEW = {
    names.LOCK,
    names.CLEAN_SHUTDOWN,
    names.RECOVERY_POINT_CHECKPOINT,
    names.HIGH_WATERMARK_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
}


class DirectoryCopy:
    """A copy in progress at `target`, which must not exist yet. Call `take`, then `finish`; on failure, `close` and remove it."""

    def __init__(self, env: Env, target: str) -> None:
        self._env = env
        self.target = target
        self._unlinked: list[tuple[File, str]] = []

    @property
    def has_unlinked(self) -> bool:
        """True if `finish` has work to do."""
        return bool(self._unlinked)

    def take(self, directory: LogDirectory, metadata: Mapping[str, bytes], broker_epoch: int) -> None:
        """Capture the current state, on the loop thread, while no log is exchanging segments. Raises OSError if the disk fails.

        `metadata`: the contents of the metadata log's current files, by name.
        """
        env, source, target = self._env, directory.path, self.target
        env.make_dirs(target)
        for name in env.list_dir(source):
            path = f"{source}/{name}"
            if name not in _WRITTEN_ANEW and not name.endswith(".tmp") and not env.is_dir(path):
                self._copy(path, f"{target}/{name}")
        if isinstance(env.clock, SettableClock) and env.exists(f"{source}/{names.MANUAL_CLOCK}"):
            keep_clock(env, target)
        in_metadata = f"{target}/{names.partition_dir_name(names.METADATA_TOPIC, 0)}"
        env.make_dirs(in_metadata)
        for name, content in metadata.items():
            self._write(f"{in_metadata}/{name}", content)
        for log in directory.logs.values():
            self._take_log(log, f"{target}/{names.partition_dir_name(log.topic, log.partition)}")
        state = directory.checkpoint_state()
        ends = {key: log.log_end_offset for key, log in directory.logs.items()}
        for name, offsets in (
            (names.RECOVERY_POINT_CHECKPOINT, state.recovery_points | ends),
            (names.HIGH_WATERMARK_CHECKPOINT, state.high_watermarks),
            (names.LOG_START_OFFSET_CHECKPOINT, state.log_starts),
        ):
            checkpoints.write_offset_checkpoint(env, f"{target}/{name}", offsets, sync=False)
        if not directory.failures:
            self._write(f"{target}/{names.CLEAN_SHUTDOWN}", checkpoints.encode_clean_shutdown(broker_epoch))

    def finish(self) -> None:
        """Copy the files that could not be linked. Blocks on the disk; any thread may call it. Raises OSError."""
        while self._unlinked:
            file, path = self._unlinked.pop()
            try:
                self._fill(file, path, file.size())
            finally:
                file.close()

    def close(self) -> None:
        """Close the files that have not been copied yet."""
        for file, _ in self._unlinked:
            file.close()
        self._unlinked.clear()

    def _take_log(self, log: Log, target: str) -> None:
        env = self._env
        if log.active.size > MAX_TAIL_BYTES:
            log.roll()
        log.active.on_inactive()
        env.make_dirs(target)
        closed = {segment.path for segment in log.segments[:-1]}
        for name in env.list_dir(log.path):
            path, new = f"{log.path}/{name}", f"{target}/{name}"
            parsed = names.parse_segment_file(name)
            if path in closed:
                self._link(path, new)
            elif path == log.active.path:
                self._fill(log.active.file, new, log.active.size)
            elif name == names.LEADER_EPOCH_CHECKPOINT or (parsed is not None and parsed.stage):
                continue
            elif not name.endswith((".tmp", names.DELETED_SUFFIX)) and not env.is_dir(path):
                self._copy(path, new)
        self._write(f"{target}/{names.LEADER_EPOCH_CHECKPOINT}", checkpoints.encode_leader_epochs(log.epochs.entries))
        snapshot = names.snapshot_file(target, log.log_end_offset)
        if log.log_end_offset and not env.exists(snapshot):
            self._write(snapshot, log.producers.encode_snapshot())

    def _link(self, path: str, new: str) -> None:
        try:
            self._env.link(path, new)
        except OSError:
            self._unlinked.append((self._env.open(path, read_only=True), new))

    def _copy(self, path: str, new: str) -> None:
        with suppress(FileNotFoundError):  # another thread may replace a checkpoint or remove an unused file
            self._write(new, self._env.read_bytes(path, MAX_LOG_FILE))

    def _write(self, path: str, content: bytes) -> None:
        file = self._env.create_new(path)
        try:
            file.append(content)
        finally:
            file.close()

    def _fill(self, source: File, path: str, size: int) -> None:
        file = self._env.create_new(path)
        try:
            for position in range(0, size, _CHUNK_BYTES):
                file.append(source.pread(min(_CHUNK_BYTES, size - position), position))
        finally:
            file.close()


def restore_directory(env: Env, copy: str, path: str, trash: str, mark: str) -> None:
    """Replace the contents of `path`, whose lock the caller holds, with the `DirectoryCopy` at `copy`. Raises OSError.

    The present files are moved to `trash`, which the caller removes, or are deleted if `trash` is on another file system. The
    copy's closed segments are hard-linked into `path`, its other files copied. The file `mark` contains the path of the copy; the
    caller removes `mark` once the directory is open. A startup that finds `mark` repeats the restore, so even after an error or
    a crash, `path` ends up in the old or the new state. A power failure may leave parts of both.
    """
    env.write_atomically(mark, copy.encode(), sync=False)
    env.make_dirs(trash)
    for name in env.list_dir(path):
        if name != names.LOCK:
            _move_away(env, f"{path}/{name}", f"{trash}/{name}")
    for name in env.list_dir(copy):
        source = f"{copy}/{name}"
        if env.is_dir(source):
            _restore_partition(env, source, f"{path}/{name}")
        elif name != names.CLEAN_SHUTDOWN:
            _copy(env, source, f"{path}/{name}")


def _move_away(env: Env, path: str, trash: str) -> None:
    try:
        env.rename(path, trash)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # The data directory is a mount point, so nothing next to it is on the same file system.
        (env.remove_tree if env.is_dir(path) else env.remove)(path)


def _restore_partition(env: Env, source: str, target: str) -> None:
    env.make_dirs(target)
    copied = env.list_dir(source)
    closed = {name for name in copied if name.endswith(names.LOG_SUFFIX)}
    closed.discard(max(closed, default=""))
    for name in copied:
        if name in closed:
            try:
                env.link(f"{source}/{name}", f"{target}/{name}")
                continue
            except OSError:
                pass  # hard links are not supported
        _copy(env, f"{source}/{name}", f"{target}/{name}")


def _copy(env: Env, source: str, target: str) -> None:
    file = env.create_new(target)
    try:
        content = env.read_bytes(source, MAX_LOG_FILE)
        if content:
            file.append(content)
    finally:
        file.close()
