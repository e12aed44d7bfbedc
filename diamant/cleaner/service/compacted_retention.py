"""Retention for compacted logs: the cleaner deletes whole segments, the oldest first."""

from __future__ import annotations

import logging
from collections.abc import Callable

from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.service.log_picker import LogPicker
from diamant.cleaner.service.partition_states import PartitionStates
from diamant.cleaner.service.repeated_errors import RepeatedErrors
from diamant.storage.env.clocks import Clock
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest

logger = logging.getLogger("diamant.cleaner.service.service")
"""The logger keeps the name of `service`, which users' logging configurations may refer to."""

RETENTION_FAILED = "retention failed"


class CompactedRetention:
    """Applies retention on the loop thread. `on_retained` is called after segments have been removed."""

    def __init__(
        self,
        clock: Clock,
        picker: LogPicker,
        states: PartitionStates,
        on_retained: Callable[[Log], object],
        *,
        is_kafka: bool,
    ) -> None:
        self._clock = clock
        self._picker = picker
        self._states = states
        self._on_retained = on_retained
        self._is_kafka = is_kafka
        self._errors = RepeatedErrors()
        self.looked_ms = 0
        """Time of the last run."""

    async def run(self) -> None:
        """Apply retention to all compacted logs."""
        now_ms = self.looked_ms = self._clock.now_ms()
        self._errors.keep_only(self._picker.logs)
        async for log in self._picker.compacted():
            partition = log.topic, log.partition
            if not self._states.is_free(partition):
                continue
            if self._is_kafka and self._states.is_uncleanable(partition, now_ms):
                continue
            try:
                count = deletable_segments(log, now_ms)
                if count:
                    self._delete_oldest(log, count)
            except Exception as error:  # an error in one log must not stop the others
                self._errors.log(partition, RETENTION_FAILED, error, level=logging.ERROR)
            else:
                self._errors.is_over(partition, RETENTION_FAILED)

    def _delete_oldest(self, log: Log, count: int) -> None:
        partition = log.topic, log.partition
        self._states.acquire(partition)
        try:
            freed = delete_oldest(log, count)
            logger.info("%s-%d: %d bytes deleted by retention", *partition, freed)
        finally:
            self._on_retained(log)  # some segments may have been deleted before a failure
            self._states.done_deleting(partition)
