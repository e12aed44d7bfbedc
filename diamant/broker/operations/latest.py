"""`broker.latest`: the compacted view of a topic, as a stream (`cleaner/queries/latest_records.py`).

The files of one moment are read in a thread, a page at a time, and only when the caller asks for the next page: writing
and cleaning continue, and a slow reader holds up only itself.

Bounds: `MAX_AT_ONCE` readers; for each the map of `latest_records.py`, the descriptors of `explain.LogFiles`, and a
page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from diamant.broker.client.errors import NotPossible, TooMany
from diamant.broker.operations.cross_loop import on_loop
from diamant.cleaner.queries.latest_records import latest_records
from diamant.protocol.batches.header import Record
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.broker.operations.explain import ExplainOperation

MAX_AT_ONCE = 2
PAGE_RECORDS = 1_000
PAGE_BYTES = 256 * 1024
"""A page ends with the record that reaches it."""


@dataclass(frozen=True, slots=True)
class LatestPage:
    """Some records of a partition, in the order of their offsets."""

    partition: int
    records: tuple[Record, ...]


class LatestOperation:
    """The verb of one broker; made on first use. Everything but `records` is called on the loop thread."""

    def __init__(self, explaining: ExplainOperation, loop: asyncio.AbstractEventLoop) -> None:
        self._explaining = explaining
        self._loop = loop
        self._running = 0

    async def pages(
        self, topic: str, partition: int | None = None, *, with_tombstones: bool = False
    ) -> AsyncGenerator[LatestPage, None]:
        """Yield pages, partition by partition; to be closed by who ends it early. Raises VerbError."""
        explaining = self._explaining
        logs = explaining.logs(topic, partition)
        if self._running >= MAX_AT_ONCE:
            raise TooMany(f"{MAX_AT_ONCE} topics are being read, try again when one of them is done")
        self._running += 1
        is_over = Event()

        def check() -> None:
            if is_over.is_set():
                raise NotPossible("the caller has stopped reading")
            explaining.check()

        try:
            for log in logs:
                taken, files = await explaining.open(log)
                with files:
                    records = latest_records(
                        files.present,
                        taken.outcomes,
                        taken.state.log_start_offset,
                        taken.state.last_stable_offset,
                        with_tombstones=with_tombstones,
                        check_done=check,
                    )
                    try:
                        while page := await self._next(records, is_over):
                            yield LatestPage(log.partition, page)
                    finally:
                        records.close()
        except CorruptLog as error:
            raise NotPossible(f"which records are the latest cannot be told: {error}") from None
        finally:
            self._running -= 1

    async def records(
        self, topic: str, partition: int | None = None, *, with_tombstones: bool = False
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield each record with its partition, in whatever event loop this is called; the broker's reads the pages."""
        pages = self.pages(topic, partition, with_tombstones=with_tombstones)

        async def next_page() -> LatestPage | None:
            return await anext(pages, None)

        async def close() -> None:
            await pages.aclose()

        try:
            while (page := await on_loop(self._loop, next_page)) is not None:
                for record in page.records:
                    yield page.partition, record
        finally:
            await on_loop(self._loop, close)

    async def _next(self, records: Iterator[Record], is_over: Event) -> tuple[Record, ...]:
        """Return the next page, an empty one at the end. After this the thread no longer uses the files."""
        reading = asyncio.ensure_future(self._explaining.read(lambda: _page(records)))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            is_over.set()
            await asyncio.wait({reading})
            reading.exception()
            raise


def _page(records: Iterator[Record]) -> tuple[Record, ...]:
    found: list[Record] = []
    size = 0
    while len(found) < PAGE_RECORDS and size < PAGE_BYTES and (record := next(records, None)) is not None:
        found.append(record)
        size += len(record.key or b"") + len(record.value or b"")
    return tuple(found)
