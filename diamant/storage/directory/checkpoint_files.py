"""The offset checkpoint files of a log directory: what they contain, and how they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env


class CheckpointState(NamedTuple):
    """A snapshot of the contents of the three offset checkpoints."""

    recovery_points: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    number: int = 0
    """Sequence number; a later state of the same directory has a higher one."""

    def only(self, is_wanted: Callable[[TopicPartition], bool]) -> CheckpointState:
        """Return a copy that contains only the wanted partitions."""
        points, marks, starts = (
            {key: offset for key, offset in offsets.items() if is_wanted(key)} for offsets in self[:3]
        )
        return CheckpointState(points, marks, starts, self.number)


class CheckpointFiles:
    """The offset checkpoint files of one directory. Any thread may call a method, unless its docstring says otherwise."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._states = 0
        self._lock = threading.Lock()
        """Guards the next three attributes and the files."""
        self._written = CheckpointState({}, {}, {})
        """The contents of the files; after a failed write, all entries that they may contain."""
        self._has_written = False
        """True if all files are known to exist and to be complete."""
        self._forgotten: dict[TopicPartition, int] = {}
        """For each new partition, the number of the last state that may still describe a deleted partition of the same name."""

    def next_number(self) -> int:
        """Return the sequence number for a new state. Call only on the loop thread."""
        self._states += 1
        return self._states

    def was_read(self, checkpoints: CheckpointState) -> None:
        """Record what the files contained at startup."""
        self._written = checkpoints

    def write_recovery_points(self, points: dict[TopicPartition, int]) -> None:
        """Write only the recovery point checkpoint, during startup. Raises OSError."""
        checkpoints.write_offset_checkpoint(self._env, f"{self._path}/{names.RECOVERY_POINT_CHECKPOINT}", points)
        self._written = self._written._replace(recovery_points=points)

    def write(self, state: CheckpointState) -> None:
        """Write the files whose contents changed. Blocks on the disk, so do not call it on the loop thread.

        The caller must write states in the order in which they were created.
        """
        with self._lock:
            forgotten = {key: number for key, number in self._forgotten.items() if number >= state.number}
            self._write(
                state.only(lambda key: key not in forgotten) if forgotten else state, is_all=not self._has_written
            )
            self._forgotten = forgotten

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the lines of partitions about to be created. May block, so do not call it on the loop thread.

        Otherwise, after a crash, the lines of a deleted partition would apply to a new partition of the same name; a log start
        above the end of the log would empty it.
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
            # It is unknown which files were replaced, so the next call writes all of them.
            self._has_written = False
            self._written = CheckpointState(
                {**written.recovery_points, **state.recovery_points},
                {**written.high_watermarks, **state.high_watermarks},
                {**written.log_starts, **state.log_starts},
            )
            raise
        self._written = state
        self._has_written |= is_all
