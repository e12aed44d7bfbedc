"""Batches, records and whole logs for tests, from a few words.

    make_batch("k1=v1", "k2=", "hello", base_offset=5)

is a batch of (k1, v1), a tombstone for k2 and a record without a key. `make_log` puts several batches in a row with
consecutive offsets. `make_message` and `make_wrapper` build what brokers of before Kafka 0.11 wrote.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from struct import pack
from typing import Any

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.control import build_marker
from diamant.protocol.batches.header import Header, Record, parse_header

TIMESTAMP = 1_700_000_000_000
"""ms: the timestamp of the first record of everything built here, each further record being 1 ms later."""

Words = str | bytes | tuple[bytes | None, bytes | None] | Record


def make_record(
    words: Words = "k=v",
    *,
    offset: int = 0,
    timestamp: int = TIMESTAMP,
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> Record:
    """Return a record from "key=value", "key=" (tombstone), "value" (no key), bytes (no key) or (key, value)."""
    if isinstance(words, Record):
        return words
    if isinstance(words, str):
        key_text, equals, value_text = words.partition("=")
        key = key_text.encode() if equals else None
        value = (value_text.encode() or None) if equals else key_text.encode()
    elif isinstance(words, bytes):
        key, value = None, words
    else:
        key, value = words
    return Record(offset, timestamp, key, value, tuple(Header(*header) for header in headers))


def make_records(words: Iterable[Words], *, base_offset: int = 0, timestamp: int = TIMESTAMP) -> list[Record]:
    """Return records with consecutive offsets, 1 ms apart; a `Record` among the words stays as it is."""
    return [
        make_record(word, offset=base_offset + index, timestamp=timestamp + index) for index, word in enumerate(words)
    ]


def make_batch(*words: Words, base_offset: int = 0, timestamp: int = TIMESTAMP, **fields: Any) -> bytearray:
    """Return a magic 2 batch of one record per word (default: "k=v"); `fields` go to `build_batch`."""
    records = make_records(words or ("k=v",), base_offset=base_offset, timestamp=timestamp)
    return build_batch(records, base_offset=base_offset, **fields)


def make_log(*batches: Sequence[Words], base_offset: int = 0, timestamp: int = TIMESTAMP, **fields: Any) -> bytearray:
    """Return batches in a row with consecutive offsets and timestamps; `fields` go to every one."""
    log = bytearray()
    for words in batches:
        log += make_batch(*words, base_offset=base_offset, timestamp=timestamp, **fields)
        base_offset += len(words)
        timestamp += len(words)
    return log


def make_marker(producer_id: int, *, is_commit: bool, **fields: int) -> bytearray:
    """Return the marker that ends a transaction; `fields` go to `build_marker`, in place of 0 and `TIMESTAMP`."""
    others = dict.fromkeys(("producer_epoch", "coordinator_epoch", "base_offset", "leader_epoch"), 0)
    return build_marker(is_commit=is_commit, producer_id=producer_id, **({**others, "timestamp": TIMESTAMP} | fields))


def with_header(batch: bytes | bytearray, **fields: int) -> bytearray:
    """Return the batch with some header fields replaced, however wrong, and a CRC that is right again."""
    from diamant.protocol.batches.batch import update_crc
    from diamant.protocol.batches.header import HEADER_STRUCT

    out = bytearray(batch)
    HEADER_STRUCT.pack_into(out, 0, *parse_header(batch)._replace(**fields))
    if len(out) >= 12 + parse_header(batch)._replace(**fields).batch_length >= 61:
        update_crc(out, 0)
    return out


def with_payload(batch: bytes | bytearray, payload: bytes, **fields: int) -> bytearray:
    """Return the batch with other bytes in place of its records, and length and CRC to match."""
    return with_header(bytes(batch[:61]) + payload, batch_length=49 + len(payload), **fields)


def make_message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp: int = -1,
    attributes: int = 0,
) -> bytes:
    """Return one entry of magic 0 or 1; magic 0 has no timestamp."""
    body = pack(">bb", magic, attributes)
    if magic == 1:
        body += pack(">q", timestamp)
    for field in (key, value):
        body += pack(">i", -1) if field is None else pack(">i", len(field)) + field
    return pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def make_wrapper(magic: int, codec: int, records: Sequence[Record], *, log_append_time_ms: int | None = None) -> bytes:
    """Return the compressed entry of magic 0 or 1 that holds `records` (one at least, offsets ascending)."""
    base = records[0].offset if magic == 1 else 0
    inner = b"".join(
        make_message(magic, record.offset - base, record.key, record.value, timestamp=record.timestamp)
        for record in records
    )
    value = compression.compress(codec, inner)
    if codec == compression.LZ4 and magic == 0:
        # Old clients computed the header checksum over the frame's magic as well.
        value = value[:6] + b"\x1a" + value[7:]
    timestamp = max(record.timestamp for record in records)
    attributes = codec
    if log_append_time_ms is not None:
        timestamp = log_append_time_ms
        attributes |= 8
    return make_message(magic, records[-1].offset, None, value, timestamp=timestamp, attributes=attributes)
