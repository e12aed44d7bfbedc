"""The batches and records of a log, as they are stored."""

from __future__ import annotations

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.log.log import Log


def batches_of(log: Log, start: int = 0) -> list[tuple[BatchHeader, list[Record]]]:
    """Return all batches from an offset on."""
    found: list[tuple[BatchHeader, list[Record]]] = []
    while start < log.log_end_offset:
        for part in log.read(start, 1 << 20, isolation_level=0, min_one_message=True).slices:
            data = part.read()
            found += [(header, list(iter_records(data, position))) for position, header in iter_headers(data)]
        start = found[-1][0].next_offset
    return found


def records_of(log: Log, start: int = 0) -> list[Record]:
    """Return all records from an offset on."""
    return [record for _, records in batches_of(log, start) for record in records]
