"""The matching records of a partition, found by reading everything: by key, by text, or by any test of a record.

Records of open and aborted transactions are included, control records are not. A batch is skipped if nothing in its decompressed
bytes can match.

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
    """The test for matching records."""

    is_wanted: Callable[[Record], bool]
    may_be_in: Callable[[bytes], bool]
    """False if no record in these bytes of a batch matches."""

    @classmethod
    def key(cls, key: bytes) -> Wanted:
        """Return the test for records with this key."""
        return cls(lambda record: record.key == key, lambda payload: key in payload)

    @classmethod
    def text(cls, text: bytes) -> Wanted:
        """Return the test for these bytes anywhere in a key, a value, or the name or value of a header."""

        def is_wanted(record: Record) -> bool:
            headers = (part for name, value in record.headers for part in (name.encode(), value))
            return any(part is not None and text in part for part in (record.key, record.value, *headers))

        return cls(is_wanted, lambda payload: text in payload)


class SearchStep(NamedTuple):
    """The progress of a search: bytes read since the last step."""

    bytes: int
    problem: str | None = None
    """Reason why the rest of a segment could not be read."""


def matching_records(
    files: Callable[[], Iterable[OpenSegment]],
    log_start_offset: int,
    wanted: Wanted,
    *,
    check_done: Callable[[], None] = lambda: None,
) -> Generator[Record | SearchStep]:
    """Yield the matches, and after each piece the bytes read. Blocks."""
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
