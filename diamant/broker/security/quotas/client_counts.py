"""Usage counts of clients, each with its limit. Clients that share a limit share a count.

Bounds: at most `MAX_COUNTS` counts, and as many cached pairs of user and client id. When a count is added, counts unused for
`IDLE_MS` are dropped and, if the table is full, the least recently used ones. A client whose count was dropped starts at zero.

Source: ClientQuotaManager (sensors by metric tags, InactiveSensorExpirationTimeSeconds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from diamant.broker.security.quotas.limits import ClientLimits, Shared, StoredQuotas
from diamant.broker.security.quotas.rate import Rate, RateWindows

IDLE_MS = 3600 * 1000.0
SWEEP_MS = 60 * 1000.0
MAX_COUNTS = 10_000

_THROTTLE_WINDOWS = RateWindows(2, 30_000)
"""Kafka's defaults for `metrics.num.samples` and `metrics.sample.window.ms`."""


M = TypeVar("M")


class ClientCount(Generic[M]):
    """A usage count with its limit per second."""

    __slots__ = ("_throttle_ms", "_throttles", "last_used_ms", "limit", "meter", "shared")

    def __init__(self, shared: Shared, limit: float, meter: M) -> None:
        self.shared = shared
        self.limit = limit
        self.meter = meter
        self.last_used_ms = 0.0
        self._throttle_ms: Rate | None = None
        self._throttles: Rate | None = None

    def throttled(self, throttle_time_ms: int, now_ms: float) -> None:
        """Record that a client was throttled."""
        if self._throttle_ms is None or self._throttles is None:
            self._throttle_ms, self._throttles = Rate(_THROTTLE_WINDOWS), Rate(_THROTTLE_WINDOWS)
        self._throttle_ms.record(throttle_time_ms, now_ms)
        self._throttles.record(1, now_ms)

    def throttle_time_ms(self, now_ms: float) -> float:
        """Return the average throttle time in the last minute; 0 if no client was throttled."""
        if self._throttle_ms is None or self._throttles is None:
            return 0.0
        count = self._throttles.per_second(now_ms)
        return self._throttle_ms.per_second(now_ms) / count if count else 0.0


class ClientCounts(Generic[M]):
    """The counts of one kind of quota."""

    def __init__(self, name: str, make_meter: Callable[[], M]) -> None:
        """`name`: the limit's name, such as `producer_byte_rate`."""
        self._name = name
        self._make_meter = make_meter
        self._limits = ClientLimits(name, {})
        self._counts: dict[Shared, ClientCount[M]] = {}
        self._of_client: dict[tuple[str, str], ClientCount[M] | None] = {}
        self._next_sweep_ms = 0.0

    def __bool__(self) -> bool:
        return bool(self._limits)

    def __iter__(self) -> Iterator[ClientCount[M]]:
        return iter(self._counts.values())

    def set_limits(self, quotas: StoredQuotas) -> None:
        """Replace the limits. Clients that still have a limit keep their count."""
        self._limits = ClientLimits(self._name, quotas)
        self._of_client.clear()
        for shared in list(self._counts):
            found = self._limits.find(shared.user, shared.client_id)
            if found is None or found[0] != shared:
                del self._counts[shared]
            else:
                self._counts[shared].limit = found[1]

    def of(self, user: str, client_id: str, now_ms: float) -> ClientCount[M] | None:
        """Return a client's count and mark it as used now; None if the client has no limit."""
        key = (user, client_id)
        if key in self._of_client:
            count = self._of_client[key]
        else:
            count = self._find(key, now_ms)
        if count is not None:
            count.last_used_ms = now_ms
        return count

    def _find(self, key: tuple[str, str], now_ms: float) -> ClientCount[M] | None:
        if len(self._of_client) >= MAX_COUNTS:
            self._of_client.clear()
        found = self._limits.find(*key)
        count = None
        if found is not None:
            shared, limit = found
            count = self._counts.get(shared)
            if count is None:
                self._sweep(now_ms)
                count = self._counts[shared] = ClientCount(shared, limit, self._make_meter())
        self._of_client[key] = count
        return count

    def _sweep(self, now_ms: float) -> None:
        is_full = len(self._counts) >= MAX_COUNTS
        if now_ms < self._next_sweep_ms and not is_full:
            return
        self._next_sweep_ms = now_ms + SWEEP_MS
        idle = [shared for shared, count in self._counts.items() if now_ms - count.last_used_ms >= IDLE_MS]
        if is_full and not idle:
            by_age = sorted(self._counts.values(), key=lambda count: count.last_used_ms)
            idle = [count.shared for count in by_age[: MAX_COUNTS // 10]]
        for shared in idle:
            del self._counts[shared]
        if idle:
            self._of_client.clear()
