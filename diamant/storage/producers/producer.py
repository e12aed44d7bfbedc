"""One producer in a partition: its epoch, its last batches, and the checks on its next batch (ProducerAppendInfo).

Functions take the partition's name as `partition`, for messages.
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.protocol.batches.header import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.checkpoints.producer_snapshot import ProducerEntry
from diamant.storage.producers.verification_states import VerificationState

MAX_CACHED_BATCHES = 5
"""A client has at most five requests in flight, so it cannot resend an older batch (max.in.flight... <= 5)."""

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class CachedBatch(NamedTuple):
    """One recent batch of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    """Last minus first offset, which equals last minus first sequence."""
    timestamp: int


class DuplicateBatch(NamedTuple):
    """A batch that is already in the log; the producer receives its original offsets, as after an append."""

    base_offset: int
    last_offset: int
    timestamp: int


class ProducerState:
    """The state of one producer. In all fields, -1 means none."""

    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "last_timestamp", "producer_epoch",
                 "producer_id")  # fmt: skip

    def __init__(self, producer_id: int, producer_epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = -1
        """Timestamp of the last batch, or of a marker after it."""
        self.current_txn_first_offset = NO_OFFSET
        self.batches: list[CachedBatch] = []
        """At most five, oldest first."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; -1 if no batch is known (in this epoch)."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last record; -1 if no batch is known (in this epoch)."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def set_epoch(self, producer_epoch: int) -> None:
        """Set the epoch. A new epoch restarts the sequence; the same epoch changes nothing."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()

    def to_entry(self) -> ProducerEntry:
        """Return the snapshot entry of this producer."""
        last = self.batches[-1] if self.batches else CachedBatch(NO_SEQUENCE, NO_OFFSET, 0, -1)
        return ProducerEntry(
            self.producer_id,
            self.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            self.current_txn_first_offset,
        )


def check_sequence(state: ProducerState, header: BatchHeader, partition: str) -> DuplicateBatch | None:
    """Check a sequence that is not the next one: return a duplicate batch, or None if an epoch begins; else raise KafkaError."""
    if header.producer_epoch == state.producer_epoch:
        duplicate = _duplicate(state, header)
        if duplicate is not None:
            return duplicate
    elif header.producer_epoch < state.producer_epoch:
        raise stale_epoch(state, header.producer_epoch, partition)
    elif header.base_sequence == 0 or state.producer_epoch == NO_PRODUCER_EPOCH:
        return None
    if header.producer_epoch == state.producer_epoch:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {header.producer_id} in partition {partition}: "
            f"{header.base_sequence} (incoming seq. number), {state.last_sequence} (current end sequence number)",
        )
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Invalid sequence number for new epoch of producer {header.producer_id} in partition {partition}: "
        f"{header.producer_epoch} (request epoch), {header.base_sequence} (seq. number), "
        f"{state.producer_epoch} (current producer epoch)",
    )


def check_verification(
    state: ProducerState | None, header: BatchHeader, verification: VerificationState, partition: str
) -> DuplicateBatch | None:
    """Check a batch whose producer awaits verification: return a duplicate, or raise KafkaError if it overtakes a refused one."""
    if state is not None:
        if header.producer_epoch == state.producer_epoch:
            duplicate = _duplicate(state, header)
            if duplicate is not None:
                return duplicate
        if header.producer_epoch < state.producer_epoch:
            raise stale_epoch(state, header.producer_epoch, partition)
    sequence = header.base_sequence
    if verification.supports_epoch_bump and sequence != 0 and (state is None or not state.batches):
        expected = "0, with which every transaction of version 2 begins"
    elif sequence > verification.lowest_sequence:
        expected = f"at most {verification.lowest_sequence}, the lowest one that was refused"
    else:
        return None
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Out of order sequence number for producer {header.producer_id} in partition {partition}: "
        f"{sequence} (incoming seq. number), expected {expected}",
    )


def stale_epoch(state: ProducerState, producer_epoch: int, partition: str) -> KafkaError:
    """Return the error for an epoch below the producer's."""
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch of producer {state.producer_id} in partition {partition} is {producer_epoch}, "
        f"which is smaller than the last seen epoch {state.producer_epoch}",
    )


def first_sequence(batch: CachedBatch) -> int:
    """Return the sequence of a batch's first record; handles the wrap to 0."""
    first = batch.last_sequence - batch.offset_delta
    return first if first >= 0 else first + MAX_SEQUENCE + 1


def _duplicate(state: ProducerState, header: BatchHeader) -> DuplicateBatch | None:
    """Return the location of a duplicate batch of the current epoch; None if it is not among the last five."""
    last_sequence = header.last_sequence
    for batch in state.batches:
        if batch.last_sequence == last_sequence and first_sequence(batch) == header.base_sequence:
            return DuplicateBatch(batch.last_offset - batch.offset_delta, batch.last_offset, batch.timestamp)
    return None
