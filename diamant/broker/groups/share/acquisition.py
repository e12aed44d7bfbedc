"""Acquires records for a member: those just read from the log, except records that members hold or have completed.

The mode batch_optimized acquires whole batches of the log, even if they exceed the maximum number of records; record_limit
(KIP-1206) observes that number. Records that have been delivered often are delivered in smaller and smaller numbers, and one at
a time for their last delivery, so that a record that breaks its consumer does not prevent the delivery of others.

Source: SharePartition.acquire of Kafka 4.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from operator import itemgetter
from typing import NamedTuple

from diamant.broker.groups.share.ranges import InFlightBatch, RecordState, Run
from diamant.broker.groups.share.share_partition import SharePartition

FEWEST_DELIVERIES_TO_THROTTLE = 2


class Acquired(NamedTuple):
    """Offsets that a member has acquired, and how often they have been delivered, including this time."""

    first: int
    last: int
    delivery_count: int


class Acquirer(NamedTuple):
    """A request for records. `batch_size` is the desired size of acquired ranges; `is_record_limit` selects the mode."""

    member_id: str
    max_records: int
    batch_size: int
    is_record_limit: bool
    lock_ends_ms: int


class ShareLimits(NamedTuple):
    """The group's limits on the records in flight and on the deliveries of one record."""

    max_in_flight: int
    max_deliveries: int


LogBatches = Sequence[tuple[int, int]]
"""The base and last offsets of the batches that were read, ascending."""


def acquire(
    partition: SharePartition, asked: Acquirer, limits: ShareLimits, fetch_offset: int, read: LogBatches
) -> list[Acquired]:
    """Acquire records for a member; return their offsets, ascending. `read`: the batches from `fetch_offset` on."""
    if not read:
        return []
    first_read, last = read[0][0], read[-1][1]
    room = min(asked.max_records, limits.max_in_flight - partition.in_flight_count)
    if room <= 0 and fetch_offset <= partition.end_offset:
        # The window is full, but contains available records.
        room = min(asked.max_records, partition.end_offset - fetch_offset + 1)
        last = min(last, partition.end_offset)
    if room <= 0:
        return []
    if fetch_offset < first_read:
        # Compaction has removed the records before the first batch.
        partition.archive(fetch_offset, first_read - 1, RecordState.AVAILABLE)
    first = max(first_read, partition.start_offset)
    partition.make_room_for_locks()
    return _Acquisition(partition, asked, limits, read, first, last, room).run() if first <= last else []


