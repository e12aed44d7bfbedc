"""Records of a topic as a stream: all committed records (`broker.records`), or the latest of each key (`broker.latest`).

A thread reads a snapshot of each log's files, and reads a page only when the caller asks for it. Writing and cleaning continue,
and a slow reader delays only itself.

Bounds: `MAX_AT_ONCE` readers, each with the map of `latest_records.py`, the descriptors of `log_files.LogFiles`, and one
page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from diamant.broker.operation_errors import NotPossible, TooMany, as_operation_error
from diamant.broker.operations.calls.cross_loop import on_loop
from diamant.cleaner.queries.committed_records import committed_records
from diamant.protocol.batches.header import Record
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.operations.records.log_at_moment import LogAtMoment
    from diamant.broker.operations.records.log_files import LogFiles
    from diamant.cleaner.values.schemas import Values

MAX_AT_ONCE = 2
PAGE_RECORDS = 1_000
PAGE_BYTES = 256 * 1024
"""A page ends once it has reached this size."""


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A page of records of one partition, by ascending offset."""

    partition: int
    records: tuple[Record, ...]


Check: TypeAlias = Callable[[], None]
Query: TypeAlias = "Callable[[LogAtMoment, LogFiles, Check], Generator[Record]]"
"""A function that yields the wanted records of a partition's files. It runs in a thread and regularly calls the check."""


def _all(taken: LogAtMoment, files: LogFiles, check_done: Callable[[], None]) -> Generator[Record]:
    state = taken.state
    return committed_records(
        files.present, taken.outcomes, state.log_start_offset, state.last_stable_offset, check_done=check_done
    )


def _latest(
    taken: LogAtMoment, files: LogFiles, check_done: Callable[[], None], *, tombstones: bool
) -> Generator[Record]:
    from diamant.cleaner.queries.latest_records import latest_records

    state = taken.state
    return latest_records(
        files.present, taken.outcomes, state.log_start_offset, state.last_stable_offset,
        tombstones=tombstones, check_done=check_done,
    )  # fmt: skip


class RecordsOperation:
    """The operation `records` of one broker. Created on first use. Belongs to the loop thread, except for `records`."""

    def __init__(self, explaining: ExplainOperation, loop: asyncio.AbstractEventLoop) -> None:
        self._explaining = explaining
        self._loop = loop
        self._running = 0

    def values(self, topic: str, registry: str | None = None) -> Values:
        """Return a decoder of a topic's keys and values, to be used for one operation. Raises BadArgument."""
        return self._explaining.values(topic, registry)

    def latest_pages(
        self, topic: str, partition: int | None = None, *, tombstones: bool = False
    ) -> AsyncGenerator[RecordPage, None]:
        """Like `pages`, but yield only the latest record of each key."""
        return self.pages(topic, partition, partial(_latest, tombstones=tombstones))

    async def pages(
        self, topic: str, partition: int | None = None, query: Query = _all
    ) -> AsyncGenerator[RecordPage, None]:
        """Yield pages, partition by partition. A caller that stops early must close the generator. Raises OperationError."""
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
            with as_operation_error():
                for log in logs:
                    taken, files = await explaining.open(log)
                    with files:
                        records = query(taken, files, check)
                        try:
                            while page := await self._next(records, is_over):
                                yield RecordPage(log.partition, page)
                        finally:
                            records.close()
        except CorruptLog as error:
            raise NotPossible(f"the records cannot be read: {error}") from None
        finally:
            self._running -= 1

    async def records(self, pages: AsyncGenerator[RecordPage, None]) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield each record with its partition, in any event loop. The pages are read on the broker's loop."""

        async def next_page() -> RecordPage | None:
            return await anext(pages, None)

        async def close() -> None:
            await pages.aclose()

        try:
            while (page := await on_loop(self._loop, next_page())) is not None:
                for record in page.records:
                    yield page.partition, record
        finally:
            await on_loop(self._loop, close())

    async def _next(self, records: Iterator[Record], is_over: Event) -> tuple[Record, ...]:
        """Return the next page, empty at the end. If cancelled, wait until the thread no longer uses the files."""
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
