"""One fetch of a client that may have a limit.

A fetch that exceeds it is answered without records, and nothing of them is counted: the client asks again when its time is over.
No fetch reads more than its client could take at once, or it would wait for ever.

Source: KafkaApis.handleFetchRequest.
"""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.security.quotas.rate_quota import NETWORK_S, PERCENT, RateQuota


class FetchThrottle:
    """The limits on one fetch, from its beginning to its answer."""

    __slots__ = ("_busy_s", "_bytes", "_client_id", "_now_s", "_since_s", "_time", "_user")

    def __init__(
        self, rates: tuple[RateQuota, RateQuota], now_s: Callable[[], float], user: str, client_id: str | None
    ) -> None:
        """`rates`: of bytes and of time."""
        self._bytes, self._time = rates
        self._now_s = now_s
        self._user = user
        self._client_id = client_id or ""
        self._since_s = now_s()
        self._busy_s: float | None = None

    def max_bytes(self, max_bytes: int) -> int:
        """The number of bytes that it may read, `max_bytes` at most."""
        allowed = self._bytes.max_at_once(self._user, self._client_id, self._since_s * 1000)
        return max_bytes if allowed is None else int(min(max_bytes, allowed))

    def wait(self) -> None:
        """It waits for records from now on, which takes no time of the broker's thread."""
        self._busy_s = self._now_s() - self._since_s

    def throttle_time_ms(self, size: int) -> int:
        """How long the client has to wait; 0: its answer of `size` bytes may go out."""
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
