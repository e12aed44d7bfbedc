"""The quotas of a broker for users and client ids, applied to its responses.

A response is sent immediately and carries the throttle time. The broker does not read the connection during that time, which also
throttles clients that ignore it (KIP-219). The handlers of fetches and of topic changes do their own accounting: their responses
already carry the throttle time.

Source: KafkaApis (handleProduceRequest, sendResponseMaybeThrottle), RequestHandlerHelper.
"""

from __future__ import annotations

from collections.abc import Callable

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
from diamant.protocol.wire.server_connection import Request
from diamant.protocol.wire.throttle_time import Body, first_throttle_time_ms, with_throttle_time

WRITE_TXN_MARKERS = 27
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
_EXEMPT = frozenset([SASL_HANDSHAKE, SASL_AUTHENTICATE, WRITE_TXN_MARKERS])
"""The APIs without quotas: those that authenticate clients, and those that only brokers use."""

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
_MEASURED_BY_HANDLERS = frozenset([FETCH, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS])

_HEADER_BYTES = 10
"""The size of a request header without its client id."""


class FetchThrottle:
    """The quotas applied to one fetch, from its start to its response (KafkaApis.handleFetchRequest).

    A fetch that exceeds its client's quota is answered without records, and its bytes are not counted: the client fetches again
    after the throttle time. A fetch reads at most the burst that the quota allows, since a larger response could never be sent.
    """

    __slots__ = ("_busy_s", "_bytes", "_client_id", "_now_s", "_since_s", "_time", "_user")

    def __init__(
        self, rates: tuple[RateQuota, RateQuota], now_s: Callable[[], float], user: str, client_id: str | None
    ) -> None:
        """`rates`: the byte quota and the request time quota."""
        self._bytes, self._time = rates
        self._now_s = now_s
        self._user = user
        self._client_id = client_id or ""
        self._since_s = now_s()
        self._busy_s: float | None = None

    def max_bytes(self, max_bytes: int) -> int:
        """Return the number of bytes that the fetch may read, at most `max_bytes`."""
        allowed = self._bytes.max_at_once(self._user, self._client_id, self._since_s * 1000)
        return max_bytes if allowed is None else int(min(max_bytes, allowed))

    def wait(self) -> None:
        """Stop counting request time: the fetch now waits for records, which does not occupy the broker's thread."""
        self._busy_s = self._now_s() - self._since_s

    def throttle_time_ms(self, size: int) -> int:
        """Charge for a response of `size` bytes; return the throttle time, or 0 if the response may be sent unchanged."""
        user, client_id = self._user, self._client_id
        now_s = self._now_s()
        now_ms = now_s * 1000
        busy_s = now_s - self._since_s if self._busy_s is None else self._busy_s
        request_ms = self._time.record(user, client_id, (busy_s + NETWORK_S) * PERCENT, now_ms)
        bytes_ms = self._bytes.record(user, client_id, size, now_ms)
        throttle_time_ms = max(request_ms, bytes_ms)
        if throttle_time_ms:
            self._bytes.add(user, client_id, -size, now_ms)
            by = self._bytes if bytes_ms > request_ms else self._time
            by.throttled(user, client_id, throttle_time_ms, now_ms)
        return throttle_time_ms


class Quotas:
    """All limits and usage counts. Runs on the loop thread only."""

    def __init__(self, windows: RateWindows, mutation_windows: RateWindows, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic real time, not the broker's clock, which can be moved."""
        self.now_s = now_s
        self.produce = RateQuota(PRODUCER_BYTE_RATE, windows)
        self.fetch = RateQuota(CONSUMER_BYTE_RATE, windows)
        self.request = RateQuota(REQUEST_PERCENTAGE, windows, max_throttle_ms=windows.window_ms)
        self.mutations = MutationQuota(mutation_windows, now_s)

    def __bool__(self) -> bool:
        """True if any client may have a limit."""
        return any((self.produce.counts, self.fetch.counts, self.request.counts, self.mutations.counts))

    def set_limits(self, quotas: StoredQuotas) -> None:
        """Replace all limits; the usage counted so far remains."""
        for quota in (self.produce, self.fetch, self.request):
            quota.counts.set_limits(quotas)
        self.mutations.counts.set_limits(quotas)

    def throttle(self, user: str, client_id: str | None) -> FetchThrottle | None:
        """Return the throttle for a fetch that starts now, or None if no quota applies to fetches."""
        if not (self.fetch.counts or self.request.counts):
            return None
        return FetchThrottle((self.fetch, self.request), self.now_s, user, client_id)

    def answer(self, user: str, request: Request, body: Body | None, busy_s: float) -> tuple[Body | None, int]:
        """Return the response to send (None: no response), and for how many ms the connection must not be read.

        `busy_s`: the time that the loop thread spent on the request.
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
        if body is not None:  # request time is not limited with acks=0 (KafkaApis.handleProduceRequest)
            request_ms = self.request.record(user, client_id, (busy_s + NETWORK_S) * PERCENT, now_ms)
        throttle_time_ms = max(bytes_ms, request_ms, said_ms)
        if throttle_time_ms > said_ms:
            by = self.produce if bytes_ms > request_ms else self.request
            by.throttled(user, client_id, throttle_time_ms, now_ms)
            if body is not None:
                body = with_throttle_time(key, request.api_version, body, throttle_time_ms)
        return body, throttle_time_ms
