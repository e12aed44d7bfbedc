"""Holds on logs whose current segments are being read: until a hold ends, no output replaces a segment.

Rounds run during a hold, but wait before each swap. A hold must be short: the worker of a waiting round does no other
work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from diamant.storage.checkpoints.checkpoints import TopicPartition


class SwapHolds:
    """Belongs to the loop thread. Memory: an entry for each log that is held."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, asyncio.Event] = {}

    @contextmanager
    def held(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Hold logs that are not held yet."""
        assert self._held.keys().isdisjoint(partitions), "one job at a time holds logs"
        over = asyncio.Event()
        self._held |= dict.fromkeys(partitions, over)
        try:
            yield
        finally:
            over.set()
            for partition in partitions:
                del self._held[partition]

    async def released(self, partition: TopicPartition) -> None:
        """Wait until a log is not held."""
        while (over := self._held.get(partition)) is not None:
            await over.wait()
