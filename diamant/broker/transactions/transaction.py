"""The life of one transactional id, as pure functions from one state to the next.

    Empty ──────────────┐
      │ add partitions  │ abort (transaction.version 2)
      v                 v
    Ongoing ──────> PrepareAbort ───> CompleteAbort      from Complete*: add partitions → Ongoing,
      └───────────> PrepareCommit ──> CompleteCommit                     init producer → Empty

A `Transaction` is a value. To change it, a caller gets the next value from a function of this module, writes it to the
log, and only then replaces the old value. So no change is partial, and a refusal (KafkaError) has no effect. Kafka's state
PrepareEpochFence, between the decision to fence and PrepareAbort, is never stored, and is not needed here.

A transaction ends in one of two ways (KIP-890), selected by the version of the client's request:

    TV1   the epoch stays; a retried EndTxn is recognised by the state
    TV2   every end raises the epoch, so a request with the previous epoch is a retry, and the partitions refuse late
          batches, since their markers carry the raised epoch

Source: TransactionMetadata, TransactionCoordinator (prepareInitProducerIdTransit, endTransaction).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.transaction_records import TransactionPartitions, TransactionValue

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME_MS = -1

MAX_EPOCH = 0x7FFF
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
"""The highest epoch given to clients, so that each client can still be fenced."""

TopicPartition = tuple[str, int]


class TransactionState(IntEnum):
    """The states, with their numbers in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name shown to clients, such as "PrepareCommit"."""
        return self.name.title().replace("_", "")


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

ENDING = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
IDLE = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})


class NewProducerIdNeeded(Exception):
    """The epochs of the producer id are exhausted: retry with a new id."""


class ProducerIdAndEpoch(NamedTuple):
    """The current identity of a transactional producer; (-1, -1) for none."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Transaction(NamedTuple):
    """The state of one transactional id. In all fields, -1 means "none". Times are in ms."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME_MS
    last_update_ms: int = NO_TIME_MS
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last change. A client that got a new id because its epochs were exhausted may retry with it."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to use next if the ending transaction has used the last epoch (TV2)."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The previous epoch, if the producer itself raised it. Not stored, as in Kafka."""
    client_version: int = 0
    """The `transaction.version` of the client's last request: 2 for TV2, otherwise 0, as in Kafka."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """Never set here. A loaded value is kept until `next_producer_id` is reset."""

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The current producer id and epoch."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_commit(self) -> bool:
        """Whether the transaction is ending, or has ended, with a commit."""
        return self.state in (PREPARE_COMMIT, COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def is_timed_out(self, now_ms: int) -> bool:
        """Return whether the transaction has been open for longer than its timeout."""
        return self.state is ONGOING and self.start_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Return whether the id has been idle for `expiration_ms`."""
        return self.state in IDLE and self.last_update_ms <= now_ms - expiration_ms


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return the transaction of a new transactional id, with epoch 0."""
    return Transaction(
        transactional_id, producer_id, 0, timeout_ms, last_update_ms=now_ms, previous_producer_id=producer_id
    )


def initialized(
    txn: Transaction,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    now_ms: int,
    *,
    new_producer_id: int | None,
    server_version: int,
) -> Transaction:
    """Return the transaction after InitProducerId: with the next epoch or a new id, or, if it was open, in PrepareAbort.

    In state PrepareAbort, the client gets CONCURRENT_TRANSACTIONS and retries. `expected`: the id and epoch that the client
    thinks it has (KIP-360); None when it starts. Raises NewProducerIdNeeded if the epochs are exhausted and
    `new_producer_id` is None. KafkaError: PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if expected is not None and not _may_be(txn, expected):
        raise _fenced(txn, expected)
    if txn.state in ENDING:
        raise _concurrent(txn)
    if txn.state is ONGOING:
        return fenced(txn, now_ms, server_version=server_version, new_producer_id=new_producer_id)
    fresh = txn._replace(
        state=EMPTY,
        partitions=frozenset(),
        timeout_ms=timeout_ms,
        start_ms=NO_TIME_MS,
        last_update_ms=now_ms,
        previous_producer_id=txn.producer_id,
    )
    if txn.is_exhausted and (expected is None or expected.producer_epoch == txn.producer_epoch):
        if new_producer_id is None:
            raise NewProducerIdNeeded
        last = NO_PRODUCER_EPOCH if expected is None else txn.producer_epoch
        return fresh._replace(producer_id=new_producer_id, producer_epoch=0, last_producer_epoch=last)
    raised = txn.producer_epoch + 1
    if expected is None:
        return fresh._replace(producer_epoch=raised, last_producer_epoch=NO_PRODUCER_EPOCH)
    if expected.producer_epoch == txn.producer_epoch:
        return fresh._replace(producer_epoch=raised, last_producer_epoch=txn.producer_epoch)
    if expected.producer_epoch == txn.last_producer_epoch:
        return fresh  # a retry after a lost answer: no other producer has initialized since
    raise _fenced(txn, expected)


