"""Reading the partitions of `__consumer_offsets` after a start, one after the other.

The loop looks up the next range of the log, a thread reads and scans it (`loading.py`), so requests go on between two ranges
and, as the interpreter changes threads often, during them. An empty partition is loaded already. One whose log cannot be read is
given up: its groups are not served, as in Kafka, rather than served with offsets that went back.

Bounds: one range of `offsets.load.buffer.size` and one scan at a time.

Source: CoordinatorRuntime.scheduleLoadOperation, CoordinatorLoaderImpl.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from contextlib import suppress

from diamant.broker.groups.loading import LoadedPartition, PartitionScan
from diamant.broker.topics import Topic
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log import Log
from diamant.storage.segment import FileSlice

logger = logging.getLogger(__name__)

_UNREADABLE = (CorruptBatch, CorruptLog, StorageError, OSError, KafkaError)


class PartitionLoader:
    """Loads the partitions of one `topic`. `take_over(partition, loaded)` puts what was found where it is used, in as many turns
    of the loop as it likes. The loop thread owns it.
    """

    def __init__(
        self, topic: Topic, partition_count: int, take_over: Callable[[int, LoadedPartition], Awaitable[None]]
    ) -> None:
        self._topic = topic
        self._take_over = take_over
        self._failed = {partition for partition in range(partition_count) if partition not in topic.logs}
        self._waiting = {
            partition: None for partition, log in topic.logs.items() if log.log_start_offset < log.log_end_offset
        }
        # What happens to the groups of a partition before it is loaded, to be done then.
        self._late: dict[int, list[Callable[[], None]]] = {partition: [] for partition in self._waiting}
        self._is_read: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """True once every partition is loaded or has failed."""
        return not self._waiting

    @property
    def is_complete(self) -> bool:
        """True once every partition is loaded."""
        return not self._waiting and not self._failed

    def check(self, partition: int) -> None:
        """KafkaError: COORDINATOR_LOAD_IN_PROGRESS for a partition that is not loaded yet, and is next now; NOT_COORDINATOR for
        one that cannot be.
        """
        if partition in self._failed:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self._topic.name}-{partition} could not be loaded, see the broker's log"
            )
        if partition in self._waiting:
            self._waiting = {partition: None} | self._waiting
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._topic.name}-{partition} is being loaded")

    def when_loaded(self, partition: int, apply: Callable[[], None]) -> None:
        """Call `apply` once the partition is loaded: at once if it is, never if it cannot be."""
        if partition in self._waiting:
            self._late[partition].append(apply)
        elif partition not in self._failed:
            apply()

    def when_read(self, partition: int, apply: Callable[[], None]) -> None:
        """As `when_loaded`, for what was appended to the log just now: a partition that is not read yet finds it there."""
        if partition not in self._waiting or partition in self._is_read:
            self.when_loaded(partition, apply)

    def waiting_partitions(self) -> list[int]:
        """Those that are not loaded yet."""
        return list(self._waiting)

    def start(self, buffer_size: int) -> None:
        """Begin; `buffer_size` bytes of a log at a time."""
        if self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._run(buffer_size))

    async def done(self) -> None:
        """Wait for the end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Leave off: nothing is taken over from now on. A thread may go on with its range for a moment."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """As `cancel`, and wait for the end."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, buffer_size: int) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        count = len(self._waiting)
        while self._waiting:
            partition = next(iter(self._waiting))
            try:
                await self._load(self._topic.logs[partition], buffer_size)
                for apply in self._late.pop(partition):
                    apply()
            except Exception as error:
                logger.error(
                    "%s-%d could not be loaded, its groups are not served: %s",
                    self._topic.name,
                    partition,
                    error,
                    exc_info=not isinstance(error, _UNREADABLE),
                )
                self._failed.add(partition)
                self._late.pop(partition, None)
            del self._waiting[partition]
        logger.info("%d partitions of %s loaded in %.2f s", count, self._topic.name, loop.time() - started_s)

    async def _load(self, log: Log, buffer_size: int) -> None:
        scan = PartitionScan(f"{log.topic}-{log.partition}", log.log_start_offset)
        while scan.next_offset < log.log_end_offset:
            offset = max(scan.next_offset, log.log_start_offset)
            result = log.read(offset, buffer_size, isolation_level=0, min_one_message=True)
            if not result.slices:
                break  # compaction has left nothing from here to the end
            await to_thread(_feed, scan, result.slices)
        # No await since the end of the log was seen: what ends transactions from here on is not read any more.
        self._is_read.add(log.partition)
        await self._take_over(log.partition, await to_thread(scan.finish))


def _feed(scan: PartitionScan, slices: tuple[FileSlice, ...]) -> None:
    for part in slices:
        scan.feed(part.read())
