"""The life of one transactional id, as pure functions from one state to the next.

    Empty ──────────────┐
      │ add partitions  │ abort (transaction.version 2)
      v                 v
    Ongoing ──────> PrepareAbort ───> CompleteAbort      from Complete*: add partitions → Ongoing,
      └───────────> PrepareCommit ──> CompleteCommit                     init producer → Empty

A `Transaction` is a value. To change it, a caller asks one of the functions here for the next value, writes that to the
log, and only then replaces the old one: nothing is half done, and a refusal (KafkaError) has no effect. Kafka's state
PrepareEpochFence, between the decision to fence and PrepareAbort, is never stored, and is not needed here.

There are two ways of ending a transaction (KIP-890); the version of the client's request selects one:

    TV1   the epoch stays; EndTxn sent again is recognised by the state
    TV2   every end raises the epoch, so a request with the epoch before it is one sent again, and a batch that comes late
          is refused by the partitions, whose markers carry the raised epoch

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
"""No client gets an epoch beyond this one, so that it can always be fenced."""

TopicPartition = tuple[str, int]


class TransactionState(IntEnum):
    """The states, with the numbers that `__transaction_state` has for them."""

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
        """The name that clients see, like "PrepareCommit"."""
        return self.name.title().replace("_", "")


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

ENDING = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
IDLE = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})


class NewProducerIdNeeded(Exception):
    """The epochs of the producer id are used up: do the same again with a new id."""


class ProducerIdAndEpoch(NamedTuple):
    """The present identity of a transactional producer; (-1, -1) for none."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Transaction(NamedTuple):
    """All that is known of one transactional id. -1 stands for "none" throughout; times are ms."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME_MS
    last_update_ms: int = NO_TIME_MS
    previous_producer_id: int = NO_PRODUCER_ID
    """The id that the change before this one left: a client may ask again with it after its epochs were used up."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id that takes over when the transaction now ending has used up the last epoch (TV2)."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before this one, if its owner raised it itself. Not stored, as in Kafka."""
    client_version: int = 0
    """The `transaction.version` in whose way the client last acted: 0 for TV1 too, as Kafka has it, or 2."""

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer id and epoch of now."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_commit(self) -> bool:
        """True if it ends, or ended, with a commit."""
        return self.state in (PREPARE_COMMIT, COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no epoch left."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def is_timed_out(self, now_ms: int) -> bool:
        """True if it has been open for longer than its timeout."""
        return self.state is ONGOING and self.start_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """True if it has been idle for `expiration_ms`."""
        return self.state in IDLE and self.last_update_ms <= now_ms - expiration_ms


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def created(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return a transactional id that is seen for the first time, with epoch 0."""
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
    """Return the next epoch, or a new id, for a producer that introduces itself; of an open transaction its abort.

    After an abort (state PREPARE_ABORT) the client gets CONCURRENT_TRANSACTIONS and comes again. `expected` is
    who the client believes to be (KIP-360), None for one that starts. NewProducerIdNeeded without `new_producer_id` if
    the epochs are used up. KafkaError: PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
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
        return fresh  # the answer was lost, and it asks again: no other producer has initialized since
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
    """Return the transaction with `partitions`, begun if none is open; `txn` itself if it has them all.

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
    """Check that `producer` may act in a transaction that is not ending; raises what `with_partitions` does."""
    if txn.producer_id != producer.producer_id:
        raise _other_producer_id(txn, producer)
    if txn.producer_epoch != producer.producer_epoch:
        raise _fenced(txn, producer)
    if txn.state in ENDING:
        raise _concurrent(txn)


# -- EndTxn and what ends a transaction without it -----------------------------------------------------------------------


def ended(
    txn: Transaction,
    producer: ProducerIdAndEpoch,
    *,
    is_commit: bool,
    client_version: int,
    now_ms: int,
    new_producer_id: int | None,
) -> Transaction | None:
    """Return the transaction in PrepareCommit or PrepareAbort; None if it has ended so and the client asks again.

    NewProducerIdNeeded as with `initialized`. KafkaError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
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
    # An abort without a transaction (of a client that never came to write) begins and ends in one.
    start_ms = txn.start_ms if txn.state is ONGOING else now_ms
    return _ending_raised(txn, is_commit, now_ms, new_producer_id)._replace(start_ms=start_ms)


def fenced(txn: Transaction, now_ms: int, *, server_version: int, new_producer_id: int | None) -> Transaction:
    """Return the abort of an open transaction that its producer did not ask for: a timeout, or another producer.

    The epoch is raised, which fences its producer. From `server_version` 2 on that producer can initialize again with
    the old epoch, and gets the new one. NewProducerIdNeeded as with `initialized`.
    """
    if server_version >= 2:
        return _ending_raised(txn, False, now_ms, new_producer_id)
    return _ending(txn, False, now_ms)._replace(
        producer_epoch=min(txn.producer_epoch + 1, MAX_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH, client_version=0
    )


def _ending_raised(txn: Transaction, is_commit: bool, now_ms: int, new_producer_id: int | None) -> Transaction:
    """As TV2 ends transactions: in the next epoch, after the last one with another producer id."""
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
    )


def completed(txn: Transaction, now_ms: int) -> Transaction:
    """Return an ending transaction as it is once all its markers are written."""
    done = txn._replace(
        state=COMPLETE_COMMIT if txn.is_commit else COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=now_ms,
        previous_producer_id=txn.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
    if txn.next_producer_id == NO_PRODUCER_ID:
        return done
    return done._replace(producer_id=txn.next_producer_id, producer_epoch=0)


# -- as records ----------------------------------------------------------------------------------------------------------


def to_value(txn: Transaction) -> TransactionValue:
    """Return what `__transaction_state` keeps."""
    by_topic = groupby(sorted(txn.partitions), itemgetter(0))
    partitions = tuple(TransactionPartitions(topic, tuple(index for _, index in found)) for topic, found in by_topic)
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
    )


def from_value(transactional_id: str, value: TransactionValue) -> Transaction | None:
    """Return what was stored; None for an id that is dead. ValueError for a status that does not exist."""
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
