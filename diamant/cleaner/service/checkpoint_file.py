"""Reads the file `cleaner-offset-checkpoint` at startup, and writes it whenever the checkpoints have changed.

Only one write runs at a time; all changes made during a write go into the next one. After a crash, or when the disk is full, the
file may be out of date. The next round then begins earlier than necessary, but leaves the part that is already clean unchanged.

`diamant-last-cleaned-checkpoint` beside it holds the end time of each partition's last round; Kafka ignores the file. It is not
synced, so after a power failure it may be out of date or empty. A lost end time is unknown until the partition's next round.
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
    """Stores the checkpoints of `states` in a log directory. Belongs to the loop thread; disk I/O runs in `blocking`."""

    def __init__(self, env: Env, directory: str, states: PartitionStates, blocking: Executor) -> None:
        self._env = env
        self._path = f"{directory}/{names.CLEANER_CHECKPOINT}"
        self._times_path = f"{directory}/{names.LAST_CLEANED_CHECKPOINT}"
        self._states = states
        self._blocking = blocking
        self._turn = asyncio.Lock()
        self._written = 0
        """The `PartitionStates.generation` that the files contain."""
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Load both files. An unreadable file counts as empty."""
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
        """Write the checkpoints in the background if they have changed."""
        if self._states.generation != self._written and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self.write())

    async def close(self) -> None:
        """Wait for the write in progress, and write the remaining changes."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.write()
