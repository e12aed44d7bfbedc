"""Finds the offset at which a share partition begins when it is first read: the log's end, its start, or an offset by time.

A search by time first runs a few light steps on the loop. If they do not suffice, the rest runs in threads, and fetches wait.

Bound: one search for each share partition.

Source: ShareFetchUtils.offsetForEarliestTimestamp, offsetForLatestTimestamp, offsetForTimestamp of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from diamant.broker.config.group_table import duration_ms
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.storage.log.log import Log
from diamant.storage.log.time_search import HeavySearch, Step, at_or_after

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

LIGHT_STEPS = 8


class StartSearched(Exception):
    """The first offset of a share partition is still being searched for. When it is found, fetches waiting on `log` are woken."""

    def __init__(self, log: Log) -> None:
        super().__init__(f"the first offset of {log.topic}-{log.partition} is being searched for")
        self.log = log


class ShareStarts:
    """The searches in progress. Belongs to the loop thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._searches: dict[SharePartitionKey, asyncio.Task[int]] = {}

    def of(self, key: SharePartitionKey, start: str, log: Log) -> int:
        """Return the offset that `start` denotes (`share.auto.offset.reset`). Raises StartSearched, StorageError, OSError."""
        if start == "latest":
            return log.log_end_offset
        if start == "earliest":
            return log.log_start_offset
        search = self._searches.get(key)
        if search is not None:
            if not search.done():
                raise StartSearched(log)
            return self._searches.pop(key).result()
        steps = at_or_after(log, self._node.env.clock.now_ms() - (duration_ms(start) or 0))
        for count, step in enumerate(steps):
            try:
                if count == LIGHT_STEPS:
                    raise HeavySearch
                found = step.run(is_light=True)
            except HeavySearch:
                search = self._searches[key] = asyncio.ensure_future(_searched(chain([step], steps), log))
                search.add_done_callback(partial(self._wake, log))
                raise StartSearched(log) from None
            if found is not None:
                return found.offset
        return log.log_end_offset

    def _wake(self, log: Log, search: asyncio.Task[int]) -> None:
        if not search.cancelled():
            search.exception()  # mark it as retrieved: the next fetch will raise it
            self._node.purgatory.wake(log)

    async def stop(self) -> None:
        """Cancel all searches."""
        searches = list(self._searches.values())
        self._searches.clear()
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)


async def _searched(steps: Iterator[Step], log: Log) -> int:
    for step in steps:
        found = await asyncio.to_thread(step.run)
        if found is not None:
            return found.offset
    return log.log_end_offset
