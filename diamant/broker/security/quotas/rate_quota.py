"""Rate limits: on bytes produced, on bytes fetched, and on the time that requests occupy the broker's thread.

No request is refused. A client that exceeds its limit is throttled until its rate is back at the limit.

Source: ClientQuotaManager, ClientRequestQuotaManager, QuotaUtils.throttleTime.
"""

from __future__ import annotations

from diamant.broker.security.quotas.client_counts import ClientCounts
from diamant.broker.security.quotas.rate import Rate, RateWindows

PERCENT = 100.0
"""One second of thread time, in the unit of the limits on request time: percent of the thread."""

NETWORK_S = 20e-6
"""An estimate of the thread time for reading a request and writing its response, from measurements on two cores. Only the time
for handling a request is measured at run time. Kafka also measures the time of its network threads.
"""

MAX_THROTTLE_TIME_MS = (1 << 31) - 1
"""The largest value that fits the `throttle_time_ms` field of a response."""


class RateQuota:
    """One kind of rate limit, for all clients. Times are in milliseconds of a monotonic clock."""

    def __init__(self, name: str, windows: RateWindows, max_throttle_ms: int = MAX_THROTTLE_TIME_MS) -> None:
        """`name`: the limit's name. `max_throttle_ms`: the longest throttle time."""
        self._windows = windows
        self._max_throttle_ms = max_throttle_ms
        self.counts: ClientCounts[Rate] = ClientCounts(name, lambda: Rate(windows))

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> int:
        """Count a client's usage; return its throttle time in ms."""
        count = self.counts.of(user, client_id, now_ms)
        if count is None:
            return 0
        count.meter.record(value, now_ms)
        return throttle_time_ms(count.meter, count.limit, now_ms, self._max_throttle_ms)

    def add(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Count usage without computing a throttle time; a negative value undoes an earlier one."""
        count = self.counts.of(user, client_id, now_ms)
        if count is not None:
            count.meter.record(value, now_ms)

    def throttled(self, user: str, client_id: str, throttle_time_ms: int, now_ms: float) -> None:
        """Record that this limit throttles a client."""
        count = self.counts.of(user, client_id, now_ms)
        if count is not None:
            count.throttled(throttle_time_ms, now_ms)

    def max_at_once(self, user: str, client_id: str, now_ms: float) -> float | None:
        """Return the largest burst for which an idle client is not throttled; None if the client has no limit."""
        count = self.counts.of(user, client_id, now_ms)
        if count is None:
            return None
        return count.limit * (self._windows.samples - 1) * self._windows.window_ms / 1000


def throttle_time_ms(rate: Rate, limit: float, now_ms: float, max_ms: int) -> int:
    """Return how long to throttle until a rate is back at its limit, at most `max_ms`; 0 if the rate is not above the limit."""
    observed = rate.per_second(now_ms)
    if observed <= limit:
        return 0
    wait_ms = (observed - limit) / limit * rate.elapsed_ms(now_ms)
    return min(int(wait_ms + 0.5), max_ms)
