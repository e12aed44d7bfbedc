"""`broker.count`: counts the records of a topic, by kind (`cleaner/queries/partition_count.py`).

The exact count runs in a thread, on a snapshot of the log's files as in `explain`, while writing and cleaning continue. By
default it covers up to `UNASKED_BYTES` of a topic, for up to `UNASKED_S` of processor time. For the other partitions, lower and
upper bounds are computed quickly, from batch headers alone.

Limits: `MAX_AT_ONCE` counts, each with the descriptors of `log_files.LogFiles` and the memory of `partition_count.py`. Headers
are read only if at most `MAX_COUNTED_BYTES` of a partition's segments have not been counted yet; otherwise the upper bound is the
partition's number of offsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import NotPossible, TooMany
from diamant.cleaner.on_demand.report import MAX_COUNTED_BYTES
from diamant.cleaner.queries.partition_count import count_by_headers, count_by_keys, count_by_offsets
from diamant.cleaner.rules.record_kinds import KindBounds, Kinds
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.progress import Progress
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.operations.compactions.compactions import Compactions
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.operations.records.record_requests import CountRequest

MAX_AT_ONCE = 2
UNASKED_BYTES = 1024 * 1024 * 1024
UNASKED_S = 1.0
"""The limit in processor time. Counting 1 GiB takes less, unless it is highly compressed or has more than five million keys."""
_TAKES_LONG = f"counting that takes more than {UNASKED_S:g} s of processor time is done only on request"


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The counts of one partition."""

    partition: int
    count: KindBounds
    problems: tuple[str, ...] = ()
    """Files that could not be read and were not counted."""


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """The counts of a topic, or of one partition of it."""

    topic: str
    is_exact: bool
    partitions: tuple[PartitionRecords, ...]
    why_not_exact: str | None = None
    """The reason for bounds; None if the counts are exact or the caller requested bounds."""

    @property
    def total(self) -> KindBounds:
        """The sum over all partitions. A key counts once for each partition that holds it."""
        return reduce(KindBounds.plus, (one.count for one in self.partitions), KindBounds())

    def to_fields(self) -> dict[str, object]:
        """Return the fields of its JSON object."""
        return {
            "topic": self.topic,
            "is_exact": self.is_exact,
            "why_not_exact": self.why_not_exact,
            **self.total.to_fields(),
            "partitions": [
                {"partition": one.partition, **one.count.to_fields(), "problems": list(one.problems)}
                for one in self.partitions
            ],
        }


class _Spent(Exception):
    """The processor time for counting is used up."""


@dataclass(slots=True)
class _Allowance:
    """What is left of the budget for exact counts that the caller has not requested."""

    left_bytes: int
    left_s: float


class CountOperation:
    """The operation `count` of one broker. Created on first use. Belongs to the loop thread."""

    def __init__(self, cleaning: NodeCleaner, explaining: ExplainOperation, compactions: Compactions) -> None:
        self._cleaning = cleaning
        self._explaining = explaining
        self._compactions = compactions
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        self.unasked_bytes = UNASKED_BYTES
        self.unasked_s = UNASKED_S

    async def count(self, request: CountRequest, progress: Progress) -> TopicRecords:
        """Count the records of a topic; see `Broker.count`."""
        topic, exact = request.topic, request.exact
        logs = self._explaining.logs(topic, request.partition)
        if exact and self._turns.locked():
            raise TooMany(f"{MAX_AT_ONCE} topics are being counted, try again when one of them is done")
        progress.begin("counting", sum(log.size for log in logs), "bytes")
        if exact is False:
            return TopicRecords(topic, False, tuple([await self._at_once(log) for log in logs]))
        async with self._turns:
            if exact:
                found = [await self._exactly(log, progress) for log in logs]
                return TopicRecords(topic, True, tuple(found))
            return await self._as_far_as_allowed(topic, logs, progress)

    async def _as_far_as_allowed(self, topic: str, logs: Sequence[Log], progress: Progress) -> TopicRecords:
        """Count partitions exactly as far as the budget allows; return bounds for the rest."""
        allowance, found, why_not_exact = _Allowance(self.unasked_bytes, self.unasked_s), [], None
        for log in logs:
            if log.size > allowance.left_bytes:
                why_not_exact = f"more than {UNASKED_BYTES >> 30} GiB of a topic are counted only on request"
            elif allowance.left_s <= 0:
                why_not_exact = _TAKES_LONG
            else:
                allowance.left_bytes -= log.size
                try:
                    found.append(await self._exactly(log, progress, allowance))
                    continue
                except _Spent:
                    why_not_exact = _TAKES_LONG
                except NotPossible as error:
                    why_not_exact = str(error)
            found.append(await self._at_once(log))
        return TopicRecords(topic, why_not_exact is None, tuple(found), why_not_exact)

    async def _exactly(self, log: Log, progress: Progress, allowance: _Allowance | None = None) -> PartitionRecords:
        """Count a partition exactly. Raises _Spent if `allowance` does not suffice."""
        explaining = self._explaining
        taken, files = await explaining.open(log)

        def read() -> tuple[Kinds, tuple[Problem, ...]]:
            started_s = time.thread_time()

            def check() -> None:
                explaining.check()
                if allowance is not None and time.thread_time() - started_s > allowance.left_s:
                    raise _Spent

            try:
                start = taken.state.log_start_offset
                segments, outcomes = files.present(), taken.outcomes
                return count_by_keys(segments, outcomes, start, check_done=check, advance=progress.advance)
            finally:
                if allowance is not None:
                    allowance.left_s -= time.thread_time() - started_s

        with files:
            counted, problems = await explaining.read(read)
        return PartitionRecords(log.partition, KindBounds(counted, counted), tuple(str(one) for one in problems))

    async def _at_once(self, log: Log) -> PartitionRecords:
        await asyncio.sleep(0)  # there may be thousands of partitions
        counted = (await self._compactions.counts()).of(log)
        start = (await self._cleaning.service()).states.first_dirty(log) if log.config.is_compacted else 0
        segments = list(log.segments)
        # Everything after the last compaction is dirty, including the whole segment in which that compaction ended.
        clean = [one for one, after in pairwise(segments) if after.base_offset <= start]
        dirty = segments[len(clean) :]
        if counted.unknown_bytes(segments) <= MAX_COUNTED_BYTES and not log.is_exchanging:
            of_clean = await counted.count(clean, max_bytes=MAX_COUNTED_BYTES)
            of_dirty = await counted.count(dirty, max_bytes=MAX_COUNTED_BYTES)
            if of_clean is not None and of_dirty is not None:
                deleted = max(0, log.log_start_offset - segments[0].base_offset)
                return PartitionRecords(log.partition, count_by_headers(of_clean, of_dirty, deleted))
        return PartitionRecords(log.partition, count_by_offsets(log.log_end_offset - log.log_start_offset))
