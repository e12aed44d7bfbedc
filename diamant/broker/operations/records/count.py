"""`broker.count`: counts the records of a topic, by kind (`cleaner/queries/record_count.py`).

The quick answer gives bounds, from batch headers alone. The exact count runs in a thread, over the files of one moment,
as for `explain`, while writing and cleaning continue.

Bounds: `MAX_AT_ONCE` counts, each with the descriptors of `log_files.LogFiles` and the memory of `record_count.py`. The
quick answer reads headers in at most `MAX_COUNTED_BYTES` per partition that were not counted before; for a larger
partition it gives only the number of offsets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from diamant.broker.client.errors import TooMany
from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.on_demand.remaining import MAX_COUNTED_BYTES
from diamant.cleaner.queries.record_count import RecordCount, count_by_headers, count_by_keys, count_by_offsets
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.operations.compactions.compact import Compactions
    from diamant.broker.operations.records.explain import ExplainOperation

MAX_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The counts of one partition."""

    partition: int
    count: RecordCount
    problems: tuple[str, ...] = ()
    """Files that could not be read and were not counted."""


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """The counts of a topic, or of one partition of it."""

    topic: str
    is_exact: bool
    partitions: tuple[PartitionRecords, ...]

    @property
    def total(self) -> RecordCount:
        """The sum over all partitions. A key counts once in each partition that holds it."""
        return reduce(RecordCount.plus, (one.count for one in self.partitions), RecordCount())

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of its JSON object."""
        return {
            "topic": self.topic,
            "is_exact": self.is_exact,
            **self.total.to_fields(),
            "partitions": [
                {"partition": one.partition, **one.count.to_fields(), "problems": list(one.problems)}
                for one in self.partitions
            ],
        }


class CountOperation:
    """The operation `count` of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(self, cleaning: NodeCleaner, explaining: ExplainOperation, compactions: Compactions) -> None:
        self._cleaning = cleaning
        self._explaining = explaining
        self._compactions = compactions
        self._running = 0

    async def count(
        self, topic: str, partition: int | None = None, *, is_exact: bool = False, progress: Progress | None = None
    ) -> TopicRecords:
        """See `Broker.count`."""
        logs = self._explaining.logs(topic, partition)
        if self._running >= MAX_AT_ONCE:
            raise TooMany(f"{MAX_AT_ONCE} topics are being counted, try again when one of them is done")
        progress = progress or Progress()
        progress.begin("counting", sum(log.size for log in logs), "bytes")
        self._running += 1
        try:
            found = [await (self._exactly(log, progress) if is_exact else self._at_once(log)) for log in logs]
        finally:
            self._running -= 1
        return TopicRecords(topic, is_exact, tuple(found))

    async def _exactly(self, log: Log, progress: Progress) -> PartitionRecords:
        explaining = self._explaining
        taken, files = await explaining.open(log)
        with files:
            counted, problems = await explaining.read(
                lambda: count_by_keys(
                    files.present(),
                    taken.outcomes,
                    taken.state.log_start_offset,
                    check_done=explaining.check,
                    advance=progress.advance,
                )
            )
        return PartitionRecords(log.partition, counted, tuple(str(one) for one in problems))

    async def _at_once(self, log: Log) -> PartitionRecords:
        await asyncio.sleep(0)  # there may be thousands
        counted = (await self._compactions.compactor()).counts.of(log)
        start = (await self._cleaning.service()).states.first_dirty(log) if log.config.is_compacted else 0
        segments = list(log.segments)
        # Everything past the last compaction is dirty, including all of a segment that it ends in.
        clean = [one for one, after in pairwise(segments) if after.base_offset <= start]
        dirty = segments[len(clean) :]
        if counted.unknown_bytes(segments) <= MAX_COUNTED_BYTES and not log.is_exchanging:
            of_clean = await counted.count(clean, max_bytes=MAX_COUNTED_BYTES)
            of_dirty = await counted.count(dirty, max_bytes=MAX_COUNTED_BYTES)
            if of_clean is not None and of_dirty is not None:
                deleted = max(0, log.log_start_offset - segments[0].base_offset)
                return PartitionRecords(log.partition, count_by_headers(of_clean, of_dirty, deleted))
        return PartitionRecords(log.partition, count_by_offsets(log.log_end_offset - log.log_start_offset))
