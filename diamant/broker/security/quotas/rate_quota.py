"""Limits on rates: bytes produced, bytes fetched, time of the broker's thread.

Nothing is refused. A client that took more than its limit waits for as long as brings its rate back to it.

Source: ClientQuotaManager, ClientRequestQuotaManager, QuotaUtils.throttleTime.
"""

from __future__ import annotations

from diamant.broker.security.quotas.client_counts import ClientCounts
from diamant.broker.security.quotas.rate import Rate, RateWindows

PERCENT = 100.0
"""Of one second of the thread: what limits on time count."""

NETWORK_S = 20e-6
"""What reading a request and writing its answer takes of the thread, beside the handling, which is measured: about as much as was
measured on two cores. Kafka measures its network threads, too.
"""

MAX_THROTTLE_TIME_MS = (1 << 31) - 1
"""The largest that an answer can say."""


class RateQuota:
    """One kind of limit. Times are milliseconds of a clock that does not go back."""

    def __init__(self, name: str, windows: RateWindows, max_throttle_ms: int = MAX_THROTTLE_TIME_MS) -> None:
        """`name`: of the limit. `max_throttle_ms`: no wait is longer."""
        self._windows = windows
        self._max_throttle_ms = max_throttle_ms
        self.counts: ClientCounts[Rate] = ClientCounts(name, lambda: Rate(windows))

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> int:
        """Count what a client has taken; return how long it has to wait now, in ms."""
        count = self.counts.of(user, client_id, now_ms)
        if count is None:
            return 0
        count.meter.record(value, now_ms)
        return throttle_time_ms(count.meter, count.limit, now_ms, self._max_throttle_ms)

    def add(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Count without asking for the wait; a negative value takes back what was counted."""
        count = self.counts.of(user, client_id, now_ms)
        if count is not None:
            count.meter.record(value, now_ms)

    def throttled(self, user: str, client_id: str, throttle_time_ms: int, now_ms: float) -> None:
        """Note that a client waits because of this limit."""
        count = self.counts.of(user, client_id, now_ms)
        if count is not None:
            count.throttled(throttle_time_ms, now_ms)

    def max_at_once(self, user: str, client_id: str, now_ms: float) -> float | None:
        """What a client may take at once without having to wait, if it took nothing lately; None if it has no limit."""
        count = self.counts.of(user, client_id, now_ms)
        if count is None:
            return None
        return count.limit * (self._windows.samples - 1) * self._windows.window_ms / 1000


def throttle_time_ms(rate: Rate, limit: float, now_ms: float, max_ms: int) -> int:
    """The wait that brings a rate back to its limit; 0 if it is not above."""
    observed = rate.per_second(now_ms)
    if observed <= limit:
        return 0
    wait_ms = (observed - limit) / limit * rate.elapsed_ms(now_ms)
    return min(int(wait_ms + 0.5), max_ms)
