"""Tests by which a search selects records: by key, by text, or by any other condition.

Records of open and aborted transactions are included, but control records are not. A batch is not parsed if nothing in its
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
    """A test for the records of a search."""

    is_wanted: Callable[[Record], bool]
    may_be_in: Callable[[bytes], bool]
    """Returns False if no record in these bytes of a batch can match."""

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
        """Return the matching records of a batch, which are none if it is a control batch. Raises CorruptBatch."""
        header = batch.header
        if header.is_control or not header.record_count:
            return []
        if header.magic == CURRENT_MAGIC and not self.may_be_in(records_payload(batch.buffer, batch.at, header)):
            return []
        return [record for record in batch.records() if self.is_wanted(record)]
