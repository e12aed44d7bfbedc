"""The file `cleaner-offset-checkpoint`, which is read at the start, and written whenever the checkpoints have changed.

Only one write runs at a time; changes during it share the next one. After a crash, or when the disk is full, the file may be out
of date. A round then begins too early, and leaves the part that is already clean unchanged.

`diamant-last-cleaned-checkpoint` beside it holds the end time of each partition's last round; Kafka ignores the file. It is
not synced: after a loss of power it may be old or empty, and these times are unknown until the next rounds.
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
    """The checkpoints of `states` in a log directory. Belongs to the loop thread; disk I/O runs in `blocking`."""

    def __init__(self, env: Env, directory: str, states: PartitionStates, blocking: Executor) -> None:
        self._env = env
        self._path = f"{directory}/{names.CLEANER_CHECKPOINT}"
        self._times_path = f"{directory}/{names.LAST_CLEANED_CHECKPOINT}"
        self._states = states
        self._blocking = blocking
        self._turn = asyncio.Lock()
        self._written = 0
        """`PartitionStates.generation` of the checkpoints in the file."""
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Load both files; an unreadable one counts as empty."""
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
        """Write the current checkpoints to disk. After a failure, which is logged, the next call tries again."""
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
        """Write pending changes."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.write()
