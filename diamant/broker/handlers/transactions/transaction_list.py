"""Requests that list and describe the broker's transactions."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, Response, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest

    from diamant.broker.groups.decisions.topic_patterns import TopicPattern
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.broker.transactions.transaction import Transaction
    from diamant.storage.env.clocks import Clock

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_SUBSTITUTE = "\x1a"


def list_all(
    transactions: TransactionCoordinator, clock: Clock, context: RequestContext, request: ListTransactionsRequest
) -> Response:
    """ListTransactions (key 66), versions 0 to 2: the known transactional ids (KIP-664).

    Behaviour: ids must match all filters. The response names the states in the filter that do not exist. Versions: 1 adds a
    filter by the duration of an open transaction (KIP-994), 2 by a regular expression that the whole id must match (KIP-1152).
    Deviations: a non-ASCII character matches nothing if it is in the pattern; if it is in an id, only `.` and the like match it.

    Source: TransactionStateManager.listTransactionStates.
    """
    try:
        matching, unknown = _filtered(transactions, context, clock.now_ms(), request)
        text = getattr(request, "transactional_id_pattern", None)
        if text:
            from diamant.broker.groups.decisions.topic_patterns import TopicPattern

            return _matching(TopicPattern(text), matching, unknown)
    except REQUEST_ERRORS as error:
        return {"error_code": error_of(error)[0]}
    return _fields(matching, unknown)


def _filtered(
    transactions: TransactionCoordinator, context: RequestContext, now_ms: int, request: ListTransactionsRequest
) -> tuple[list[Transaction], list[str]]:
    from diamant.broker.transactions.transaction import TransactionState

    transactions.store.check_all_loaded()
    by_label = {state.label: state for state in TransactionState}
    states = {by_label[label] for label in request.state_filters if label in by_label}
    unknown = [label for label in request.state_filters if label not in by_label]
    producer_ids = frozenset(request.producer_id_filters)
    duration_ms = getattr(request, "duration_filter", -1)
    matching = [
        txn
        for txn in transactions.store.transactions.values()
        if (not request.state_filters or txn.state in states)
        and (not producer_ids or txn.producer_id in producer_ids)
        and (duration_ms < 0 or now_ms - txn.start_ms > duration_ms)
        and transactions.store.topic.is_at(context.connection.broker_id, txn.transactional_id)
        and context.access.allows(permissions.DESCRIBE_TRANSACTIONAL_ID, txn.transactional_id)
    ]
    return matching, unknown


async def _matching(pattern: TopicPattern, transactions: list[Transaction], unknown: list[str]) -> ResponseFields:
    def match() -> list[Transaction]:
        return [txn for txn in transactions if pattern.matches(_BEYOND_ASCII.sub(_SUBSTITUTE, txn.transactional_id))]

    try:
        return _fields(await asyncio.to_thread(match), unknown)
    except REQUEST_ERRORS as error:
        return {"error_code": error_of(error)[0]}


def _fields(transactions: list[Transaction], unknown: list[str]) -> ResponseFields:
    states = [
        {
            "transactional_id": txn.transactional_id,
            "producer_id": txn.producer_id,
            "transaction_state": txn.state.label,
        }
        for txn in transactions
    ]
    return {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": states}


def describe(
    transactions: TransactionCoordinator, context: RequestContext, request: DescribeTransactionsRequest
) -> ResponseFields:
    """DescribeTransactions (key 65), version 0: the state of transactional ids (KIP-664).

    Source: TransactionCoordinator.handleDescribeTransactions.
    """
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