class _Acquisition:
    """One acquisition in progress."""

    def __init__(
        self,
        partition: SharePartition,
        asked: Acquirer,
        limits: ShareLimits,
        read: LogBatches,
        first: int,
        last: int,
        room: int,
    ) -> None:
        self._partition = partition
        self._asked = asked
        self._limits = limits
        self._read = read
        self._first = first
        self._last = last
        self._room = room
        self._count = 0
        self._found: list[Acquired] = []

    def run(self) -> list[Acquired]:
        partition = self._partition
        overlapping = partition.overlapping(self._first, self._last)
        if not overlapping:
            self._take_new(self._first, self._last)
            return self._found
        base = self._first
        behind = partition.batches[overlapping.stop - 1].last
        for batch in [partition.batches[index] for index in overlapping]:
            if self._count >= self._room:
                break
            if partition.has_gaps:
                if base < batch.first:
                    self._take_new(base, batch.first - 1)
                base = batch.last + 1
                if self._count >= self._room:
                    break
            if not self._take_again(batch):
                self._room = 0
                break
        if self._count < self._room and behind < self._last:
            self._take_new(behind + 1, self._last)
        if self._found:
            partition.gave_out_to(self._found[-1].last + 1)
        return self._found

    # -- records that were in flight before ------------------------------------------------------------------------

    def _take_again(self, batch: InFlightBatch) -> bool:
        """Acquire the available records of a batch; return False if no others may follow in this response."""
        offered = [
            run
            for run in batch.runs
            if run.state is RecordState.AVAILABLE and run.last >= self._first and run.first <= self._last
        ]
        if not offered:
            return True
        throttle_from = max(FEWEST_DELIVERIES_TO_THROTTLE, ceil(self._limits.max_deliveries / 2))
        is_throttled = any(run.delivery_count >= throttle_from for run in offered)
        if is_throttled and self._count:
            return False
        size = batch.last - batch.first + 1
        is_whole = batch.is_within(self._first, self._last) and not batch.is_divided
        if self._asked.is_record_limit and size > self._room - self._count:
            is_whole = False
        if is_whole and not is_throttled:
            (run,) = batch.runs
            self._hold(batch, [(run.first, run.last)], is_divided=False)
            self._found.append(Acquired(run.first, run.last, run.delivery_count + 1))
            self._count += size
            return True
        self._take_parts(batch, offered, throttle_from)
        return not is_throttled

    def _take_parts(self, batch: InFlightBatch, offered: Sequence[Run], throttle_from: int) -> None:
        """Acquire parts of a batch, as the limits and the throttling allow."""
        max_deliveries = self._limits.max_deliveries
        room = self._room - self._count if self._asked.is_record_limit else None
        throttled_room: int | None = None
        taken = 0
        ranges: list[tuple[int, int]] = []
        for run in offered:
            first, last = max(run.first, self._first), min(run.last, self._last)
            is_last_delivery = max_deliveries > 2 and run.delivery_count == max_deliveries - 1
            if is_last_delivery and taken:
                break
            if run.delivery_count >= throttle_from and throttled_room is None:
                halvings = run.delivery_count - throttle_from + 1
                throttled_room = max(1, (batch.last - batch.first + 1) >> halvings)
            for limit in (room, throttled_room):
                if limit is not None and taken < limit:  # equality ends the loop below, as in Kafka
                    last = min(last, first + limit - taken - 1)
            if is_last_delivery:
                last = first
            ranges.append((first, last))
            self._found.append(Acquired(first, last, run.delivery_count + 1))
            taken += last - first + 1
            if is_last_delivery or taken in (room, throttled_room):
                break
        self._hold(batch, ranges, is_divided=True)
        self._count += taken

    def _hold(self, batch: InFlightBatch, ranges: Sequence[tuple[int, int]], *, is_divided: bool) -> None:
        def held(run: Run) -> Run:
            return self._locked(run.first, run.last, run.delivery_count + 1)

        index = self._partition.floor(batch.first)
        changes = [(first, last, held) for first, last in ranges]
        self._partition.put(index, batch.changed_in(changes, is_divided=is_divided))

    # -- records that were never acquired ----------------------------------------------------------------------------

    def _take_new(self, first: int, last: int) -> None:
        """Acquire records in the range first to last, split at batch boundaries into pieces of about the requested size."""
        partition, asked = self._partition, self._asked
        if not partition.batches and partition.end_offset > first:
            first = partition.end_offset
        room = self._room - self._count
        if room < last - first + 1:
            limit = last
            last = self._end_of_batch(first + room - 1)
            if partition.has_gaps:
                last = min(last, limit)
        ranges = self._divided(first, last)
        was_empty = not partition.batches
        index = partition.floor(first) + 1
        if asked.is_record_limit and last - first + 1 > room:
            held = self._locked(first, first + room - 1)
            rest = Run(first + room, last, RecordState.AVAILABLE, 0)
            partition.batches.insert(index, InFlightBatch((held, rest), is_divided=True))
            partition.released(first + room)
            ranges = [(first, first + room - 1)]
        else:
            partition.batches[index:index] = [InFlightBatch((self._locked(*one),)) for one in ranges]
        if was_empty or index == 0:
            partition.start_offset = first
        partition.end_offset = max(partition.end_offset, last)
        self._found += [Acquired(*one, 1) for one in ranges]
        self._count += ranges[-1][1] - first + 1
        partition.gave_out_to(ranges[-1][1] + 1)

    def _locked(self, first: int, last: int, delivery_count: int = 1) -> Run:
        """Lock records for the member; return them as a run."""
        asked = self._asked
        run = Run(first, last, RecordState.ACQUIRED, delivery_count, asked.member_id, asked.lock_ends_ms)
        self._partition.lock(run)
        return run

    def _end_of_batch(self, offset: int) -> int:
        """Return the last offset of the log's batch that contains `offset`; `offset` if there is no such batch."""
        index = bisect_right(self._read, offset, key=itemgetter(0)) - 1
        return max(offset, self._read[index][1]) if index >= 0 else offset

    def _divided(self, first: int, last: int) -> list[tuple[int, int]]:
        found = []
        if not self._asked.is_record_limit and last - first + 1 > self._asked.batch_size:
            for base, _ in self._read:
                if base > last:
                    break
                if base - first >= self._asked.batch_size:
                    found.append((first, base - 1))
                    first = base
        found.append((first, last))
        return found
