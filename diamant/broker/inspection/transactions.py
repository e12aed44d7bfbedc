"""The open transactions of a Kafka cluster, according to its transaction coordinators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from diamant.broker.client.kafka_client import KafkaClient, error_name
from diamant.broker.client.kafka_connection import ConnectionFailed

DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66


class ListedTransaction(NamedTuple):
    """A transactional id and its coordinator; after `described`, also when the transaction began and when it will be aborted."""

    transactional_id: str
    coordinator: int
    since_ms: int | None = None
    abort_ms: int | None = None


def listed_transactions(client: KafkaClient, brokers: Iterable[int]) -> tuple[dict[int, ListedTransaction], list[str]]:
    """Return the transactions by producer id, and a line for each broker whose transactions could not be listed."""
    found, hidden = dict[int, ListedTransaction](), list[str]()
    for broker in brokers:
        try:
            answer = client.broker(broker).ask(LIST_TRANSACTIONS, {"state_filters": [], "producer_id_filters": []})
        except ConnectionFailed as error:
            hidden.append(f"transactions of broker {broker}: {error}")
            continue
        if answer["error_code"]:
            hidden.append(f"transactions of broker {broker}: {error_name(answer['error_code'])}")
            continue
        for one in answer["transaction_states"]:
            found[one["producer_id"]] = ListedTransaction(one["transactional_id"], broker)
    return found, hidden


def described(client: KafkaClient, listed: ListedTransaction) -> ListedTransaction:
    """Return the transaction, with its times added if its coordinator reports them."""
    asked = {"transactional_ids": [listed.transactional_id]}
    (one,) = client.broker(listed.coordinator).ask(DESCRIBE_TRANSACTIONS, asked)["transaction_states"]
    if one["error_code"] or one["transaction_start_time_ms"] < 0:
        return listed
    since_ms = one["transaction_start_time_ms"]
    return listed._replace(since_ms=since_ms, abort_ms=since_ms + one["transaction_timeout_ms"])
