"""Producer ids, unique over restarts: handed out from blocks that the metadata log has recorded (Kafka's
ProducerIdManager).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

BLOCK_SIZE = 1000
"""Ids per ProducerIdsRecord, as in Kafka."""


class ProducerIds:
    """The current block.

    `next_block_start()` is the metadata image's next id, `commit(end)` records that ids below `end` are taken and
    returns once that is on disk: an id must not be handed out before.
    """

    def __init__(self, next_block_start: Callable[[], int], commit: Callable[[int], Awaitable[None]]) -> None:
        self._next_block_start = next_block_start
        self._commit = commit
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    def take(self) -> int | None:
        """The next id, or None if the block is used up: then `await take_slowly()`."""
        if self._next >= self._end:
            return None
        producer_id = self._next
        self._next += 1
        return producer_id

    async def take_slowly(self) -> int:
        """The next id, with a new block if need be."""
        while (producer_id := self.take()) is None:
            async with self._lock:
                if self._next >= self._end:
                    start = self._next_block_start()
                    await self._commit(start + BLOCK_SIZE)
                    self._next, self._end = start, start + BLOCK_SIZE
        return producer_id
