"""AddPartitionsToTxn (key 24), versions 0 to 5: announce the partitions to which a transaction will write.

Behaviour: all partitions of a transaction are added or none: if one does not exist, it gets its error and all others
OPERATION_NOT_ATTEMPTED. Versions: 2 knows PRODUCER_FENCED. 4 is for brokers: several transactions in a request, and
`verify_only`, which only reports the partitions that belong to the transaction (KIP-890). 5 adds nothing.

Source: KafkaApis.handleAddPartitionsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, cast

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import OPEN, Access, allowed_names
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest as OldRequest
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest

    from diamant.broker.topics.topics import Topics
    from diamant.broker.transactions.coordinator import TransactionCoordinator

FIRST_WITH_PRODUCER_FENCED = 2
FIRST_BATCHED = 4
TV2 = 2


def answer(
    transactions: TransactionCoordinator, topics: Topics, context: RequestContext, request: AddPartitionsToTxnRequest
) -> ResponseFields:
    """Add or verify; every partition of the request gets a code."""
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
        code = error_of(error)[0]
        if code == ErrorCode.PRODUCER_FENCED and version < FIRST_WITH_PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return dict.fromkeys(wanted, code)
