"""Tests for the records that a search is for: by key, by text, or by any other test.

Records of open and aborted transactions are included, control records are not. A batch is not parsed if nothing in its
decompressed bytes can match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diamant.cleaner.segments.tolerant_reader import Batch
from diamant.protocol.batches.batch_records import records_payload
from diamant.protocol.batches.header import CURRENT_MAGIC, Record


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

    def records_of(self, batch: Batch) -> list[Record]:
        """Return the matching records of a batch; none of a control batch. Raises CorruptBatch."""
        header = batch.header
        if header.is_control or not header.record_count:
            return []
        if header.magic == CURRENT_MAGIC and not self.may_be_in(records_payload(batch.buffer, batch.at, header)):
            return []
        return [record for record in batch.records() if self.is_wanted(record)]
