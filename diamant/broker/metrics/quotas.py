"""The figures for the quota metrics: the rate or the remaining tokens of each count, and its average throttle time.

Bounds: the `MAX_COUNTS_SHOWN` most recently used counts of each kind.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from diamant.broker.security.quotas.client_counts import ClientCount, ClientCounts
    from diamant.broker.security.quotas.quotas import Quotas

MAX_COUNTS_SHOWN = 1000

M = TypeVar("M")


class QuotaFigure(NamedTuple):
    """One sample: the metric, the kind of quota, the clients that share the count, and the value."""

    metric: str
    resource: str
    user: str
    client_id: str
    value: float


def take_quotas(quotas: Quotas | None) -> tuple[QuotaFigure, ...]:
    """The figures of all kinds; empty without quotas."""
    if quotas is None:
        return ()
    now_ms = quotas.now_s() * 1000
    return (
        *_figures(quotas.produce.counts, "Produce", "byte_rate", lambda c: c.meter.per_second(now_ms), now_ms),
        *_figures(quotas.fetch.counts, "Fetch", "byte_rate", lambda c: c.meter.per_second(now_ms), now_ms),
        *_figures(quotas.request.counts, "Request", "request_time", lambda c: c.meter.per_second(now_ms), now_ms),
        *_figures(
            quotas.mutations.counts, "ControllerMutation", "tokens", lambda c: c.meter.tokens(c.limit, now_ms), now_ms
        ),
    )


def _figures(
    counts: ClientCounts[M], kind: str, measure: str, value: Callable[[ClientCount[M]], float], now_ms: float
) -> Iterator[QuotaFigure]:
    for count in _latest(counts):
        user, client_id = count.shared
        yield QuotaFigure(f"kafka_server_quota_{measure}", kind, user, client_id, value(count))
        yield QuotaFigure("kafka_server_quota_throttle_time", kind, user, client_id, count.throttle_time_ms(now_ms))


def _latest(counts: Iterable[ClientCount[M]]) -> list[ClientCount[M]]:
    return heapq.nlargest(MAX_COUNTS_SHOWN, counts, key=lambda count: count.last_used_ms)
