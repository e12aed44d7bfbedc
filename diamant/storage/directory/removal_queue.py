"""A queue of files and directories to remove after a delay; callers rename them before they queue them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from diamant.storage.env.env import Env

MAX_AT_ONCE = 1000
"""Maximum number of queued paths to remove at a time; this takes about 1 ms."""


class RemovalQueue:
    """The queue of a log directory. The loop thread owns it; `remove` may run in any thread."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._queue: list[tuple[int, str]] = []

    def add(self, paths: Iterable[str], delay_ms: int = 0) -> None:
        """Queue files and directories for removal after `delay_ms`."""
        due_ms = self._env.clock.now_ms() + delay_ms
        for path in paths:
            heapq.heappush(self._queue, (due_ms, path))

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next removal (clock of the Env); None if nothing is queued."""
        return self._queue[0][0] if self._queue else None

    def inside(self, directory: str) -> list[tuple[int, str]]:
        """Return the removal time (clock of the Env) and path of each queued file in a directory, ordered by time."""
        prefix = f"{directory}/"
        return sorted(queued for queued in self._queue if queued[1].startswith(prefix))

    def outside(self, directory: str) -> list[str]:
        """Return the queued paths outside a directory, such as copies next to it."""
        return [path for _, path in self._queue if not path.startswith(f"{directory}/")]

    def take_due(self) -> list[str]:
        """Dequeue and return at most `MAX_AT_ONCE` paths that are due. The caller passes them to `remove` and repeats."""
        now_ms = self._env.clock.now_ms()
        due: list[str] = []
        while self._queue and self._queue[0][0] <= now_ms and len(due) < MAX_AT_ONCE:
            due.append(heapq.heappop(self._queue)[1])
        return due

    def remove(self, paths: Iterable[str]) -> dict[str, OSError]:
        """Remove files and directories, ignoring missing ones; return the errors by path. Blocks on the disk."""
        left = {}
        for path in paths:
            try:
                if self._env.is_dir(path):
                    self._env.remove_tree(path)
                else:
                    # An erasure removes queued files itself, without a delay, and may be removing this one now.
                    self._env.remove(path, missing_ok=True)
            except OSError as error:
                left[path] = error
        return left
