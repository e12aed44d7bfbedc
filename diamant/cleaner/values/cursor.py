"""A cursor over the bytes of a value, which reads numbers and bytes, and counts the parts that have been read.

Bounds: `MAX_DEPTH` levels of nested parts in a value, `MAX_NODES` parts.
"""

from __future__ import annotations

import struct

from diamant.cleaner.values.nodes import Undecodable

MAX_DEPTH = 100
MAX_NODES = 1_000_000

_MAX_VARINT_BYTES = 10


class Cursor:
    """A position in the bytes of a value. Its methods raise Undecodable."""

    __slots__ = ("data", "position", "nodes_left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.nodes_left = MAX_NODES

    @property
    def is_at_end(self) -> bool:
        """True if no bytes are left."""
        return self.position >= len(self.data)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise Undecodable("the value is cut off, or has another schema")
        found = self.data[self.position : end]
        self.position = end
        return found

    def varint(self) -> int:
        """Return the next number, a varint of at most 64 bits."""
        data, number, shift = self.data, 0, 0
        for position in range(self.position, min(self.position + _MAX_VARINT_BYTES, len(data))):
            byte = data[position]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number >> 64:
                    break
                self.position = position + 1
                return number
            shift += 7
        raise Undecodable("a number is cut off or too long")

    def zigzag(self) -> int:
        """Return the next number, a zigzag varint: its lowest bit is the sign."""
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def text(self, size: int) -> str:
        """Return the next `size` bytes as a string."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise Undecodable("a string is not UTF-8, so the value has another schema") from None

    def single(self) -> float:
        """Return the next four bytes as the number with the fewest digits that has this encoding, such as 0.1."""
        data = self.take(4)
        (found,) = struct.unpack("<f", data)
        near = (float(f"{found:.{digits}g}") for digits in range(6, 9))
        return next((one for one in near if struct.pack("<f", one) == data), float(f"{found:.9g}"))

    def double(self) -> float:
        """Return the next eight bytes as a floating-point number."""
        (found,) = struct.unpack("<d", self.take(8))
        return float(found)

    def count_empty(self, parts: int, start: int) -> None:
        """Count how many of the `parts` read since `start` took no bytes, because any number of these fits into a few bytes."""
        self.enter(0, max(0, parts - (self.position - start)))

    def enter(self, depth: int, count: int = 1) -> None:
        """Count parts, and check their number and depth against the bounds."""
        self.nodes_left -= count
        if depth > MAX_DEPTH or self.nodes_left < 0:
            raise Undecodable(f"the value has more than {MAX_DEPTH} levels, or more than {MAX_NODES:,} parts")
