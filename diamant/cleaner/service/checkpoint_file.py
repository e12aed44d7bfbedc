"""The file `cleaner-offset-checkpoint`: read at the start, written whenever the checkpoints have changed.

One write at a time, and one for all changes that came during the one before. What it says may be late, after a crash or
when the disk is full: a round begins too early then, and changes nothing that it has cleaned before.

Beside it lies `diamant-last-cleaned-checkpoint`, with the times at which rounds ended; Kafka passes over it. It is not synced:
after a loss of power it may be old or empty, and then these times are unknown until the next rounds.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from diamant.cleaner.service.partition_states import PartitionStates
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition, read_offset_checkpoint, write_offset_checkpoint
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog

logger = logging.getLogger(__name__)


class CheckpointFile:
    """The checkpoints of `states` in a log directory; belongs to the loop thread, `blocking` waits for the disk."""

    def __init__(self, env: Env, directory: str, states: PartitionStates, blocking: Executor) -> None:
        self._env = env
        self._path = f"{directory}/{names.CLEANER_CHECKPOINT}"
        self._times_path = f"{directory}/{names.LAST_CLEANED_CHECKPOINT}"
        self._states = states
        self._blocking = blocking
        self._turn = asyncio.Lock()
        self._written = 0
        """Generation of the checkpoints in the file."""
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Take what the files say; one that cannot be read counts as empty."""
        for partition, offset in (await self._read(self._path)).items():
            self._states.set_checkpoint(partition, offset)
        for partition, time_ms in (await self._read(self._times_path)).items():
            self._states.set_last_cleaned(partition, time_ms)
        self._written = self._states.generation

    async def _read(self, path: str) -> dict[TopicPartition, int]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._blocking, read_offset_checkpoint, self._env, path)
        except CorruptLog as error:
            logger.warning("%s; treated as empty", error)
            return {}

    async def write(self) -> None:
        """Return when what is said now is on disk. Failing that, the next call tries again."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            while (generation := self._states.generation) != self._written:
                offsets, times = self._states.checkpoints(), self._states.last_cleaned()
                try:
                    await loop.run_in_executor(self._blocking, self._replace, offsets, times)
                except OSError as error:
                    logger.error("%s: cannot be written: %s", self._path, error)
                    return
                self._written = generation

    def _replace(self, offsets: dict[TopicPartition, int], times: dict[TopicPartition, int]) -> None:
        write_offset_checkpoint(self._env, self._path, offsets)
        write_offset_checkpoint(self._env, self._times_path, times, sync=False)

    def write_soon(self) -> None:
        """Write in the background."""
        if self._states.generation != self._written and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self.write())

    async def close(self) -> None:
        """Write what is left to be written."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.write()
