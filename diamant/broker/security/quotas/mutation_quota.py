"""Limits on changes to topics: partitions created and deleted per second, with bursts (KIP-599).

Each client has a token bucket, which refills at the limit's rate and holds the tokens of all windows. A request takes the tokens
that it needs, even if the bucket becomes negative. While it is negative, strict requests are refused; requests of older versions
are executed and their clients throttled.

Source: ControllerMutationQuotaManager, StrictControllerMutationQuota, PermissiveControllerMutationQuota, TokenBucket.
"""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.security.quotas.client_counts import ClientCounts
from diamant.broker.security.quotas.limits import CONTROLLER_MUTATION_RATE
from diamant.broker.security.quotas.rate import RateWindows
from diamant.broker.security.quotas.rate_quota import MAX_THROTTLE_TIME_MS
from diamant.protocol.errors import ErrorCode, KafkaError


class TokenBucket:
    """A token bucket, initially full. Times are in milliseconds of any monotonic clock."""

    __slots__ = ("_last_ms", "_tokens", "_windows")

    def __init__(self, windows: RateWindows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._last_ms: float | None = None

    def tokens(self, limit: float, now_ms: float) -> float:
        """Refill the bucket and return its tokens; negative while the client is in debt."""
        burst = limit * self._windows.samples * self._windows.window_ms / 1000
        if self._last_ms is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + limit * (now_ms - self._last_ms) / 1000)
        self._last_ms = now_ms
        return self._tokens

    def take(self, count: float, limit: float, now_ms: float) -> float:
        """Take tokens and return how many remain."""
        self._tokens = self.tokens(limit, now_ms) - count
        return self._tokens


class MutationQuota:
    """The `controller_mutation_rate` limits and the bucket of each client."""

    def __init__(self, windows: RateWindows, now_s: Callable[[], float]) -> None:
        self.counts: ClientCounts[TokenBucket] = ClientCounts(CONTROLLER_MUTATION_RATE, lambda: TokenBucket(windows))
        self.now_s = now_s


class MutationCharge:
    """The quota charge for one request that changes topics."""

    def __init__(self, quota: MutationQuota | None, user: str, client_id: str | None, *, is_strict: bool) -> None:
        """`quota`: None to charge nothing. `is_strict`: the request's version supports THROTTLING_QUOTA_EXCEEDED."""
        self._quota = quota
        self._user = user
        self._client_id = client_id or ""
        self._is_strict = is_strict
        self._wait_ms = 0.0
        self._charged_ms = 0.0

    def take(self, partitions: int) -> None:
        """Charge for partitions to create or delete. Raises KafkaError THROTTLING_QUOTA_EXCEEDED to refuse a strict request."""
        if self._quota is None:
            return
        now_ms = self._quota.now_s() * 1000
        count = self._quota.counts.of(self._user, self._client_id, now_ms)
        if count is None:
            return
        left = count.meter.tokens(count.limit, now_ms)
        if self._is_strict and left < 0:
            self._waits(left, count.limit, now_ms)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "")
        left = count.meter.take(partitions, count.limit, now_ms)
        if left < 0 and not self._is_strict:
            self._waits(left, count.limit, now_ms)

    def throttle_time_ms(self) -> int:
        """Return the remaining throttle time, for the response."""
        if self._quota is None or not self._wait_ms:
            return 0
        now_ms = self._quota.now_s() * 1000
        wait_ms = max(int(self._wait_ms - (now_ms - self._charged_ms) + 0.5), 0)
        count = self._quota.counts.of(self._user, self._client_id, now_ms)
        if count is not None and wait_ms:
            count.throttled(wait_ms, now_ms)
        return min(wait_ms, MAX_THROTTLE_TIME_MS)

    def _waits(self, tokens: float, limit: float, now_ms: float) -> None:
        self._wait_ms = -tokens / limit * 1000
        self._charged_ms = now_ms