def _may_be(txn: Transaction, expected: ProducerIdAndEpoch) -> bool:
    if expected.producer_id == txn.producer_id:
        return True
    return expected.producer_id == txn.previous_producer_id and expected.producer_epoch >= LAST_CLIENT_EPOCH


# -- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------------------


def with_partitions(
    txn: Transaction,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    now_ms: int,
    *,
    client_version: int,
) -> Transaction:
    """Return the transaction with `partitions` added; begin it if it is not open. Return `txn` if it already has them all.

    KafkaError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    check_producer(txn, producer)
    if txn.state is ONGOING:
        if txn.partitions.issuperset(partitions):
            return txn
        return txn._replace(
            partitions=txn.partitions.union(partitions),
            last_update_ms=now_ms,
            previous_producer_id=txn.producer_id,
            client_version=client_version,
        )
    return txn._replace(
        state=ONGOING,
        partitions=frozenset(partitions),
        start_ms=now_ms,
        last_update_ms=now_ms,
        previous_producer_id=txn.producer_id,
        client_version=client_version,
    )


def check_producer(txn: Transaction, producer: ProducerIdAndEpoch) -> None:
    """Check that the producer id and epoch are current, and that the transaction is not ending. Errors: as `with_partitions`."""
    if txn.producer_id != producer.producer_id:
        raise _other_producer_id(txn, producer)
    if txn.producer_epoch != producer.producer_epoch:
        raise _fenced(txn, producer)
    if txn.state in ENDING:
        raise _concurrent(txn)


# -- EndTxn, and ends without it -----------------------------------------------------------------------------------------


def ended(
    txn: Transaction,
    producer: ProducerIdAndEpoch,
    *,
    is_commit: bool,
    client_version: int,
    now_ms: int,
    new_producer_id: int | None,
) -> Transaction | None:
    """Return the transaction in PrepareCommit or PrepareAbort; None if this is a retry and it has already ended this way.

    Raises NewProducerIdNeeded as `initialized` does. KafkaError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
    CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
    """
    if client_version >= 2:
        return _ended_tv2(txn, producer, is_commit, now_ms, new_producer_id)
    if txn.producer_id != producer.producer_id:
        raise _other_producer_id(txn, producer)
    if txn.producer_epoch != producer.producer_epoch:
        raise _fenced(txn, producer)
    if txn.state is ONGOING:
        return _ending(txn, is_commit, now_ms)._replace(client_version=0)
    if txn.state is EMPTY or txn.is_commit != is_commit:
        raise _impossible(txn, is_commit)
    if txn.state in ENDING:
        raise _concurrent(txn)
    return None


def _ended_tv2(
    txn: Transaction, producer: ProducerIdAndEpoch, is_commit: bool, now_ms: int, new_producer_id: int | None
) -> Transaction | None:
    is_rotated = (
        txn.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_CLIENT_EPOCH
        and txn.producer_epoch == 0
    )
    is_again = is_rotated or txn.producer_epoch == producer.producer_epoch + 1
    if txn.producer_id != producer.producer_id and not is_rotated:
        raise _other_producer_id(txn, producer)
    is_current = txn.producer_epoch == producer.producer_epoch
    if txn.state in ENDING:
        if txn.producer_epoch != producer.producer_epoch + 1:
            raise _fenced(txn, producer)
    elif txn.state in (ONGOING, EMPTY):
        if not is_current:
            raise _fenced(txn, producer)
    elif not (is_current or is_again):
        raise _fenced(txn, producer)
    if txn.state is not ONGOING:
        if txn.state in ENDING:
            if txn.is_commit == is_commit:
                raise _concurrent(txn)
            raise _impossible(txn, is_commit)
        if txn.state is not EMPTY and is_again:
            if txn.is_commit == is_commit:
                return None
            raise _impossible(txn, is_commit)
        if is_commit:
            raise _impossible(txn, is_commit)
    # An abort without a transaction (the client has written nothing) begins a transaction and ends it immediately.
    start_ms = txn.start_ms if txn.state is ONGOING else now_ms
    return _ending_raised(txn, is_commit, now_ms, new_producer_id)._replace(start_ms=start_ms)


def fenced(txn: Transaction, now_ms: int, *, server_version: int, new_producer_id: int | None) -> Transaction:
    """Move an open transaction to PrepareAbort. Call this if it timed out, or if a producer initializes its transactional id.

    The raised epoch fences the producer. From `server_version` 2 on, the fenced producer can initialize again with its old
    epoch, and gets the raised one. Raises NewProducerIdNeeded as `initialized` does.
    """
    if server_version >= 2:
        return _ending_raised(txn, False, now_ms, new_producer_id)
    return _ending(txn, False, now_ms)._replace(
        producer_epoch=min(txn.producer_epoch + 1, MAX_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH, client_version=0
    )


def _ending_raised(txn: Transaction, is_commit: bool, now_ms: int, new_producer_id: int | None) -> Transaction:
    """Return a transaction that ends as in TV2: with the next epoch and, if this exhausts the epochs, the next producer id."""
    next_producer_id = NO_PRODUCER_ID
    if txn.is_exhausted:
        if new_producer_id is None:
            raise NewProducerIdNeeded
        next_producer_id = new_producer_id
    return _ending(txn, is_commit, now_ms)._replace(
        producer_epoch=min(txn.producer_epoch + 1, MAX_EPOCH),
        last_producer_epoch=txn.producer_epoch,
        next_producer_id=next_producer_id,
        client_version=2,
    )


def _ending(txn: Transaction, is_commit: bool, now_ms: int) -> Transaction:
    return txn._replace(
        state=PREPARE_COMMIT if is_commit else PREPARE_ABORT,
        last_update_ms=now_ms,
        previous_producer_id=txn.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
    )


def completed(txn: Transaction, now_ms: int) -> Transaction:
    """Return an ending transaction in Complete*. Call this once all its markers are written."""
    done = txn._replace(
        state=COMPLETE_COMMIT if txn.is_commit else COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=now_ms,
        previous_producer_id=txn.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
    )
    if txn.next_producer_id == NO_PRODUCER_ID:
        return done
    return done._replace(producer_id=txn.next_producer_id, producer_epoch=0)


# -- as records ----------------------------------------------------------------------------------------------------------


def to_value(txn: Transaction) -> TransactionValue:
    """Return the value for `__transaction_state`."""
    by_topic = groupby(sorted(txn.partitions), itemgetter(0))
    partitions = tuple(TransactionPartitions(topic, tuple(index for _, index in pairs)) for topic, pairs in by_topic)
    return TransactionValue(
        txn.producer_id,
        txn.producer_epoch,
        txn.timeout_ms,
        int(txn.state),
        None if txn.state is EMPTY else partitions,
        txn.last_update_ms,
        txn.start_ms,
        txn.previous_producer_id,
        txn.next_producer_id,
        txn.client_version,
        txn.next_producer_epoch,
    )


def from_value(transactional_id: str, value: TransactionValue) -> Transaction | None:
    """Return the stored transaction; None for a dead id. Raises ValueError for an unknown status."""
    state = TransactionState(value.status)
    if state is TransactionState.DEAD:
        return None
    if state is TransactionState.PREPARE_EPOCH_FENCE:
        state = PREPARE_ABORT
    partitions = frozenset((topic, index) for topic, indexes in value.partitions or () for index in indexes)
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.timeout_ms,
        state,
        partitions,
        value.start_ms,
        value.last_update_ms,
        value.previous_producer_id,
        value.next_producer_id,
        client_version=value.client_version,
        next_producer_epoch=value.next_producer_epoch,
    )


# -- refusals ------------------------------------------------------------------------------------------------------------


def _other_producer_id(txn: Transaction, producer: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"{txn.transactional_id} has the producer id {txn.producer_id}, not {producer.producer_id}",
    )


def _fenced(txn: Transaction, producer: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"{txn.transactional_id} is at epoch {txn.producer_epoch} of producer {txn.producer_id}, "
        f"the request comes from epoch {producer.producer_epoch} of producer {producer.producer_id}",
    )


def _concurrent(txn: Transaction) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the transaction of {txn.transactional_id} is in {txn.state.label}: its markers are not all written",
    )


def _impossible(txn: Transaction, is_commit: bool) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"{txn.transactional_id} is in {txn.state.label} and cannot {'commit' if is_commit else 'abort'}",
    )
