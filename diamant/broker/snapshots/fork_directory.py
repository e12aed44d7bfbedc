"""The directories of forks. Each is beside the data directory and is removed with its fork.

<data>.fork-<12 hex digits>    a fork; locked while it exists, except for a moment during its start
"""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Callable
from contextlib import suppress

from diamant.broker.node.node import Node
from diamant.broker.snapshots.copy import copy_directory
from diamant.broker.snapshots.snapshot_store import snapshots_of
from diamant.storage import names
from diamant.storage.env.env import Env, Lock, parent
from diamant.storage.errors import InUse

logger = logging.getLogger(__name__)


class ForkDirectory:
    """The owner of a fork's directory. `remove` is called at the latest when the object is garbage-collected.

    `remove_later(path)` asks the original broker to remove a path that the disk refused to remove. Any thread may call it.
    """

    def __init__(self, env: Env, path: str, lock: Lock, remove_later: Callable[[str], None]) -> None:
        self.lock = lock
        self.remove = weakref.finalize(self, _remove, env, path, remove_later, os.getpid())
        self._env, self._path = env, path

    def lock_again(self) -> None:
        """Lock a stopped fork's directory again. Otherwise, the original would remove it when it starts. Raises InUse."""
        self.lock = self._env.lock(f"{self._path}/{names.LOCK}")


async def make_fork(node: Node, path: str, remove_later: Callable[[str], None]) -> ForkDirectory:
    """Copy a broker's directory to `path`, like `copy_directory`. `remove_later`: see `ForkDirectory`."""
    return ForkDirectory(node.env, path, await copy_directory(node, path), remove_later)


def new_fork_of(data_dir: str) -> str:
    """Return an unused path for a fork."""
    return f"{os.path.realpath(data_dir)}.fork-{os.urandom(6).hex()}"


def _remove(env: Env, path: str, remove_later: Callable[[str], None], process_id: int) -> None:
    """Remove a fork with its snapshots, but do nothing in a forked process."""
    if os.getpid() != process_id:
        return
    for one in (path, snapshots_of(path)):
        try:
            env.remove_tree(one)
        except OSError as error:
            logger.warning(
                "%s: a copy of the data could not be removed yet: %s. The original broker retries, at the latest when it starts",
                one,
                error,
            )
            remove_later(one)


def remove_left_forks(env: Env, data_dir: str, remove_later: Callable[[str], None]) -> None:
    """Remove the forks that a killed process left behind, and their own forks. Skips forks in use (locked). Blocks on I/O."""
    data = os.path.realpath(data_dir)
    is_fork = re.compile(rf"{re.escape(os.path.basename(data))}(\.fork-[0-9a-f]{{12}})+")
    with suppress(OSError):  # a process that cannot list the directory has created no fork there
        for name in filter(is_fork.fullmatch, env.list_dir(parent(data))):
            path = f"{parent(data)}/{name}"
            try:
                lock = env.lock(f"{path}/{names.LOCK}")
            except InUse:
                continue
            logger.info("%s: removing the fork that a killed process left behind", path)
            _remove(env, path, remove_later, os.getpid())
            lock.release()
