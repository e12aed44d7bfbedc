"""The offset checkpoints of a log directory: what they say, and when they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env


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


class CheckpointFiles:
    """The files of one directory. Any thread."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._states = 0
        self._lock = threading.Lock()
        """Guards the following three, and the files."""
        self._written = CheckpointState({}, {}, {})
        """The contents of the files, or what they may be after a write that failed."""
        self._has_written = False
        """True if they are all there and whole."""
        self._forgotten: dict[TopicPartition, int] = {}
        """Deleted partitions that were made again: states up to this number describe the old one."""

    def next_number(self) -> int:
        """Return the number of a new state: states are told apart by the order in which they were made. Loop thread."""
        self._states += 1
        return self._states

    def was_read(self, found: CheckpointState) -> None:
        """Take what the files say at the start."""
        self._written = found

    def write_recovery_points(self, points: dict[TopicPartition, int]) -> None:
        """Write this one file at once, at the start. OSError."""
        checkpoints.write_offset_checkpoint(self._env, f"{self._path}/{names.RECOVERY_POINT_CHECKPOINT}", points)
        self._written = self._written._replace(recovery_points=points)

    def write(self, state: CheckpointState) -> None:
        """Write those files that changed since the last time; blocks, so not for the loop thread.

        States are written in the order in which they were made.
        """
        with self._lock:
            forgotten = {key: number for key, number in self._forgotten.items() if number >= state.number}
            self._write(
                state.only(lambda key: key not in forgotten) if forgotten else state, is_all=not self._has_written
            )
            self._forgotten = forgotten

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the files say nothing of partitions that are about to be made; may block, so not for the loop thread.

        Lines about deleted ones of these names would count after a crash, and a log start that lies above the end of a
        log removes what is in it.
        """
        with self._lock:
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
                    checkpoints.write_offset_checkpoint(self._env, f"{self._path}/{name}", new)
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
