"""Record batches of version 2, decoded without any code of the product."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator
from typing import NamedTuple

import lz4.frame
import snappy
import zstandard

_HEADER = struct.Struct(">qiibIhiqqqhii")
_ATTRIBUTES_AT = 21
_XERIAL = b"\x82SNAPPY\x00"


class Damaged(Exception):
    """Bytes that are not a batch: their place and why."""


class Record(NamedTuple):
    """A record and what its batch says of it."""

    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    commits: bool | None
    """Of a marker: True commit, False abort. None: no marker."""


def records(data: bytes) -> Iterator[Record]:
    """Decode a whole `.log` file. Damaged, also if the last batch is not whole."""
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            raise Damaged(f"{len(data) - at} bytes at {at}")
        base, size, _, magic, crc, attributes, _, _, _, producer, epoch, sequence, count = _HEADER.unpack_from(data, at)
        end = at + 12 + size
        if magic != 2 or size < _HEADER.size - 12 or end > len(data):
            raise Damaged(f"magic {magic}, {size} bytes at {at} of {len(data)}")
        if crc32c(data[at + _ATTRIBUTES_AT : end]) != crc:
            raise Damaged(f"CRC at {at}")
        body, position = _decompressed(attributes & 7, data[at + _HEADER.size : end]), 0
        for _ in range(count):
            length, position = _varint(body, position)
            key, value, delta = _fields(body[position : position + length])
            position += length
            commits = None if not attributes & 32 else bool(struct.unpack(">hh", key or b"")[1])
            number = sequence if sequence < 0 else sequence + delta
            yield Record(base + delta, key, value, producer, epoch, number, bool(attributes & 16), commits)
        if position != len(body):
            raise Damaged(f"{len(body) - position} bytes behind the records at {at}")
        at = end


def bounds(data: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Return the position of each batch, and its first and last offset."""
    at = 0
    while at + _HEADER.size <= len(data):
        base, size, *_ = _HEADER.unpack_from(data, at)
        (last,) = struct.unpack_from(">i", data, at + 23)
        yield at, (base, base + last)
        at += 12 + size


def _fields(body: bytes) -> tuple[bytes | None, bytes | None, int]:
    _, at = _varint(body, 1)
    delta, at = _varint(body, at)
    key, at = _bytes(body, at)
    value, at = _bytes(body, at)
    return key, value, delta


def _bytes(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(body, at)
    return (None, at) if size < 0 else (body[at : at + size], at + size)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _decompressed(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return gzip.decompress(data)
    if codec == 2:
        return _of_snappy(data)
    if codec == 3:
        return bytes(lz4.frame.decompress(data))
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()


def _of_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(snappy.decompress(data))
    parts, at = [], 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        parts.append(bytes(snappy.decompress(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return b"".join(parts)


def _row(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (0x82F63B78 if index & 1 else 0)
    return index


_TABLE = [_row(index) for index in range(256)]


def crc32c(data: bytes) -> int:
    """The Castagnoli CRC."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
