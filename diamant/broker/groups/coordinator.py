"""The group coordinator: groups by id, loaded from and written to `__consumer_offsets`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diamant.broker.broker import Broker


class GroupCoordinator:
    """All groups of the broker. The loop thread owns it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def start(self) -> None:
        """Load what the topic holds, in the background."""

    async def stop(self) -> None:
        """Let go of timers and of requests that wait."""
