"""The requests of transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, Response, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import OPEN, Access, allowed_names
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest as OldRequest
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest
    from kio.schema.end_txn.v5.request import EndTxnRequest
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.producer_ids import ProducerIds
    from diamant.broker.topics.topics import Topics
    from diamant.broker.transactions.coordinator import TransactionCoordinator

FIRST_WITH_PRODUCER_FENCED = 2
FIRST_INIT_WITH_PRODUCER_FENCED = 4
"""The first version of InitProducerId that supports PRODUCER_FENCED."""
FIRST_BATCHED = 4
FIRST_END_TV2 = 5
TV2 = 2
NO_PRODUCER = (-1, -1)


def init_producer_id(
    transactions: Lazy[TransactionCoordinator],
    producer_ids: ProducerIds,
    context: RequestContext,
    request: InitProducerIdRequest,
) -> Response:
    """InitProducerId (key 22), versions 0 to 5: a producer id for an idempotent or transactional producer.

    Behaviour: without a transactional id, the response has a new producer id with epoch 0. With one, it has the producer id
    of the transactional id, with an epoch that fences all earlier epochs; an open transaction is aborted first, and the client
    retries. Versions: in 3 a producer may send its old id and epoch (KIP-360); as in Kafka, an idempotent producer gets a new id
    anyway. 4 adds PRODUCER_FENCED, 5 TRANSACTION_ABORTABLE, which is never returned here.

    Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId.
    """
    version, access = context.api_version, context.access
    is_transactional = request.transactional_id is not None
    if not is_transactional and not (
        access.allows(permissions.IDEMPOTENT_WRITE, is_asked=False) or access.allows_any(permissions.WRITE_TOPIC)
    ):
        return _with_producer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    expected = (getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if expected != NO_PRODUCER and -1 in expected:
        return _with_producer(ErrorCode.INVALID_REQUEST)
    if is_transactional:
        return _transactional(transactions(), version, request, None if expected == NO_PRODUCER else expected)
    return producer_ids.give(
        lambda producer_id: _with_producer(ErrorCode.NONE, producer_id, 0),
        lambda: _with_producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    )


def _transactional(
    transactions: TransactionCoordinator, version: int, request: InitProducerIdRequest, expected: tuple[int, int] | None
) -> Response:
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    step = partial(
        transactions.init_producer_id,
        str(request.transactional_id),
        round(request.transaction_timeout.total_seconds() * 1000),
        None if expected is None else ProducerIdAndEpoch(*expected),
    )

    def initialize(new_producer_id: int | None) -> ResponseFields:
        try:
            return _with_producer(ErrorCode.NONE, *step(new_producer_id))
        except REQUEST_ERRORS as error:
            return _with_producer(_code(error, version, FIRST_INIT_WITH_PRODUCER_FENCED))

    return transactions.with_producer_id(initialize, lambda: _with_producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def add_partitions(
    transactions: TransactionCoordinator, topics: Topics, context: RequestContext, request: AddPartitionsToTxnRequest
) -> ResponseFields:
    """AddPartitionsToTxn (key 24), versions 0 to 5: announce the partitions to which a transaction will write.

    Behaviour: either all partitions of a transaction are added or none. If one is refused, the response has its error, and
    OPERATION_NOT_ATTEMPTED for the others. Versions: 2 adds PRODUCER_FENCED. 4 is for brokers: it has several transactions in a
    request, and `verify_only`, which only reports the partitions that belong to the transaction (KIP-890). 5 adds nothing.

    Source: KafkaApis.handleAddPartitionsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction.
    """
    version = context.api_version
    if version >= FIRST_BATCHED:
        results = [
            {
                "transactional_id": txn.transactional_id,
                "topic_results": _results(
                    transactions,
                    topics,
                    version,
                    txn.transactional_id,
                    (txn.producer_id, txn.producer_epoch),
                    txn.topics,
                    is_verification=txn.verify_only,
                ),
            }
            for txn in request.transactions
        ]
        return {"error_code": 0, "results_by_transaction": results}
    old = cast("OldRequest", request)
    producer = (old.v3_and_below_producer_id, old.v3_and_below_producer_epoch)
    answered = _results(
        transactions,
        topics,
        version,
        old.v3_and_below_transactional_id,
        producer,
        old.v3_and_below_topics,
        context.access,
    )
    return {"results_by_topic_v3_and_below": answered}


def _results(
    transactions: TransactionCoordinator,
    topics: Topics,
    version: int,
    transactional_id: str,
    producer: tuple[int, int],
    sent: Iterable[Any],
    access: Access = OPEN,
    *,
    is_verification: bool = False,
) -> list[dict[str, object]]:
    by_topic: dict[str, list[int]] = {}
    for topic in sent:
        by_topic.setdefault(topic.name, []).extend(topic.partitions)
    wanted = [(name, index) for name, indexes in by_topic.items() for index in indexes]
    hidden = set(by_topic) - allowed_names(access, permissions.WRITE_TOPIC, by_topic)
    codes = _codes(
        by_topic.keys() - hidden, transactions, topics, version, transactional_id, producer, wanted, is_verification
    )
    return [
        {
            "name": name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": int(codes[name, index])} for index in indexes
            ],
        }
        for name, indexes in by_topic.items()
    ]


def _codes(
    allowed: Collection[str],
    transactions: TransactionCoordinator,
    topics: Topics,
    version: int,
    transactional_id: str,
    producer: tuple[int, int],
    wanted: list[tuple[str, int]],
    is_verification: bool,
) -> dict[tuple[str, int], int]:
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    known = topics.image.topics
    refused: dict[tuple[str, int], int] = {}
    for name, index in wanted:
        if name not in allowed:
            refused[name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif name not in known or index not in known[name].partitions:
            refused[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if refused:
        return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in wanted}
    try:
        if not is_verification:
            client_version = TV2 if version >= FIRST_BATCHED else 0
            transactions.add_partitions(
                transactional_id, ProducerIdAndEpoch(*producer), wanted, client_version=client_version
            )
            return dict.fromkeys(wanted, ErrorCode.NONE)
        added = transactions.verify_partitions(transactional_id, ProducerIdAndEpoch(*producer))
        return {each: ErrorCode.NONE if each in added else ErrorCode.TRANSACTION_ABORTABLE for each in wanted}
    except REQUEST_ERRORS as error:
        return dict.fromkeys(wanted, _code(error, version))


def add_offsets(
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    context: RequestContext,
    request: AddOffsetsToTxnRequest,
) -> ResponseFields:
    """AddOffsetsToTxn (key 25), versions 0 to 4: announce that the transaction will commit offsets of a group.

    Behaviour: adds the group's partition of `__consumer_offsets` to the transaction. Versions: 2 adds
    PRODUCER_FENCED, 4 TRANSACTION_ABORTABLE, which is never returned here.

    Source: KafkaApis.handleAddOffsetsToTxnRequest.
    """
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    try:
        partition = groups.log.partition_of(request.group_id)
        transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            [(GROUP_OFFSETS_TOPIC, partition)],
            client_version=0,
        )
    except REQUEST_ERRORS as error:
        return {"error_code": _code(error, context.api_version)}
    return {"error_code": 0}


def end_transaction(transactions: TransactionCoordinator, context: RequestContext, request: EndTxnRequest) -> Response:
    """EndTxn (key 26), versions 0 to 5: commit or abort.

    Behaviour: answered when the decision and, unless a disk fails, all markers are written, so that the next transaction may
    begin immediately. Versions: 2 adds PRODUCER_FENCED, 4 TRANSACTION_ABORTABLE, which is never returned here. 5 raises the
    producer's epoch and returns it (TV2, KIP-890); a producer whose epochs are exhausted gets a new id.

    Source: KafkaApis.handleEndTxnRequest, TransactionCoordinator.handleEndTransaction.
    """
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    version = context.api_version
    step = partial(
        transactions.end,
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        is_commit=request.committed,
        client_version=TV2 if version >= FIRST_END_TV2 else 0,
    )

    def end(new_producer_id: int | None) -> ResponseFields:
        try:
            return _with_producer(ErrorCode.NONE, *step(new_producer_id=new_producer_id))
        except REQUEST_ERRORS as error:
            return _with_producer(_code(error, version))

    return transactions.with_producer_id(end, lambda: _with_producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def _with_producer(code: int, producer_id: int = -1, producer_epoch: int = -1) -> ResponseFields:
    return {"error_code": int(code), "producer_id": producer_id, "producer_epoch": producer_epoch}


def _code(error: BaseException, version: int, first: int = FIRST_WITH_PRODUCER_FENCED) -> int:
    """Return the code of an error in a version. `first`: the first version that supports PRODUCER_FENCED."""
    code = error_of(error)[0]
    return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED and version < first else code
