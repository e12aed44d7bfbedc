"""Periodic work on a broker's logs: retention, checkpoints, timed flushes, expiry, removal of files.

Failed disk work is retried soon. A failure in one log does not delay the others.
Source: Kafka's LogManager and ProducerStateManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.node.future_holds import FutureWarnings, future_holds
from diamant.broker.node.scheduler import ScheduledTask
from diamant.broker.topics.partitions import is_refused, try_again
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.service.repeated_errors import RepeatedErrors
from diamant.storage.config_key import LONG_MAX
from diamant.storage.log.segment_removal import delete_oldest

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_MS = 5_000
"""Kafka's `replica.high.watermark.checkpoint.interval.ms`. All changed checkpoints are written at this interval."""

METADATA_SNAPSHOT_CHECK_MS = 600_000

LOGS_PER_TURN = 64
"""The number of partitions that a pass checks in one turn of the loop."""


class Housekeeping:
    """The periodic jobs of one broker, on its loop."""

    def __init__(self, node: Node, *, retry_s: float = 5.0) -> None:
        """`retry_s`: the pause before a failed write of checkpoints or a failed removal of files is retried."""
        self._node = node
        self._retry_s = retry_s
        self._changed_since_ms: int | None = None
        self._asked_ms: dict[Log, int] = {}
        """The time of the last flush request for each log with `flush.ms` and unsynced records."""
        self._timed_flush_ms: int | None = None
        """The time at which the scheduler expects the next timed flush."""
        self._troubles = RepeatedErrors()
        self._future_warnings = FutureWarnings()
        node.log_events.subscribe(self.on_change)

    def schedule(self) -> None:
        """Schedule all jobs. They run once the scheduler starts."""
        node, config = self._node, self._node.config
        every, add = node.scheduler.every, node.scheduler.add
        every("retention", config.log_retention_check_interval_ms, self.retain, config.log_initial_task_delay_ms)
        every("expiry of producers", config.producer_id_expiration_check_interval_ms, self._expire_producers)
        every("metadata snapshot", METADATA_SNAPSHOT_CHECK_MS, self._snapshot_metadata)
        add(ScheduledTask("checkpoints", self._checkpoint_due_ms, self.write_checkpoints))
        add(ScheduledTask("removal of files", lambda: node.directory.deletions.next_due_ms, self._remove_files))
        add(ScheduledTask("refused partitions", self._refused_due_ms, partial(try_again, node.topics)))
        node.topics.on_refused = node.scheduler.poke
        add(ScheduledTask("flush.ms", self._timed_flush_due_ms, self._flush_timed))

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """True if there are changes that are neither in a checkpoint nor being written to one."""
        return self._changed_since_ms is not None

    def on_change(self, log: Log) -> None:
        """Schedule a checkpoint for a changed log, and its timed flush if it has `flush.ms`."""
        self.request_checkpoints()
        if log.config.flush_ms != LONG_MAX:
            self._on_timed_append(log)

    def request_checkpoints(self) -> None:
        """Schedule a write of the checkpoints."""
        if self._changed_since_ms is None:
            self._changed_since_ms = self._node.env.clock.now_ms()
            self._node.scheduler.poke()

    async def write_checkpoints(self) -> None:
        """Write the changed checkpoints. After an error (OSError, lack of memory or threads), schedules a retry and raises it."""
        self._changed_since_ms = None
        directory = self._node.directory
        try:
            await asyncio.to_thread(directory.checkpoint_files.write, directory.checkpoint_state())
        except Exception:
            self._try_again(self.request_checkpoints)
            raise

    def _checkpoint_due_ms(self) -> int | None:
        return None if self._changed_since_ms is None else self._changed_since_ms + CHECKPOINT_INTERVAL_MS

    def _try_again(self, what: Callable[[], object]) -> None:
        """Schedule a retry of a failed job in real time, since a manual clock may stand still or jump."""

        def retry() -> None:
            what()
            self._node.scheduler.poke()

        asyncio.get_running_loop().call_later(self._retry_s, retry)

    # -- retention and removal -------------------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Delete segments that retention no longer keeps. Compacted logs are left to the cleaner."""
        now_ms = self._node.env.clock.now_ms()
        logs = self._node.directory.logs
        self._troubles.keep_only(logs)
        for count, (partition, log) in enumerate(list(logs.items()), start=1):
            try:
                self._retain_log(log, now_ms)
            except Exception as error:  # whatever the error, continue with the other logs
                self._troubles.log(partition, "retention failed", error, level=logging.ERROR)
            else:
                self._troubles.is_over(partition, "retention failed")
            if count % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._future_warnings.tell(future_holds(self._node), now_ms)
        self._node.scheduler.poke()

    def _retain_log(self, log: Log, now_ms: int) -> None:
        if log.is_deleted or log.config.is_compacted or not (segments := deletable_segments(log, now_ms)):
            return
        try:
            freed = delete_oldest(log, segments)
            logger.info("%s-%d: %d bytes deleted by retention", log.topic, log.partition, freed)
        finally:
            self._node.log_events.changed(log)  # some segments may be deleted before one fails

    async def _remove_files(self) -> None:
        directory = self._node.directory
        due = directory.deletions.take_due()
        try:
            left = await asyncio.to_thread(directory.deletions.remove, due)
        except Exception:
            self._try_again(lambda: directory.deletions.add(due))
            raise
        if left:
            self._try_again(lambda: directory.deletions.add(left))
            raise next(iter(left.values()))

    def _refused_due_ms(self) -> int | None:
        return 0 if is_refused(self._node.directory) else None

    # -- producers, metadata, flushes ------------------------------------------------------------------------------------

    async def _expire_producers(self) -> None:
        now_ms, config = self._node.env.clock.now_ms(), self._node.config
        for count, log in enumerate(list(self._node.directory.logs.values()), start=1):
            log.producers.expire(now_ms, config.producer_id_expiration_ms)
            if count % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _snapshot_metadata(self) -> None:
        metadata = self._node.metadata
        if metadata.is_snapshot_due:
            await asyncio.to_thread(metadata.write_snapshot, metadata.prepare_snapshot())

    def _on_timed_append(self, log: Log) -> None:
        if self._timed_flush_ms is None or self._flush_due_ms(log) < self._timed_flush_ms:
            self._node.scheduler.poke()

    def _unsynced_timed_logs(self) -> list[Log]:
        logs = self._node.topics.timed_logs
        return [log for log in logs if log.log_end_offset > log.recovery_point and log.write_failure is None]

    def _flush_due_ms(self, log: Log) -> int:
        # With flush.ms=0, a flush is due in the next millisecond: otherwise the job would always be due during a flush.
        return max(log.last_flush_ms, self._asked_ms.get(log, 0)) + max(log.config.flush_ms, 1)

    def _timed_flush_due_ms(self) -> int | None:
        self._timed_flush_ms = min(map(self._flush_due_ms, self._unsynced_timed_logs()), default=None)
        return self._timed_flush_ms

    async def _flush_timed(self) -> None:
        now_ms = self._node.env.clock.now_ms()
        unsynced = self._unsynced_timed_logs()
        due = [log for log in unsynced if self._flush_due_ms(log) <= now_ms]
        for log in due:
            self._node.flusher.request(log)
        asked_ms = {log: self._asked_ms.get(log, 0) for log in unsynced}
        self._asked_ms = asked_ms | dict.fromkeys(due, now_ms)
