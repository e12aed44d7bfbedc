"""Slow and obvious readers of Kafka's formats, written apart from the code they check: the oracle of the tests.

They read one field after another with no shortcuts and raise `Malformed` for anything that is not right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Malformed(Exception):  # named for the bytes, not for an error
    """The bytes are not what they should be."""


class NaiveRecord(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


class Cursor:
    """Reads from `data` and complains at its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise Malformed(f"wanted {size} bytes, {self.left} are left")
        self.position += size
        return self.data[self.position - size : self.position]

    def integer(self, size: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def zigzag(self, bits: int) -> int:
        value = 0
        for place in range(-(-bits // 7)):
            byte = self.take(1)[0]
            value += (byte % 128) * 128**place
            if byte < 128:
                value %= 2**bits
                return value // 2 if value % 2 == 0 else -(value + 1) // 2
        raise Malformed("too many bytes in an integer")

    def nullable(self) -> bytes | None:
        size = self.zigzag(32)
        return None if size < 0 else self.take(size)


def parse_records(payload: bytes, count: int) -> list[NaiveRecord]:
    """Return the `count` records that `payload` holds, all of it."""
    if count < 0:
        raise Malformed("negative count")
    cursor = Cursor(payload)
    records = []
    for _ in range(count):
        size = cursor.zigzag(32)
        if size < 0:
            raise Malformed("negative record length")
        body = Cursor(cursor.take(size))
        body.take(1)
        timestamp_delta = body.zigzag(64)
        offset_delta = body.zigzag(32)
        key = body.nullable()
        value = body.nullable()
        header_count = body.zigzag(32)
        if not 0 <= header_count <= body.left:
            raise Malformed("header count")
        headers = []
        for _ in range(header_count):
            header_key = body.nullable()
            if header_key is None:
                raise Malformed("header key is null")
            headers.append((header_key, body.nullable()))
        if body.left:
            raise Malformed("bytes are left in the record")
        records.append(NaiveRecord(timestamp_delta, offset_delta, key, value, headers))
    if cursor.left:
        raise Malformed("bytes are left after the records")
    return records


class NaiveBatch(NamedTuple):
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    payload: bytes


def parse_batch(data: bytes) -> NaiveBatch:
    """Return the magic 2 batch that `data` is, its payload still compressed, its CRC verified bit by bit."""
    cursor = Cursor(data)
    base_offset = cursor.integer(8)
    if cursor.integer(4) != cursor.left:
        raise Malformed("length")
    leader_epoch = cursor.integer(4)
    if cursor.integer(1) != 2:
        raise Malformed("magic")
    crc = cursor.integer(4, signed=False)
    if crc32c(data[21:]) != crc:
        raise Malformed("CRC")
    rest = [cursor.integer(size) for size in (2, 4, 8, 8, 8, 2, 4, 4)]
    return NaiveBatch(base_offset, leader_epoch, crc, *rest, cursor.take(cursor.left))


def iter_entries(data: bytes) -> Iterator[bytes]:
    """Yield the whole entries of a log file, of any magic; stops at a torn one."""
    position = 0
    while position + 17 < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if size < 26:
            raise Malformed("entry length")
        if position + size > len(data):
            return
        yield data[position : position + size]
        position += size


def crc32c(data: bytes) -> int:
    """CRC-32C one bit at a time (reflected polynomial 82f63b78)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def siphash128(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 16 bytes of output, with arithmetic on whole numbers."""
    mask = 2**64 - 1

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> 64 - bits) & mask

    def rounds(v: list[int], count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    k = [int.from_bytes(key[start : start + 8], "little") for start in (0, 8)]
    v = [int.from_bytes(text, "big") for text in (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")]
    v = [word ^ k[index % 2] for index, word in enumerate(v)]
    v[1] ^= 0xEE
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(v, 4)
    out = (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    v[1] ^= 0xDD
    rounds(v, 4)
    return out + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def latest_offsets(older: list[tuple[bytes, int]], dirty: list[tuple[bytes, int]]) -> list[int]:
    """The offsets that stay of (key, offset): the last of each key in `dirty`, and all in `older` whose key is not there."""
    last = dict(dirty)
    return sorted([*last.values(), *(offset for key, offset in older if key not in last)])
