"""Connection limits: the rate of new connections per broker, listener and address, and the open connections per address.

If the rate of the broker or of a listener is exceeded, the broker stops accepting for a while. If the rate of an address is
exceeded, the connection is accepted, left unread for the throttle time and then closed, so that a client that reconnects in a
loop costs little (KIP-612). If an address has too many open connections, a new one is closed immediately.

Bounds: the rates of addresses are bounded as in `client_counts.py`. The server counts the open connections.

Source: SocketServer.ConnectionQuotas.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import NamedTuple

from diamant.broker.security.quotas.client_counts import IDLE_MS, MAX_COUNTS
from diamant.broker.security.quotas.limits import CONNECTION_CREATION_RATE, IP, StoredQuotas
from diamant.broker.security.quotas.rate import Rate, RateWindows
from diamant.broker.security.quotas.rate_quota import throttle_time_ms

NO_LIMIT = (1 << 31) - 1
"""The value that means "no limit": Kafka's default for each connection limit."""


class Admittance(NamedTuple):
    """The decision about a new connection: close it after `refused_ms` if set, otherwise accept the next one after `wait_ms`."""

    wait_ms: int = 0
    refused_ms: int = 0


class NewConnectionLimits(NamedTuple):
    """All connection limits. Addresses are written as sockets report them."""

    per_second: int = NO_LIMIT
    per_second_of_any: int = NO_LIMIT
    per_second_of: Mapping[str, int] = {}
    at_once_of_any: int = NO_LIMIT
    at_once_of: Mapping[str, int] = {}
    per_second_of_listener: Mapping[str, int] = {}
    """By listener name, in addition to `per_second`, which covers all listeners."""

    @property
    def has_any(self) -> bool:
        """True if any limit is set."""
        rates = (self.per_second, self.per_second_of_any, self.at_once_of_any)
        return any(limit != NO_LIMIT for limit in rates) or bool(
            self.per_second_of or self.at_once_of or self.per_second_of_listener
        )


def rates_by_host(quotas: StoredQuotas) -> dict[str | None, int]:
    """Return the `connection_creation_rate` quotas by address or host name; the key None is the default for other addresses."""
    return {
        entity[0].entity_name: int(limits[CONNECTION_CREATION_RATE])
        for entity, limits in quotas.items()
        if entity[0].entity_type == IP and CONNECTION_CREATION_RATE in limits
    }


def plain_address(text: str) -> str | None:
    """Return an address in the form that sockets report, or None for a host name."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


class ConnectionQuotas:
    """The connection limits and the measured rates. Runs on the loop thread only."""

    def __init__(self, windows: RateWindows, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic real time."""
        self.limits = NewConnectionLimits()
        self.throttled = 0
        """Connections delayed or refused because of a creation rate."""
        self._windows = windows
        self._now_s = now_s
        self._all = Rate(windows)
        self._of_listener: dict[str, Rate] = {}
        self._of: dict[str, Rate] = {}
        self._last_ms: dict[str, float] = {}

    def ask(self, host: str, listener: str = "") -> Admittance:
        """Count a new connection and decide whether to delay or refuse connections."""
        now_ms = self._now_s() * 1000
        wait_ms = self._record(self._all, self.limits.per_second, now_ms)
        counted = [self._all]
        if listener in self.limits.per_second_of_listener:
            of_listener = self._of_listener.setdefault(listener, Rate(self._windows))
            counted.append(of_listener)
            wait_ms = max(wait_ms, self._record(of_listener, self.limits.per_second_of_listener[listener], now_ms))
        limit = self.limits.per_second_of.get(host, self.limits.per_second_of_any)
        if limit != NO_LIMIT:
            rate = self._rate_of(host, now_ms)
            refused_ms = self._record(rate, limit, now_ms)
            if refused_ms:
                # A refused connection does not count towards the rates.
                for each in (rate, *counted):
                    each.record(-1, now_ms)
                self.throttled += 1
                return Admittance(refused_ms=refused_ms)
        self.throttled += wait_ms > 0
        return Admittance(wait_ms=wait_ms)

    def may_have(self, host: str, count: int) -> bool:
        """True if an address may have `count` open connections."""
        return count <= self.limits.at_once_of.get(host, self.limits.at_once_of_any)

    def _record(self, rate: Rate, limit: int, now_ms: float) -> int:
        rate.record(1, now_ms)
        return throttle_time_ms(rate, limit, now_ms, self._windows.window_ms)

    def _rate_of(self, host: str, now_ms: float) -> Rate:
        rate = self._of.get(host)
        if rate is None:
            if len(self._of) >= MAX_COUNTS:
                self._sweep(now_ms)
            rate = self._of[host] = Rate(self._windows)
        self._last_ms[host] = now_ms
        return rate

    def _sweep(self, now_ms: float) -> None:
        """Drop the addresses that were idle for an hour; if there are none, drop the 10 % of addresses that were idle longest."""
        by_age = sorted(self._last_ms, key=self._last_ms.__getitem__)
        idle = [host for host in by_age if now_ms - self._last_ms[host] >= IDLE_MS]
        for host in idle or by_age[: MAX_COUNTS // 10]:
            del self._of[host], self._last_ms[host]
