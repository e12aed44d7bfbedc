"""Loads the partitions of a coordinator's topic after a start, one after another.

Requests are served during that time; a request for a partition that is not loaded yet moves it to the front. An empty
partition counts as loaded. As in Kafka, a corrupt partition is not served at all, since its state might be outdated. A
partition that the disk fails to read is retried after FIRST_RETRY_S, then after pauses that double each time, up to MAX_RETRY_S.

Bounds: one partition is loaded at a time, with the memory that `read` takes; at most MAX_LATE calls wait for each partition.

Source: CoordinatorRuntime.scheduleLoadOperation, CoordinatorLoaderImpl, and TransactionStateManager for transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from diamant.broker.operation_errors import may_pass
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""The first and the longest pause before an unreadable partition is read again."""

MAX_LATE = 10_000
"""How many calls can wait for a partition to be loaded; beyond that number, the oldest is dropped."""

_UNREADABLE = (CorruptBatch, StorageError)
"""Errors caused by corrupt bytes, after which no retry can succeed."""

NOT_OPENED = "its log could not be opened"
NOT_READABLE = "its records cannot be read; this is not retried before the next start"

_Read = TypeVar("_Read")


class PartitionLoader(Generic[_Read]):
    """Loads the partitions of `topic`, if there is one; `what` names their contents in messages. Belongs to the loop thread.

    `read(log)` reads a log, and must return in the turn of the loop in which it reaches the log's end, so that it misses no
    record. `take_over(partition, read)` adopts the result, and may take any number of turns.
    """

    def __init__(
        self,
        topic: Topic | None,
        partition_count: int,
        what: str,
        read: Callable[[Log], Awaitable[_Read]],
        take_over: Callable[[int, _Read], Awaitable[None]],
    ) -> None:
        self._name = "" if topic is None else topic.name
        self._logs = {} if topic is None else topic.logs
        self._what = what
        self._read = read
        self._take_over = take_over
        self._waiting = {
            partition: None for partition, log in self._logs.items() if log.log_start_offset < log.log_end_offset
        }
        count = 0 if topic is None else partition_count
        self._failed = {partition: NOT_OPENED for partition in range(count) if partition not in self._logs}
        self._pauses_s: dict[int, float] = {}  # of partitions to be read again
        # Changes to partitions that are not loaded yet, to be applied once they are.
        self._late: dict[int, deque[Callable[[], None]]] = {
            partition: deque(maxlen=MAX_LATE) for partition in self._waiting
        }
        self._is_read: set[int] = set()
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether every partition is loaded or has failed. A failed one may still be retried."""
        return not self._waiting

    @property
    def is_complete(self) -> bool:
        """Whether every partition is loaded."""
        return not self._waiting and not any(map(self._has_failed, list(self._failed)))

    @property
    def waiting_count(self) -> int:
        """The number of partitions that are neither loaded nor failed."""
        return len(self._waiting)

    def check(self, partition: int) -> None:
        """Raise KafkaError NOT_COORDINATOR if the partition failed to load. If it is not loaded yet, raise
        COORDINATOR_LOAD_IN_PROGRESS, and load it next.
        """
        if self._has_failed(partition):
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self._name}-{partition} could not be loaded, see the broker's log"
            )
        if partition in self._waiting:
            self._waiting = {partition: None} | self._waiting
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._name}-{partition} is being loaded")

    def when_loaded(self, partition: int, apply: Callable[[], None]) -> None:
        """Call `apply` once the partition is loaded: now if it is loaded already, never if it cannot be loaded."""
        if partition in self._late:
            self._late[partition].append(apply)
        elif not self._has_failed(partition):
            apply()

    def when_read(self, partition: int, apply: Callable[[], None]) -> None:
        """Like `when_loaded`, but for a record just appended: do nothing if loading will read that record anyway."""
        if partition not in self._late or partition in self._is_read:
            self.when_loaded(partition, apply)

    def missing_partitions(self) -> list[int]:
        """Return the partitions that are not loaded yet, or whose load is being retried."""
        return list(self._late)

    def not_loaded(self) -> dict[int, str]:
        """Return the partitions that are not in memory, in ascending order, with a reason for each (without record data)."""
        found = {partition: "it is being loaded" for partition in self._waiting}
        failed = {partition: why for partition, why in list(self._failed.items()) if self._has_failed(partition)}
        return dict(sorted((found | failed).items()))

    def _has_failed(self, partition: int) -> bool:
        if self._failed.get(partition) == NOT_OPENED and partition in self._logs:
            del self._failed[partition]  # created since then, and empty
        return partition in self._failed

    def start(self) -> None:
        """Begin to load the partitions that are not loaded yet."""
        if self._waiting and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def done(self) -> None:
        """Wait until `is_done`."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Stop loading without waiting: no further result is adopted, but a thread may finish its current read."""
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop loading, and wait until it has ended."""
        self.cancel()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        count = 0
        while self._waiting:
            partition = next(iter(self._waiting))
            try:
                count += await self._load(partition)
            except Exception as error:
                self._give_up(partition, error)
            del self._waiting[partition]
            await asyncio.sleep(0)
        self._task = None
        logger.info("%d partitions of %s loaded in %.2f s", count, self._name, loop.time() - started_s)

    async def _load(self, partition: int) -> bool:
        """Load a partition; return False if the disk failed and the load will be retried."""
        try:
            read = await self._read(self._logs[partition])
        except Exception as error:
            if not (isinstance(error, KafkaError) or may_pass(error)):
                raise
            self._put_off(partition, error)
            return False
        # There was no await since the read reached the log's end, so it misses only records appended from now on.
        self._is_read.add(partition)
        await self._take_over(partition, read)
        self._pauses_s.pop(partition, None)
        for apply in self._late.pop(partition):
            apply()
        return True

    def _put_off(self, partition: int, error: Exception) -> None:
        pause_s = self._pauses_s.get(partition, FIRST_RETRY_S)
        self._pauses_s[partition] = min(2 * pause_s, MAX_RETRY_S)
        why = error.strerror if isinstance(error, OSError) else None
        self._failed[partition] = f"it could not be read and is retried: {why or type(error).__name__}"
        self._retries[partition] = asyncio.get_running_loop().call_later(pause_s, self._try_again, partition)
        logger.error(
            "%s-%d could not be loaded, so its %s are not served; retried in %g s: %s",
            self._name,
            partition,
            self._what,
            pause_s,
            error,
        )

    def _give_up(self, partition: int, error: Exception) -> None:
        self._failed[partition] = NOT_READABLE
        self._late.pop(partition, None)
        logger.error(
            "%s-%d could not be loaded, so its %s are not served: %s",
            self._name,
            partition,
            self._what,
            error,
            exc_info=not isinstance(error, _UNREADABLE),
        )

    def _try_again(self, partition: int) -> None:
        del self._retries[partition]
        self._failed.pop(partition, None)
        self._waiting[partition] = None
        self.start()
