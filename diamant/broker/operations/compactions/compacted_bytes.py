"""The compacted share of some partitions, in bytes of log, for the `Progress` of a waiting caller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from diamant.progress import Progress
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.cleaner.service.service import CleanerService


class CompactedBytes:
    """Uses the sizes at the beginning. Finished partitions count in full, the others by the progress of their rounds."""

    def __init__(self, service: CleanerService, logs: Iterable[Log], progress: Progress) -> None:
        self._service = service
        self._progress = progress
        self._waiting = {(log.topic, log.partition): log.size for log in logs}
        self._total = sum(self._waiting.values())
        self._done = 0

    def begin(self, stage: str) -> None:
        """Begin a stage of the caller's progress."""
        self._progress.begin(stage, self._total, "bytes", measure=self._measure)

    def is_over(self, topic: str, partition: int, *, rounds: int = 1) -> None:
        """Count a finished partition. One without a round is excluded: it took no time and would inflate the rate."""
        size = self._waiting.pop((topic, partition))
        if rounds:
            self._done += size
        else:
            self._total -= size

    def _measure(self) -> tuple[int, int]:
        done = self._done
        for one in self._service.slots.status():
            done += (
                self._waiting.get((one.topic, one.partition), 0) * one.progress.done // max(1, one.progress.total or 0)
            )
        return done, self._total
