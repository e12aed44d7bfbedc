"""The file `cleaner-offset-checkpoint`: read at the start, written whenever the checkpoints have changed.

One write at a time, and one for all changes that came during the one before. What it says may be late, after a crash or
when the disk is full: a round begins too early then, and changes nothing that it has cleaned before.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from diamant.cleaner.cleaning_states import CleaningStates
from diamant.storage.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from diamant.storage.env import Env
from diamant.storage.errors import CorruptLog

logger = logging.getLogger(__name__)


class CheckpointFile:
    """The checkpoints of `states` at `path`; belongs to the loop thread, `blocking` waits for the disk."""

    def __init__(self, env: Env, path: str, states: CleaningStates, blocking: Executor) -> None:
        self._env = env
        self._path = path
        self._states = states
        self._blocking = blocking
        self._turn = asyncio.Lock()
        self._written = 0
        """Generation of the checkpoints in the file."""
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Take what the file says; one that cannot be read counts as empty."""
        loop = asyncio.get_running_loop()
        try:
            offsets = await loop.run_in_executor(self._blocking, read_offset_checkpoint, self._env, self._path)
        except CorruptLog as error:
            logger.warning("%s; treated as empty", error)
            return
        for partition, offset in offsets.items():
            self._states.set_checkpoint(partition, offset)
        self._written = self._states.generation

    async def write(self) -> None:
        """Return when what is said now is on disk. Failing that, the next call tries again."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            while (generation := self._states.generation) != self._written:
                offsets = self._states.checkpoints()
                try:
                    await loop.run_in_executor(self._blocking, write_offset_checkpoint, self._env, self._path, offsets)
                except OSError as error:
                    logger.error("%s: cannot be written: %s", self._path, error)
                    return
                self._written = generation

    def write_soon(self) -> None:
        """Write without anybody waiting for it."""
        if self._states.generation != self._written and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self.write())

    async def close(self) -> None:
        """Write what is left to be written."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.write()
