"""Rebuilds damaged offset indexes in memory while the broker runs.

Until an index is rebuilt, each read that needs it reads batch headers from further back, in the worst case from the segment's
beginning. Only closed segments are repaired, one at a time, from their `.log` files in a thread. No file is changed, so a
concurrent swap or removal of the segment is harmless, and the next start finds the damaged file again. If the `.log` file
is damaged as well, the index stays as it is, since its good entries lead to the records after the damage.

Bounds: `most` segments; reads of further segments stay slow. An index takes 8 bytes per entry: 2 MiB for 1 GiB at the default
interval, and at most `segment.index.bytes`.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable

from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment, offset_entries

logger = logging.getLogger(__name__)


class IndexRepair:
    """Rebuilds damaged indexes from a queue. Belongs to the loop thread."""

    def __init__(
        self, rebuild: Callable[..., tuple[array[int], array[int]]] = offset_entries, *, most: int = 16
    ) -> None:
        self._rebuild = rebuild
        self._most = most
        self._waiting: deque[tuple[Log, Segment]] = deque()
        self._repaired: list[Segment] = []
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def request(self, log: Log, segment: Segment) -> None:
        """Schedule the rebuild of a closed segment's offset index if the bound allows it."""
        segment.is_index_damaged = False
        self._repaired = [repaired for repaired in self._repaired if not repaired.is_deleted]
        if self._is_stopping or len(self._repaired) >= self._most or segment in self._repaired:
            return
        self._repaired.append(segment)
        self._waiting.append((log, segment))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def __len__(self) -> int:
        """Return the number of segments whose index has been or will be rebuilt."""
        return len(self._repaired)

    async def stop(self) -> None:
        """Stop the repair in progress and discard its result."""
        self._is_stopping = True
        if self._task is not None:
            await asyncio.wait({self._task})

    async def settled(self) -> None:
        """Wait until no repair is pending."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            while self._waiting and not self._is_stopping:
                log, segment = self._waiting.popleft()
                try:
                    await self._mend(log, segment)
                except CorruptLog as error:  # the segment counts as repaired, so that it is not read in full again
                    logger.warning(
                        "%s stays as it is, since the .log file is damaged: %s", segment.offset_index.file.path, error
                    )
                except Exception as error:  # reads stay slow, and the next one requests a repair again
                    self._repaired = [repaired for repaired in self._repaired if repaired is not segment]
                    logger.error("%s cannot be rebuilt: %s", segment.offset_index.file.path, error)
        finally:
            self._task = None

    async def _mend(self, log: Log, segment: Segment) -> None:
        if segment.is_deleted:
            return
        index, config = segment.offset_index, log.config
        # The file stays open while it is referenced here, even if the segment is removed.
        entries = await asyncio.to_thread(
            self._rebuild,
            segment.file,
            segment.size,
            segment.base_offset,
            config.index_interval_bytes,
            index.max_entries,
            lambda: not self._is_stopping and not segment.is_deleted,
        )
        if not self._is_stopping and not segment.is_deleted:
            index.file.stand_in(entries)
            logger.info("%s: rebuilt in memory, with %d entries", index.file.path, len(entries[0]))
