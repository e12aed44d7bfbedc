"""The figures for the quota metrics: the rate or the remaining tokens of each count, and its average throttle time.

Bounds: the `MAX_COUNTS_SHOWN` most recently used counts of each kind.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from diamant.broker.security.quotas.client_counts import ClientCount
    from diamant.broker.security.quotas.quotas import Quotas

MAX_COUNTS_SHOWN = 1000

M = TypeVar("M")


class QuotaFigure(NamedTuple):
    """The figures of one count."""

    labels: tuple[str, ...]
    """Kafka's type of the quota, and the user and the client id that share the count."""
    throttle_time_ms: float
    byte_rate: float | None = None
    request_time: float | None = None
    tokens: float | None = None


def take_quotas(quotas: Quotas | None) -> tuple[QuotaFigure, ...]:
    """The figures of all kinds; empty without quotas."""
    if quotas is None:
        return ()
    now_ms = quotas.now_s() * 1000

    def figure(kind: str, count: ClientCount[M]) -> QuotaFigure:
        return QuotaFigure((kind, *count.shared), count.throttle_time_ms(now_ms))

    return (
        *(figure("Produce", c)._replace(byte_rate=c.meter.per_second(now_ms)) for c in _latest(quotas.produce.counts)),
        *(figure("Fetch", c)._replace(byte_rate=c.meter.per_second(now_ms)) for c in _latest(quotas.fetch.counts)),
        *(
            figure("Request", c)._replace(request_time=c.meter.per_second(now_ms))
            for c in _latest(quotas.request.counts)
        ),
        *(
            figure("ControllerMutation", c)._replace(tokens=c.meter.tokens(c.limit, now_ms))
            for c in _latest(quotas.mutations.counts)
        ),
    )


def _latest(counts: Iterable[ClientCount[M]]) -> list[ClientCount[M]]:
    return heapq.nlargest(MAX_COUNTS_SHOWN, counts, key=lambda count: count.last_used_ms)
