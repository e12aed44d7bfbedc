"""The segment files of the metadata log: appends, fsyncs, rolls and removals.

Owned by one thread. Any thread may call `sync`, even while the owner appends.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from diamant.storage import names
from diamant.storage.env.env import MAX_LOG_FILE, Env, File
from diamant.storage.errors import StorageError
from diamant.storage.kraft.replay import BOOTSTRAP_SNAPSHOT, LoadedMetadata


class MetadataFiles:
    """The files of an open log. Warnings for the operator are added to `messages`."""

    def __init__(self, env: Env, directory: str, loaded: LoadedMetadata, messages: list[str]) -> None:
        self.end_offset = loaded.end_offset
        """The offset of the next record."""
        self.synced_offset = 0
        """All records below this offset are durable."""
        self.failure: OSError | None = None
        self._env = env
        self._directory = directory
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._is_closed = False
        self._sync_lock = threading.Lock()
        self._file = self._open(loaded, messages)

    def _open(self, loaded: LoadedMetadata, messages: list[str]) -> File:
        """Open the segment that takes appends: the last one, after its torn end is cut off, or a new one."""
        env = self._env
        if loaded.is_beyond_log:
            # The snapshot is newer than the log: restart the log at the snapshot's end.
            messages.append(
                f"{self._directory}: the log ends below the snapshot at offset {loaded.end_offset}: restarted there"
            )
            for base_offset in self._bases:
                self._remove_segment(base_offset)
            self._bases.clear()
            loaded.epochs.clear()
        if not self._bases:
            self._bases.append(self.end_offset)
            file = env.open(names.log_file(self._directory, self.end_offset), create=True)
            env.sync_dir(self._directory)
            return file
        file = env.open(names.log_file(self._directory, self._bases[-1]))
        if loaded.torn is not None:
            messages.append(
                f"{loaded.torn.path} at {loaded.torn.position}: {loaded.torn.reason}: "
                f"the last {loaded.torn.size} bytes were not finished and are cut off"
            )
            file.truncate(loaded.torn.position)
        return file

    def remove_leftovers(self) -> None:
        """Remove leftovers of interrupted snapshots and deletions, and all indexes."""
        start = self._bases[0]
        for name in self._env.list_dir(self._directory):
            snapshot = names.parse_metadata_snapshot(name)
            segment = names.parse_segment_file(name)
            is_stale = name.endswith((names.PART_SUFFIX, names.DELETED_SUFFIX)) or (
                snapshot is not None and snapshot[0] < start and snapshot != BOOTSTRAP_SNAPSHOT
            )
            # We maintain only the log; Kafka rebuilds the other files from it.
            is_cache = segment is not None and segment.suffix != names.LOG_SUFFIX
            if is_stale or is_cache:
                self._env.remove(f"{self._directory}/{name}")

    @property
    def active_size(self) -> int:
        """Size in bytes of the segment that takes appends."""
        return self._file.size()

    def check_usable(self) -> None:
        """Raise StorageError if the disk has failed or the log is closed."""
        if self.failure is not None:
            raise StorageError(f"{self._directory}: refuses records after an earlier failure: {self.failure}")
        if self._is_closed:
            raise StorageError(f"{self._directory}: closed")

    def append(self, batch: bytes, count: int) -> None:
        """Write a batch of `count` records to the page cache. If the disk fails, raises OSError and adds nothing."""
        file = self._file
        size = file.size()
        try:
            file.append(batch)
        except OSError:
            try:
                file.truncate(size)
            except OSError as error:
                self.failure = error
            raise
        self.end_offset += count

    def sync(self) -> None:
        """Make all earlier appends durable. Blocks on the disk; any thread may call it.

        Concurrent callers share fsyncs: when one of them finishes, the next caller finds its records durable, or syncs for all
        that wait. Raises OSError if the disk fails. Unsynced records may then be lost, and the log accepts no more records.
        """
        target = self.end_offset
        with self._sync_lock:
            if self.synced_offset >= target:
                return
            self.check_usable()
            end_offset = self.end_offset
            try:
                self._file.sync()
            except OSError as error:
                # After a failed fsync the kernel may have dropped the pages, so the success of a second one would prove nothing.
                self.failure = error
                raise
            self.synced_offset = end_offset

    def roll(self) -> None:
        """Sync everything and continue in a new segment."""
        self.sync()
        new = self._env.create_new(names.log_file(self._directory, self.end_offset))
        self._env.sync_dir(self._directory)
        with self._sync_lock:
            old, self._file = self._file, new
        old.close()
        self._bases.append(self.end_offset)

    def content(self, end: bytes) -> dict[str, bytes]:
        """Return the contents of the files that a start needs, by name, with `end` appended to the log."""
        active = names.log_file(self._directory, self._bases[-1])
        found = {}
        for name in self._env.list_dir(self._directory):
            path = f"{self._directory}/{name}"
            if path == active:
                found[name] = self._file.pread(self._file.size(), 0) + end
            elif not name.endswith((names.PART_SUFFIX, names.DELETED_SUFFIX, names.TEMPORARY_SUFFIX)):
                with suppress(FileNotFoundError):  # a thread that writes a snapshot may remove an older one
                    found[name] = self._env.read_bytes(path, MAX_LOG_FILE)
        return found

    def remove_below(self, offset: int) -> None:
        """Remove the segments that end at or below an offset."""
        while len(self._bases) > 1 and self._bases[1] <= offset:
            self._remove_segment(self._bases[0])
            del self._bases[0]

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._is_closed

    def close(self) -> None:
        """Close the files."""
        self._is_closed = True
        with self._sync_lock:
            self._file.close()

    def _remove_segment(self, base_offset: int) -> None:
        """Remove the `.log` file of a segment, and Kafka's indexes of it, if any."""
        log, *indexes = names.segment_paths(self._directory, base_offset)
        for path in (*indexes, log):
            self._env.remove(path, missing_ok=True)
