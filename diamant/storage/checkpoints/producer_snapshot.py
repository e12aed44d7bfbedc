"""Producer snapshot files: the state of all producers of a partition at one offset (Kafka's ProducerStateManager).

    file, big-endian:
      0  2  version, 1
      2  4  CRC-32C, unsigned, of everything from byte 6 to the end
      6  4  number of entries
     10  .  entries of 46 bytes, in no particular order:
              0  8  producer id
              8  2  producer epoch
             10  4  last sequence                      -1 none
             14  8  last offset                        -1 none
             22  4  last offset - first offset         of the last batch
             26  8  timestamp, ms                      of the last batch, or of a later marker
             34  4  coordinator epoch                  -1 none
             38  8  first offset of the open transaction, -1 none

`<offset>.snapshot` holds the state after all records below that offset, with only the last batch of each producer.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from diamant.storage.errors import CorruptLog

VERSION = 1
HEADER_SIZE = 10
ENTRY_SIZE = 46

_HEADER = Struct(">hIi")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class ProducerEntry(NamedTuple):
    """One producer in a snapshot. The fields are in the order of the file; -1 means none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def write_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of a snapshot file."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join((_COUNT.pack(len(packed)), *packed))
    return VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


def read_snapshot(data: bytes, path: str = "producer snapshot") -> list[ProducerEntry]:
    """Parse a snapshot file. Raises CorruptLog, naming `path`, if version, length or checksum are wrong."""
    if len(data) < HEADER_SIZE:
        raise CorruptLog(path, len(data), f"expected at least {HEADER_SIZE} bytes, got {len(data)}")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptLog(path, 0, f"expected version {VERSION}, got {version}")
    actual = crc32c(memoryview(data)[6:])
    if crc != actual:
        raise CorruptLog(path, 2, f"expected checksum {crc:08x}, got {actual:08x}")
    if len(data) != HEADER_SIZE + count * ENTRY_SIZE:
        raise CorruptLog(path, 6, f"{count} entries do not match the file size of {len(data)} bytes")
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[HEADER_SIZE:])]
