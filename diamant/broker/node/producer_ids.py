"""Producer ids, unique across restarts, allocated from blocks recorded in the metadata log (Kafka's
ProducerIdManager).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

BLOCK_SIZE = 1000
"""The number of ids per ProducerIdsRecord, as in Kafka."""


class ProducerIds:
    """The current block of producer ids.

    `next_block_start()` returns the metadata image's next id. `commit(end)` records that ids below `end` are taken, and
    returns once this is on disk; no id of the block may be allocated before.
    """

    def __init__(self, next_block_start: Callable[[], int], commit: Callable[[int], Awaitable[None]]) -> None:
        self._next_block_start = next_block_start
        self._commit = commit
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    def give(
        self, use: Callable[[int], _Result], without: Callable[[], _Result]
    ) -> _Result | Coroutine[Any, Any, _Result]:
        """Return `use(producer_id)` for a new id. If a new block must be recorded first, return a coroutine that does so. Its
        result is `use(producer_id)`, called in the turn of the loop in which the coroutine ends, or `without()` if the block
        cannot be recorded.
        """
        producer_id = self.take()
        return self._give_slowly(use, without) if producer_id is None else use(producer_id)

    async def _give_slowly(self, use: Callable[[int], _Result], without: Callable[[], _Result]) -> _Result:
        try:
            producer_id = await self.take_slowly()
        except (StorageError, OSError) as error:
            logger.error("producer ids cannot be allocated: %s", error)
            return without()
        return use(producer_id)

    def take(self) -> int | None:
        """Return the next id, or None if the block is used up and the caller must await `take_slowly()` instead."""
        if self._next >= self._end:
            return None
        producer_id = self._next
        self._next += 1
        return producer_id

    async def take_slowly(self) -> int:
        """Return the next id, from a new block if necessary."""
        while (producer_id := self.take()) is None:
            async with self._lock:
                if self._next >= self._end:
                    start = self._next_block_start()
                    await self._commit(start + BLOCK_SIZE)
                    self._next, self._end = start, start + BLOCK_SIZE
        return producer_id
