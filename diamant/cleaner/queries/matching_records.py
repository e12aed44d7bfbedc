"""The records of a partition that match, found by reading all of them: by key, by text, or by any test of a record.

Records of open and aborted transactions are among them, control records are not. Batches in whose decompressed bytes nothing
may match are passed over.

Memory: `READ_BYTES` or one larger batch, and what it decompresses to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import CorruptLog

READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records match."""

    is_wanted: Callable[[Record], bool]
    may_be_in: Callable[[bytes], bool]
    """False: no record in these bytes of a batch matches."""

    @classmethod
    def key(cls, key: bytes) -> Wanted:
        """Return the test for the records of one key."""
        return cls(lambda record: record.key == key, lambda payload: key in payload)

    @classmethod
    def text(cls, text: bytes) -> Wanted:
        """Return the test for bytes anywhere in a key, a value, or the name or value of a header."""

        def is_wanted(record: Record) -> bool:
            headers = (part for name, value in record.headers for part in (name.encode(), value))
            return any(part is not None and text in part for part in (record.key, record.value, *headers))

        return cls(is_wanted, lambda payload: text in payload)


class SearchStep(NamedTuple):
    """So much more was read."""

    bytes: int
    problem: str | None = None
    """Why the rest of a segment could not be read."""


def matching_records(
    files: Callable[[], Iterable[OpenSegment]],
    log_start_offset: int,
    wanted: Wanted,
    *,
    check_done: Callable[[], None] = lambda: None,
) -> Generator[Record | SearchStep]:
    """Yield what matches, and after each piece how much was read. Blocks."""
    for segment in files():
        done = 0
        try:
            for chunk in read_chunks(segment.file, 0, segment.size, READ_BYTES):
                for batch in chunk.batches():
                    check_done()
                    header = batch.header
                    if header.is_control or not header.record_count or header.last_offset < log_start_offset:
                        continue
                    if header.magic < 2:
                        batch.check()
                    if not wanted.may_be_in(batch.payload()):
                        continue
                    for record in batch.iter_records():
                        if record.offset >= log_start_offset and wanted.is_wanted(record):
                            yield record
                done += chunk.size
                yield SearchStep(chunk.size)
        except (CorruptLog, CorruptBatch) as error:
            yield SearchStep(segment.size - done, str(error))
