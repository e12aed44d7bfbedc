"""Flushes of a log: their plan, and what of the log a loss of power could still take."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Protocol

from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment


class FlushedLog(Protocol):
    """What a flush knows of its log."""

    env: Env
    path: str
    epochs: LeaderEpochs
    is_deleted: bool


class UnsyncedFiles:
    """The files of a log that may not be on disk; for what was appended, the log has its recovery point."""

    def __init__(self, log: FlushedLog) -> None:
        self.log = log
        self.rolled: list[Segment] = []
        """Segments that were rolled since the last flush began; what rolling added to their indexes is not synced."""
        self.snapshots: list[str] = []
        """Paths of producer snapshots."""
        self.name_changes = 1
        """Number of times that segments came or went. Opening counts: its recovery may have removed files."""
        self.synced_name_changes = 0
        """The value of `name_changes` that a flush has made durable."""

    def plan(self, segments: list[Segment], offset: int) -> FlushPlan:
        """Return the flush of these segments, which hold what is to be durable below `offset`, and of all that is unsynced.

        A segment rolled since the last flush may be missing among them: it was flushed to its end, but got its last index
        entries when it rolled.
        """
        rolled, self.rolled = self.rolled, []
        snapshots, self.snapshots = self.snapshots, []
        late = [segment for segment in rolled if not segment.is_deleted and segment not in segments]
        return FlushPlan(self, segments + late, snapshots, offset)


class FlushPlan:
    """Files to fsync so that everything below `offset` is durable; made by the owner, run in any thread."""

    def __init__(self, unsynced: UnsyncedFiles, segments: list[Segment], snapshots: list[str], offset: int) -> None:
        self.offset = offset
        self._unsynced = unsynced
        self._log = unsynced.log
        self._segments = segments
        self._snapshots = snapshots
        self._name_changes = unsynced.name_changes
        self._passed_over: list[Segment] = []

    def run(self) -> None:
        """Blocks for the fsyncs. Snapshots go first, as recovery trusts them once the recovery point has passed.

        Of a log that is deleted nothing is to be durable, and its path may be that of a new one of its name.
        """
        log = self._log
        if self._is_moot():
            return
        for path in self._snapshots:
            # Retention or the cleaner may have removed it since the plan was made.
            with suppress(FileNotFoundError):
                log.env.sync_file(path)
        if self._is_moot():
            return
        log.epochs.sync()
        self._passed_over = [segment for segment in self._segments if not segment.sync()]
        if self._name_changes > self._unsynced.synced_name_changes:
            log.env.sync_dir(log.path)

    def complete(self) -> None:
        """Count what `run` has synced as such; for the owner. OSError if a segment was not, since it was being removed, and
        then could not be.
        """
        for segment in self._passed_over:
            if not segment.is_deleted and not self._is_moot():
                raise OSError(errno.EIO, "was not synced, as it was being removed, and is still there", segment.path)
        self._unsynced.synced_name_changes = max(self._unsynced.synced_name_changes, self._name_changes)

    def _is_moot(self) -> bool:
        """True if the log was deleted, which the loop thread may do at any time."""
        return self._log.is_deleted
