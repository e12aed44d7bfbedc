"""Acknowledges records that a member holds: either all of a request's batches for a partition, or none.

Source: SharePartition.acknowledge of Kafka 4.3, KIP-1222 (renew); KafkaApis.validateAcknowledgementBatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from diamant.broker.groups.share.ranges import InFlightBatch, RecordState, Run
from diamant.broker.groups.share.share_partition import SharePartition, combined
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.share_records import StateBatch


class AcknowledgeType(IntEnum):
    """The types of acknowledgements, numbered as in Kafka. GAP means that the log has no such record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


_STATES = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class AcknowledgementBatch(NamedTuple):
    """A range of offsets and their `types`: one type for all offsets, or one for each."""

    first: int
    last: int
    types: Sequence[int]


def check_form(batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> None:
    """Check the form of a request's batches for one partition. Raises KafkaError INVALID_REQUEST."""
    previous = -1
    for batch in batches:
        if batch.first > batch.last or batch.first < previous:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not batch.types or len(batch.types) not in (1, batch.last - batch.first + 1):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        highest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
        if any(not AcknowledgeType.GAP <= one <= highest for one in batch.types):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        previous = batch.last


class Acknowledged(NamedTuple):
    """`changes` have to be written to the state topic. `before` lists the replaced batches with their indexes, in order."""

    changes: list[StateBatch]
    before: list[tuple[int, InFlightBatch]]

    def undo(self, partition: SharePartition) -> None:
        """Restore the states of the records. As in Kafka, a batch that was divided for the request stays divided."""
        for index, batch in reversed(self.before):
            partition.put(index, batch._replace(is_divided=partition.batches[index].is_divided))


def acknowledge(
    partition: SharePartition,
    member_id: str,
    batches: Sequence[AcknowledgementBatch],
    max_deliveries: int,
    lock_ends_ms: int | None,
) -> Acknowledged:
    """Change the state of records that the member holds.

    `lock_ends_ms` is the time at which renewed locks end, None if the group may not renew locks. If KafkaError
    INVALID_RECORD_STATE or INVALID_REQUEST is raised, nothing has changed.
    """
    partition.make_room_for_locks()
    acknowledging = _Acknowledging(partition, member_id, max_deliveries, lock_ends_ms)
    done = Acknowledged(acknowledging.changes, acknowledging.before)
    try:
        for batch in batches:
            if batch.last >= partition.start_offset:
                acknowledging.run(batch)
    except KafkaError:
        done.undo(partition)
        raise
    available = [change.first_offset for change in done.changes if change.delivery_state == RecordState.AVAILABLE]
    if available:
        partition.released(min(available))
    return done._replace(changes=combined(done.changes))


class _Acknowledging:
    """An acknowledgement in progress, of batches of one partition."""

    def __init__(
        self, partition: SharePartition, member_id: str, max_deliveries: int, lock_ends_ms: int | None
    ) -> None:
        self._partition = partition
        self._member_id = member_id
        self._max_deliveries = max_deliveries
        self._lock_ends_ms = lock_ends_ms
        self.changes: list[StateBatch] = []
        self.before: list[tuple[int, InFlightBatch]] = []

    def run(self, batch: AcknowledgementBatch) -> None:
        """Acknowledge one batch of the request, which may cover parts of several batches in flight."""
        partition = self._partition
        index = partition.floor(batch.first)
        if index < 0 and batch.first < partition.start_offset:
            index = partition.floor(partition.start_offset)
        if index < 0:
            raise _not_held("Batch record not found. The request batch offsets are not found in the cache.")
        stop = partition.floor(batch.last) + 1
        last = partition.batches[stop - 1].last
        if last < batch.first:
            raise _not_asked("Batch record not found. The first offset in request is past acquired records.")
        if batch.last > last:
            raise _not_asked("Batch record not found. The last offset in request is past acquired records.")
        for position in range(index, stop):
            before = partition.batches[position]
            if before.last >= partition.start_offset:
                partition.put(position, self._acknowledged(before, batch))
                self.before.append((position, before))

    def _acknowledged(self, held: InFlightBatch, batch: AcknowledgementBatch) -> InFlightBatch:
        start = self._partition.start_offset
        is_cut = held.first < start <= held.last
        is_divided = not held.is_within(batch.first, batch.last) or len(batch.types) > 1 or is_cut
        if not held.is_divided:
            run = held.runs[0]
            if run.state is not RecordState.ACQUIRED:
                raise _not_held("The batch cannot be acknowledged. The batch is not in the acquired state.")
            if run.member_id != self._member_id:
                raise _not_held("Member is not the owner of batch record")
        first, last = max(batch.first, held.first, start), min(batch.last, held.last)
        changes = [(one, end, partial(self._after, kind)) for one, end, kind in _runs_of_types(batch, first, last)]
        return held.changed_in(changes, is_divided=is_divided)

    def _after(self, kind: AcknowledgeType, run: Run) -> Run:
        if run.state is not RecordState.ACQUIRED:
            raise _not_held("The offset cannot be acknowledged. The offset is not acquired.")
        if run.member_id != self._member_id:
            raise _not_held("Member is not the owner of offset")
        if kind is AcknowledgeType.RENEW:
            if self._lock_ends_ms is None:
                raise _not_held("Renewing acquisition locks is not enabled for the group.")
            run = run._replace(lock_ends_ms=self._lock_ends_ms)
            self._partition.lock(run)
            return run
        state = _STATES[kind]
        if state is RecordState.AVAILABLE and run.delivery_count >= self._max_deliveries:
            state = RecordState.ARCHIVED
        run = run.freed(state)
        self.changes.append(run.stored)
        return run


def _runs_of_types(batch: AcknowledgementBatch, first: int, last: int) -> list[tuple[int, int, AcknowledgeType]]:
    """Divide the offsets from `first` to `last` into ranges of the same type."""
    if len(batch.types) == 1:
        return [(first, last, AcknowledgeType(batch.types[0]))]
    found: list[tuple[int, int, AcknowledgeType]] = []
    for offset in range(first, last + 1):
        kind = AcknowledgeType(batch.types[offset - batch.first])
        if found and found[-1][2] is kind:
            found[-1] = (found[-1][0], offset, kind)
        else:
            found.append((offset, offset, kind))
    return found


def _not_held(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, message)


def _not_asked(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
