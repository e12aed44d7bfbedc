"""Reads a partition of `__transaction_state`: the last value of each transactional id.

A thread reads the bytes. The loop decodes the records piece by piece, and yields in between. A small partition is read on
the loop, at once. A record that cannot be decoded is skipped and logged; Kafka skips unknown key versions, and stops at a
broken value.

Values are decoded only at the end of the log: later ones replace most of them.

Memory: one piece of the log, `CHUNK_BYTES` or one batch, and one value for each transactional id.

Source: TransactionStateManager.loadTransactionMetadata.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from diamant.broker.transactions.transaction import Transaction, from_value
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import CorruptBatch, ProtocolError
from diamant.protocol.internal_topics.transaction_records import parse_key, parse_value
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import FileSlice

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
SMALL_LOG_BYTES = 64 * 1024
"""A partition up to this size is read on the loop at once: about 2 ms."""


class Piece(NamedTuple):
    """Some whole batches of the log."""

    slices: tuple[FileSlice, ...]
    offset: int
    """The offset at which reading began: earlier records of the first batch are known already."""


_Found = dict[bytes, tuple[int, bytes]]
"""From key to offset and value of its last record."""


async def load(log: Log) -> dict[str, Transaction]:
    """Return the transactions in a log, reading to its end. Raises OSError, KafkaError."""
    latest: _Found = {}
    offset = log.log_start_offset
    is_small = log.size <= SMALL_LOG_BYTES
    while (piece := _next_piece(log, offset)) is not None:
        data = _bytes(piece) if is_small else await asyncio.to_thread(_bytes, piece)
        offset = _apply(piece, data, latest, log)
    return _decoded(latest, log)


def _next_piece(log: Log, offset: int) -> Piece | None:
    if offset >= log.log_end_offset:
        return None
    read = log.read(max(offset, log.log_start_offset), CHUNK_BYTES, isolation_level=0, min_one_message=True)
    return Piece(read.slices, offset) if read.size else None


def _bytes(piece: Piece) -> bytes:
    return b"".join(part.read() for part in piece.slices)


def _apply(piece: Piece, data: bytes, latest: _Found, log: Log) -> int:
    """Apply the records of a piece; return the offset after it."""
    offset = piece.offset
    for position, header in iter_headers(data):
        offset = max(offset, header.next_offset)
        if header.is_control:
            continue
        try:
            for record in iter_records(data, position):
                key = record.key or b""
                if record.value is None:
                    latest.pop(key, None)
                else:
                    latest[key] = (record.offset, record.value)
        except CorruptBatch as error:
            where = log.topic, log.partition, header.base_offset
            logger.error("%s-%d: the rest of the batch at offset %d is skipped: %s", *where, error.reason)
    return max(offset, piece.offset + 1)


def _decoded(latest: _Found, log: Log) -> dict[str, Transaction]:
    transactions = {}
    for key, (offset, value) in latest.items():
        try:
            transactional_id = parse_key(key)
            if transactional_id is None:
                raise ProtocolError("its key is of a newer version")
            txn = from_value(transactional_id, parse_value(value))
        except (ProtocolError, ValueError) as error:
            logger.error("%s-%d: the record at offset %d is skipped: %s", log.topic, log.partition, offset, error)
            continue
        if txn is not None:
            transactions[transactional_id] = txn
    return transactions
