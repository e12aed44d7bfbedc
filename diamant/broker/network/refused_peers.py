"""The log lines about connections closed for bad input: one per address and minute, then a count of the others.

Bound: `max_addresses` addresses are counted separately, at about 300 bytes each; all others are counted together.
"""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger("diamant.broker.network.server")

OTHERS = "other addresses"


class RefusedPeers:
    """Logs the connections that one server closed for bad input. Belongs to the loop thread."""

    def __init__(self, *, pause_s: float = 60.0, max_addresses: int = 1_000) -> None:
        self._pause_s = pause_s
        self._max_addresses = max_addresses
        self._counts: dict[str, tuple[int, str]] = {}
        """By address: the number of connections closed since its last log line, and the reason for the latest."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def log(self, peer: str, reason: str) -> None:
        """Log that a connection from `peer` (address and port) was closed, or count it."""
        if not reason.isprintable():  # names of users or certificates must not forge log lines
            reason = reason.encode("unicode_escape").decode()
        address = peer.rpartition(":")[0]
        if address not in self._counts and len(self._counts) >= self._max_addresses:
            address = OTHERS
        known = self._counts.get(address)
        if known is not None:
            self._counts[address] = known[0] + 1, reason
            return
        logger.warning("%s: connection closed: %s", peer, reason)
        self._begin(address)

    def close(self) -> None:
        """Log the remaining counts."""
        for timer in self._timers.values():
            timer.cancel()
        for address in [*self._counts]:
            self._end(address)

    def _begin(self, address: str) -> None:
        self._counts[address] = 0, ""
        self._timers[address] = asyncio.get_running_loop().call_later(self._pause_s, self._minute_over, address)

    def _minute_over(self, address: str) -> None:
        if self._end(address):
            self._begin(address)

    def _end(self, address: str) -> bool:
        """Log the count of an address unless it is zero; return whether it was logged."""
        self._timers.pop(address).cancel()
        count, reason = self._counts.pop(address)
        if count:
            logger.warning(
                "%s: %d more connections closed in the last %d s, the last one: %s",
                address,
                count,
                self._pause_s,
                reason,
            )
        return bool(count)
