"""Checks that a producer may write transactional records to a partition (KIP-890).

A partition with an open transaction of this producer and epoch needs no check. Otherwise the coordinator checks that the
partition was added to the transaction (TV1), or adds it now (TV2). The check and the append happen in the same turn of
the loop, so no transaction can end in between.

Before the check, the partition records the batch's sequence number (`ProducerStateManager.start_verification`). So if
the batch is refused, no later batch is appended before it.

Source: ReplicaManager.maybeSendPartitionsToTransactionCoordinator, AddPartitionsToTxnManager,
UnifiedLog.maybeStartTransactionVerification.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from diamant.broker.transactions.transaction import ProducerIdAndEpoch, TopicPartition
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log

_NOT_NOW = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)


class Support(NamedTuple):
    """The transaction features that a client supports, derived from its request's version (TransactionSupportedOperation)."""

    knows_abortable: bool
    """The client understands TRANSACTION_ABORTABLE."""
    adds_partitions: bool
    """TV2: writing to a partition adds it to the transaction."""


class Write(NamedTuple):
    """A transactional batch to be appended."""

    log: Log
    base_sequence: int


class Transactions(Protocol):
    """The coordinator, as far as the checks use it."""

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Add partitions to a transaction."""
        ...

    def verify_partitions(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Collection[TopicPartition]:
        """Return the partitions of the producer's transaction."""
        ...


class TransactionVerification:
    """Checks transactional writes with the coordinator. Belongs to the loop thread."""

    def __init__(self, coordinator: Transactions) -> None:
        self._coordinator = coordinator

    def check(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        writes: Sequence[Write],
        support: Support,
        *,
        is_enabled: bool = True,
    ) -> Mapping[tuple[str, int], KafkaError]:
        """Return the error of each refused write, by topic and partition; add partitions to the transaction (TV2).

        If not `is_enabled` (transaction.partition.verification.enable), only TV2 clients' writes are checked. Error
        codes: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING; INVALID_TXN_STATE or, if the client understands it,
        TRANSACTION_ABORTABLE; and the retriable NOT_ENOUGH_REPLICAS or, with TV2, CONCURRENT_TRANSACTIONS. The log checks
        sequence numbers.
        """
        if not is_enabled and not support.adds_partitions:
            return {}
        errors: dict[tuple[str, int], KafkaError] = {}
        asked = [write for write in writes if _has_to_be_asked(write, producer, support, errors)]
        if asked:
            try:
                self._ask(transactional_id, producer, asked, support, errors)
            except KafkaError as error:
                told = _told(error, support)
                errors.update({(log.topic, log.partition): told for log, _ in asked})
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


def _has_to_be_asked(
    write: Write, producer: ProducerIdAndEpoch, support: Support, errors: dict[tuple[str, int], KafkaError]
) -> bool:
    """Return whether the coordinator has to decide. If the partition itself refuses the batch, add its error to `errors`."""
    log, base_sequence = write
    try:
        return log.producers.start_verification(
            producer.producer_id,
            producer.producer_epoch,
            base_sequence,
            log.env.clock.now_ms(),
            supports_epoch_bump=support.adds_partitions,
        )
    except KafkaError as error:
        errors[log.topic, log.partition] = KafkaError(error.code, "")
        return False


def _told(error: KafkaError, support: Support) -> KafkaError:
    """Return the error that the producer gets for the coordinator's error."""
    if error.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "")
    if error.code in _NOT_NOW or (error.code is ErrorCode.CONCURRENT_TRANSACTIONS and not support.adds_partitions):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {error.code.name}",
        )
    return KafkaError(error.code, "")
