"""Copies a running broker's log directory, for forks and snapshots."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import NotPossible, OperationError
from diamant.storage import names
from diamant.storage.directory.directory_copy import DirectoryCopy
from diamant.storage.env.env import Lock, RealEnv, parent

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)


async def copy_directory(node: Node, target: str) -> Lock:
    """Copy a consistent state of the directory to `target`, which must not exist. Blocks the loop while files are linked.

    Returns the lock of the copy. Raises NotPossible if the broker is stopping, or if a partition could not be opened and would
    be empty in the copy; OperationError on disk errors. An error leaves nothing behind, except what the disk refuses to remove.
    """
    copy = DirectoryCopy(node.env, target)
    lock: Lock | None = None
    try:
        node.env.make_dirs(parent(target))
        if isinstance(node.env, RealEnv):
            os.mkdir(target, 0o700)  # with this mode, since the parent may be readable by others
        node.env.make_dirs(target)
        lock = node.env.lock(f"{target}/{names.LOCK}")
        while any(log.is_exchanging for log in node.directory.logs.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)  # a swap renames files over several turns of the loop
        if node.is_stopping:
            raise NotPossible("the broker is stopping or being reset, so its state cannot be copied")
        if unopened := [one for one in node.directory.failures if not one.is_new]:
            first, more = unopened[0], f" ({len(unopened) - 1} more)" if len(unopened) > 1 else ""
            raise NotPossible(
                f"{node.directory.path} cannot be copied, since {first.topic}-{first.partition}{more} could not be opened and "
                f"its records would be missing: {first.error}. Remove the cause and restart the broker"
            )
        copy.take(node.directory, node.metadata.content(), node.metadata.broker_epoch)
        if copy.has_unlinked:
            logger.info("%s: hard links from %s are not possible, so the data is copied", target, node.directory.path)
            await asyncio.to_thread(copy.finish)
    except BaseException as error:
        copy.close()
        is_gone = await remove_copy(node, target)
        if lock is not None:
            lock.release()
        if isinstance(error, OSError):
            raise OperationError(
                f"{node.directory.path} cannot be copied to {error.filename or target}: {error.strerror or error}. "
                f"{'Nothing was left there' if is_gone else 'What was left there is removed as soon as the disk permits'}"
            ) from error
        raise
    return lock


async def remove_copy(node: Node, path: str) -> bool:
    """Remove a copy and return whether it is gone. If the disk refuses, housekeeping tries again."""
    queue = node.directory.deletions
    left = await asyncio.to_thread(queue.remove, [path])
    for error in left.values():
        logger.warning("%s: a copy of the data could not be removed yet: %s. The broker will retry", path, error)
    queue.add(left)
    node.scheduler.poke()
    return not left
