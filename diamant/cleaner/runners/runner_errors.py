"""How a round can fail apart from what the log or the disk does; see also `result` and `storage.errors`."""

from __future__ import annotations

from diamant.storage.errors import StorageError


class RunnerFailed(StorageError):
    """A round could not be carried out, and the log is not at fault: the worker died, or has a bug."""


class NoRoom(RunnerFailed):
    """A round was not begun on this machine, because its disk may not have the room for it."""


class MemoryLimit(RunnerFailed):
    """A round needed more memory than it may take."""
