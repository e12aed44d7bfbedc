"""Whether a producer may write transactional records to a partition (KIP-890).

A partition with an open transaction of this producer and epoch takes them without a question. Otherwise the coordinator
is asked: has the partition been added to the transaction (TV1), or it is added now (TV2). Both happen in the turn of the
loop in which the batch is appended, so no transaction can end between the question and the append.

A batch that had to be refused for now (the coordinator is loading) leaves its sequence number here: of batches that are
sent one behind the other, a later one must not get in before it (VerificationStateEntry). Bound: `MAX_REFUSED`, the oldest
goes; an entry goes with the first batch that is let in.

Source: ReplicaManager.maybeSendPartitionsToTransactionCoordinator, AddPartitionsToTxnManager,
ProducerStateManager.maybeCreateVerificationStateEntry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from diamant.broker.transactions.transaction import ProducerIdAndEpoch
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log import Log

if TYPE_CHECKING:
    from diamant.broker.transactions.coordinator import TransactionCoordinator

MAX_REFUSED = 10_000

_NOT_NOW = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)


class Support(NamedTuple):
    """What the version of a request says of its client's way with transactions (TransactionSupportedOperation)."""

    knows_abortable: bool
    """It understands TRANSACTION_ABORTABLE."""
    adds_partitions: bool
    """TV2: writing to a partition makes it part of the transaction."""


class Write(NamedTuple):
    """A transactional batch that somebody wants to append."""

    log: Log
    base_sequence: int


class Verification:
    """Answers for the coordinator; the loop thread owns it."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._refused: OrderedDict[tuple[UUID, int, int], tuple[int, int]] = OrderedDict()
        """(topic id, partition, producer id) to epoch and lowest sequence that was refused for now."""

    def check(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        writes: Sequence[Write],
        support: Support,
        *,
        is_enabled: bool = True,
    ) -> Mapping[tuple[str, int], KafkaError]:
        """Return what speaks against each of `writes`, by topic and partition; adds partitions to the transaction.

        Without `is_enabled` (transaction.partition.verification.enable) only TV2 clients' partitions are added. Error
        codes: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING; INVALID_TXN_STATE or, if the client knows it,
        TRANSACTION_ABORTABLE; OUT_OF_ORDER_SEQUENCE_NUMBER; for now NOT_ENOUGH_REPLICAS or, TV2, CONCURRENT_TRANSACTIONS.
        """
        if not is_enabled and not support.adds_partitions:
            return {}
        asked = [write for write in writes if not has_ongoing_transaction(write.log, producer)]
        if not asked:
            return {}
        errors: dict[tuple[str, int], KafkaError] = {}
        try:
            self._ask(transactional_id, producer, asked, support, errors)
        except KafkaError as error:
            told = _told(error, support)
            for log, base_sequence in asked:
                errors[log.topic, log.partition] = told
                if error.code in _NOT_NOW or error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    self._remember(log, producer, base_sequence)
            return errors
        for log, base_sequence in asked:
            if (log.topic, log.partition) not in errors:
                refusal = self._sequence_error(log, producer, base_sequence, support)
                if refusal is not None:
                    errors[log.topic, log.partition] = refusal
        return errors

    def _ask(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        asked: list[Write],
        support: Support,
        errors: dict[tuple[str, int], KafkaError],
    ) -> None:
        coordinator = self._coordinator
        if support.adds_partitions:
            partitions = [(log.topic, log.partition) for log, _ in asked]
            coordinator.add_partitions(transactional_id, producer, partitions, client_version=2)
            return
        added = coordinator.verify_partitions(transactional_id, producer)
        for log, _ in asked:
            if (log.topic, log.partition) not in added:
                errors[log.topic, log.partition] = (
                    KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "")
                    if support.knows_abortable
                    else KafkaError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
                )

    def _sequence_error(
        self, log: Log, producer: ProducerIdAndEpoch, base_sequence: int, support: Support
    ) -> KafkaError | None:
        if base_sequence <= 0:
            self._refused.pop((log.topic_id, log.partition, producer.producer_id), None)
            return None
        if support.adds_partitions and log.producers.state_of(producer.producer_id) is None:
            # Every TV2 transaction has an epoch of its own, so its sequences begin with 0.
            return _out_of_order(log, producer, base_sequence, 0)
        refused = self._refused.get((log.topic_id, log.partition, producer.producer_id))
        if refused is None:
            return None
        epoch, lowest = refused
        if epoch == producer.producer_epoch and base_sequence > lowest:
            return _out_of_order(log, producer, base_sequence, lowest)
        del self._refused[log.topic_id, log.partition, producer.producer_id]
        return None

    def _remember(self, log: Log, producer: ProducerIdAndEpoch, base_sequence: int) -> None:
        key = (log.topic_id, log.partition, producer.producer_id)
        epoch, lowest = self._refused.get(key, (-1, base_sequence))
        if epoch > producer.producer_epoch:
            return
        is_same = epoch == producer.producer_epoch
        self._refused[key] = (producer.producer_epoch, min(lowest, base_sequence) if is_same else base_sequence)
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)


def has_ongoing_transaction(log: Log, producer: ProducerIdAndEpoch) -> bool:
    """Whether the partition has an open transaction of this producer in this epoch."""
    state = log.producers.state_of(producer.producer_id)
    return state is not None and state.current_txn_first_offset >= 0 and state.producer_epoch == producer.producer_epoch


def _told(error: KafkaError, support: Support) -> KafkaError:
    """What a producer is told of the coordinator's error."""
    if error.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "")
    if error.code in _NOT_NOW or (error.code is ErrorCode.CONCURRENT_TRANSACTIONS and not support.adds_partitions):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {error.code.name}",
        )
    return KafkaError(error.code, "")


def _out_of_order(log: Log, producer: ProducerIdAndEpoch, base_sequence: int, expected: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Out of order sequence number for producer {producer.producer_id} in partition {log.topic}-{log.partition}: "
        f"{base_sequence} (incoming seq. number), expected at most {expected}",
    )
