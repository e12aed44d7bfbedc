"""Fetch (key 1), versions 4 to 18: read whole batches as stored, and wait for them if necessary.

Behaviour: partitions are read in the order of the request within the budget of max_bytes; the first batch of the
first non-empty partition is always sent whole (KIP-74). The answer waits until min_bytes are available, an error
occurs or max_wait has passed. It lists each partition exactly once, in the order of the request; without records, `records` is
empty rather than null. Versions: 7 adds sessions (KIP-227), 9 leader epochs (KIP-320), 12 diverging epochs (KIP-595), 13 topic
ids (KIP-516), 15 to 18 fields for brokers. `fetch_in_session.py` serves clients that request a session.

Source: ReplicaManager.fetchMessages and readFromLog, DelayedFetch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from diamant.broker.handlers.data.pending_fetch import FINAL_EPOCH, PendingFetch, partitions_of
from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.messages.fetch import (
    FetchRequest,
    decode_fetch_request,
)

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.security.quotas.quotas import FetchThrottle, Quotas


def handle(quotas: Lazy[Quotas], node: Node, context: RequestContext, request: FetchRequest) -> Answer:
    """Read the partitions; answer now or once there is enough data."""
    throttle = (
        None if quotas.made is None else quotas.made.throttle(context.connection.principal.name, context.client_id)
    )
    if request.session_epoch != FINAL_EPOCH or request.session_id:
        return _in_session()(node, context, request, throttle)
    fetch = PendingFetch(
        node.topics,
        node.topic_metrics,
        context,
        request,
        partitions_of(request),
        node.config.fetch_max_bytes,
        throttle,
    )
    if fetch.read_all() or request.max_wait_ms <= 0:
        return fetch.encode()
    return fetch.wait(node.purgatory)


@cache
def _in_session() -> Callable[[Node, RequestContext, FetchRequest, FetchThrottle | None], Answer]:
    from diamant.broker.handlers.data.fetch_in_session import handle_in_session

    return handle_in_session


decode = decode_fetch_request
