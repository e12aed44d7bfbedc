"""The throttling of one fetch.

A fetch that exceeds its client's quota is answered without records, and its bytes are not counted: the client fetches again after
the throttle time. A fetch never reads more than the quota allows in one burst, since such a fetch could never succeed.

Source: KafkaApis.handleFetchRequest.
"""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.security.quotas.rate_quota import NETWORK_S, PERCENT, RateQuota


class FetchThrottle:
    """The quotas applied to one fetch, from its start to its response."""

    __slots__ = ("_busy_s", "_bytes", "_client_id", "_now_s", "_since_s", "_time", "_user")

    def __init__(
        self, rates: tuple[RateQuota, RateQuota], now_s: Callable[[], float], user: str, client_id: str | None
    ) -> None:
        """`rates`: the quota of bytes and the quota of request time."""
        self._bytes, self._time = rates
        self._now_s = now_s
        self._user = user
        self._client_id = client_id or ""
        self._since_s = now_s()
        self._busy_s: float | None = None

    def max_bytes(self, max_bytes: int) -> int:
        """The number of bytes that the fetch may read, at most `max_bytes`."""
        allowed = self._bytes.max_at_once(self._user, self._client_id, self._since_s * 1000)
        return max_bytes if allowed is None else int(min(max_bytes, allowed))

    def wait(self) -> None:
        """Stop the clock of request time: the fetch now waits for records, which takes no time of the broker's thread."""
        self._busy_s = self._now_s() - self._since_s

    def throttle_time_ms(self, size: int) -> int:
        """Charge for a response of `size` bytes; return the throttle time. 0: the response may be sent as it is."""
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
