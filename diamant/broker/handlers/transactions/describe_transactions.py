"""DescribeTransactions (key 65), version 0: the state of transactional ids (KIP-664).

Source: TransactionCoordinator.handleDescribeTransactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

    from diamant.broker.transactions.coordinator import TransactionCoordinator


def answer(
    transactions: TransactionCoordinator, context: RequestContext, request: DescribeTransactionsRequest
) -> ResponseFields:
    """Describe each id."""
    states = [_describe(transactions, context, transactional_id) for transactional_id in request.transactional_ids]
    return {"transaction_states": states}


def _describe(
    transactions: TransactionCoordinator, context: RequestContext, transactional_id: str
) -> dict[str, object]:
    access = context.access
    try:
        check(access, permissions.DESCRIBE_TRANSACTIONAL_ID, transactional_id)
        transactions.store.topic.check_at(context.connection.broker_id, transactional_id)
        txn = transactions.store.look_up(transactional_id)
        if txn is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    except REQUEST_ERRORS as error:
        return {
            "transactional_id": transactional_id,
            "error_code": error_of(error)[0],
            "transaction_state": "",
            "transaction_start_time_ms": 0,
        }
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transactions.completion.partitions_without_marker(txn)):
        if access.allows(permissions.DESCRIBE_TOPIC, topic):
            topics.setdefault(topic, []).append(partition)
    return {
        "transactional_id": transactional_id,
        "error_code": 0,
        "transaction_state": txn.state.label,
        "transaction_timeout_ms": txn.timeout_ms,
        "transaction_start_time_ms": txn.start_ms,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
