"""Flush plans of a log, and its files that a power failure could still lose."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Protocol

from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment


class FlushedLog(Protocol):
    """The part of a log that a flush uses."""

    env: Env
    path: str
    epochs: LeaderEpochs
    is_deleted: bool


class UnsyncedFiles:
    """The files of a log that may not be on disk. Appended data is tracked by the log's recovery point instead."""

    def __init__(self, log: FlushedLog) -> None:
        self.log = log
        self.rolled: list[Segment] = []
        """Segments rolled since the last flush began; the index entries that rolling added are not synced."""
        self.snapshots: list[str] = []
        """Paths of producer snapshots."""
        self.name_changes = 1
        """Number of additions and removals of segments. Opening counts as one, since recovery may have removed files."""
        self.synced_name_changes = 0
        """The value of `name_changes` that a flush has made durable."""
        self.failure: OSError | None = None
        """The error of the latest flush, if the next flush can make up for it (`FlushPlan.is_repeatable`)."""

    def plan(self, segments: list[Segment], offset: int) -> FlushPlan:
        """Return a plan to flush `segments`, which hold the unsynced data below `offset`, and all other unsynced files.

        It also covers segments that rolled since the last flush, whose data may be synced but whose last index entries are not.
        """
        rolled, self.rolled = self.rolled, []
        snapshots, self.snapshots = self.snapshots, []
        late = [segment for segment in rolled if not segment.is_deleted and segment not in segments]
        return FlushPlan(self, segments + late, rolled, snapshots, offset)


_NOT_OPENED = (errno.EMFILE, errno.ENFILE)


class FlushPlan:
    """Files to fsync so that everything below `offset` is durable. The owner creates the plan; any thread may run it."""

    def __init__(
        self, unsynced: UnsyncedFiles, segments: list[Segment], rolled: list[Segment], snapshots: list[str], offset: int
    ) -> None:
        self.offset = offset
        self._unsynced = unsynced
        self._log = unsynced.log
        self._segments = segments
        self._rolled = rolled
        self._snapshots = snapshots
        self._name_changes = unsynced.name_changes
        self._passed_over: list[Segment] = []
        self._is_syncing = False

    def run(self) -> None:
        """Fsync the files; blocks on the disk. Snapshots come first, since recovery trusts those below the recovery point.

        A deleted log is not synced, since its path may already belong to a new log of the same name.
        """
        log = self._log
        if self._is_moot():
            return
        self._is_syncing = True
        for path in self._snapshots:
            # Retention or the cleaner may have removed the snapshot since the plan was made.
            with suppress(FileNotFoundError):
                log.env.sync_file(path)
        if self._is_moot():
            return
        self._is_syncing = False
        log.epochs.sync()
        self._is_syncing = True
        self._passed_over = [segment for segment in self._segments if not segment.sync()]
        if self._name_changes > self._unsynced.synced_name_changes:
            log.env.sync_dir(log.path)

    def complete(self) -> None:
        """Record that `run` has synced the files. Call only on the owner thread.

        Raises OSError if a segment was skipped because it was being removed, and its removal then failed.
        """
        for segment in self._passed_over:
            if not segment.is_deleted and not self._is_moot():
                raise OSError(
                    errno.EIO, "was not synced because its removal was in progress, but then failed", segment.path
                )
        self._unsynced.synced_name_changes = max(self._unsynced.synced_name_changes, self._name_changes)

    def is_repeatable(self, error: Exception) -> bool:
        """Return whether another flush can make up for this one, which failed with `error`.

        False if an fsync may have failed, since the page cache may then have dropped unwritten data.
        """
        return not self._is_syncing or (isinstance(error, OSError) and error.errno in _NOT_OPENED)

    def give_back(self) -> None:
        """Hand the files over to the next plan. Call only on the owner thread."""
        self._unsynced.rolled[:0] = self._rolled
        self._unsynced.snapshots[:0] = self._snapshots

    def _is_moot(self) -> bool:
        """Return whether the log was deleted, which the loop thread may do at any time."""
        return self._log.is_deleted
