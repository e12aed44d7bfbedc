"""The quotas of a broker for users and client ids, and what they make of its answers.

An answer goes out at once and says how long its client is to wait; so long the connection is left alone, which makes clients wait
that do not do so by themselves (KIP-219). A fetch, and what changes topics, has been measured by its handler: its answer says the
time already.

Source: KafkaApis (handleProduceRequest, sendResponseMaybeThrottle), RequestHandlerHelper.
"""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.security.quotas.fetch_throttle import FetchThrottle
from diamant.broker.security.quotas.limits import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    StoredQuotas,
)
from diamant.broker.security.quotas.mutation_quota import MutationQuota
from diamant.broker.security.quotas.rate import RateWindows
from diamant.broker.security.quotas.rate_quota import NETWORK_S, PERCENT, RateQuota
from diamant.protocol.wire.apis import FETCH, PRODUCE
from diamant.protocol.wire.connection import Request
from diamant.protocol.wire.throttle_time import Body, first_throttle_time_ms, with_throttle_time

WRITE_TXN_MARKERS = 27
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
_EXEMPT = frozenset([SASL_HANDSHAKE, SASL_AUTHENTICATE, WRITE_TXN_MARKERS])
"""Who is not known yet, and what brokers ask of each other."""

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
_MEASURED_BY_HANDLERS = frozenset([FETCH, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS])

_HEADER_BYTES = 10
"""Of a request, without its client id."""


class Quotas:
    """All limits and what has been taken. Everything runs on the loop thread."""

    def __init__(self, windows: RateWindows, mutation_windows: RateWindows, now_s: Callable[[], float]) -> None:
        """`now_s`: real time that does not go back; the broker's clock, which can be moved, is not meant."""
        self.now_s = now_s
        self.produce = RateQuota(PRODUCER_BYTE_RATE, windows)
        self.fetch = RateQuota(CONSUMER_BYTE_RATE, windows)
        self.request = RateQuota(REQUEST_PERCENTAGE, windows, max_throttle_ms=windows.window_ms)
        self.mutations = MutationQuota(mutation_windows, now_s)

    def __bool__(self) -> bool:
        """True if any client may have a limit."""
        return any((self.produce.counts, self.fetch.counts, self.request.counts, self.mutations.counts))

    def set_limits(self, quotas: StoredQuotas) -> None:
        """Take over all limits; what has been taken stays counted."""
        for quota in (self.produce, self.fetch, self.request):
            quota.counts.set_limits(quotas)
        self.mutations.counts.set_limits(quotas)

    def throttle(self, user: str, client_id: str | None) -> FetchThrottle | None:
        """The limits on a fetch that begins now; None if there are none on fetches."""
        if not (self.fetch.counts or self.request.counts):
            return None
        return FetchThrottle((self.fetch, self.request), self.now_s, user, client_id)

    def answer(self, user: str, request: Request, body: Body | None, busy_s: float) -> tuple[Body | None, int]:
        """An answer as it goes out (None: none does), and for how many ms its connection is left alone.

        `busy_s`: the time that the loop's thread was at work on it.
        """
        key = request.api_key
        if key in _EXEMPT:
            return body, 0
        said_ms = first_throttle_time_ms(body) if body is not None and key in _MEASURED_BY_HANDLERS else 0
        if key == FETCH:
            return body, said_ms
        client_id = request.client_id or ""
        now_ms = self.now_s() * 1000
        bytes_ms = request_ms = 0
        if key == PRODUCE:
            size = _HEADER_BYTES + len(client_id) + len(request.body)
            bytes_ms = self.produce.record(user, client_id, size, now_ms)
        if body is not None:  # with acks=0 there is no limit on time (KafkaApis.handleProduceRequest)
            request_ms = self.request.record(user, client_id, (busy_s + NETWORK_S) * PERCENT, now_ms)
        throttle_time_ms = max(bytes_ms, request_ms, said_ms)
        if throttle_time_ms > said_ms:
            by = self.produce if bytes_ms > request_ms else self.request
            by.throttled(user, client_id, throttle_time_ms, now_ms)
            if body is not None:
                body = with_throttle_time(key, request.api_version, body, throttle_time_ms)
        return body, throttle_time_ms
