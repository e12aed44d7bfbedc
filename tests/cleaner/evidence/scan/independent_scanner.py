"""A scanner that shares no code with the broker: finds the files that hold some bytes, plain or in batches.

Every file is read, under each of its names, and searched as bytes. Record batches are looked for at every position of every
file, whatever its name: those of today's format, and older messages that contain others. Compressed data are decompressed, with
other packages than the broker's, and searched too. Checksums are ignored, so that damage hides nothing.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lz4.block
import lz4.frame
import snappy
import zstandard

MAX_NESTED = 3
"""Nesting of compressed messages."""
XERIAL = b"\x82SNAPPY\x00"

_BATCH = re.compile(rb"(?s)(?=.{8}([\x00-\x07]...).{4}\x02.{4}\x00([\x00-\x7f]).{38})")
"""Length, magic 2 and attributes, whose high byte is zero."""
_MESSAGE = re.compile(rb"(?s)(?=.{8}([\x00-\x07]...).{4}([\x00\x01])([\x00-\x0f]))")
"""Length, magic 0 or 1, attributes."""


class Place(NamedTuple):
    """Where bytes were found."""

    file: str
    """Relative to the directory that was searched."""
    position: int
    how: str
    """`raw`, or the codec of the batch that begins there."""


def search(directory: Path, needle: bytes) -> list[Place]:
    """Return where a directory holds some bytes; one place per file and codec."""
    found = []
    for path in files_of(directory):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        name = path.relative_to(directory).as_posix()
        found += [Place(name, position, how) for position, how in search_bytes(data, needle)]
    return found


def files_of(directory: Path) -> list[Path]:
    """Yield every file, including links to files; links to directories are not followed."""
    return sorted(
        path
        for parent, _, names in os.walk(directory, followlinks=False)
        for name in names
        if (path := Path(parent, name)).is_file()
    )


def search_bytes(data: bytes, needle: bytes) -> Iterator[tuple[int, str]]:
    """Yield the positions of some bytes in a file."""
    at = data.find(needle)
    if at >= 0:
        yield at, "raw"
    seen = set()
    for position, codec, payload in batches_in(data):
        if codec not in seen and needle in payload:
            seen.add(codec)
            yield position, codec


def batches_in(data: bytes, depth: int = 0) -> Iterator[tuple[int, str, bytes]]:
    """Yield position, codec and decompressed records of every possible compressed batch."""
    for match in _BATCH.finditer(data):
        end = match.start() + 12 + int.from_bytes(match[1], "big")
        codec = match[2][0] & 7
        if codec and match.start() + 61 < end <= len(data):
            payload = unpack(codec, data[match.start() + 61 : end], magic=2)
            if payload:
                yield match.start(), NAMES[codec], payload
    for match in _MESSAGE.finditer(data):
        magic, codec = match[2][0], match[3][0] & 7
        end = match.start() + 12 + int.from_bytes(match[1], "big")
        if codec not in (1, 2, 3) or end > len(data):
            continue
        at = match.start() + (26 if magic else 18)
        at += 4 + max(0, int.from_bytes(data[at : at + 4], "big", signed=True))
        payload = unpack(codec, data[at + 4 : end], magic=magic) if at + 4 < end else None
        if payload:
            yield match.start(), f"old {NAMES[codec]}", payload
            if depth < MAX_NESTED:
                yield from (
                    (match.start(), codec_name, inner) for _, codec_name, inner in batches_in(payload, depth + 1)
                )


NAMES = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


def unpack(codec: int, data: bytes, *, magic: int) -> bytes | None:
    """Return the decompressed data; None if they are not compressed."""
    try:
        if codec == 1:
            return gzip.decompress(data)
        if codec == 2:
            return _snappy(data)
        if codec == 3:
            # Messages of magic 0 have a checksum of the frame's header that is wrong.
            return lz4.frame.decompress(data) if magic else _old_lz4(data)
        if codec == 4:
            return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error, zstandard.ZstdError, snappy.UncompressError):
        pass
    return None


def _snappy(data: bytes) -> bytes:
    if not data.startswith(XERIAL):
        return bytes(snappy.uncompress(data))
    out, at = b"", 16
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        out += snappy.uncompress(data[at + 4 : at + 4 + size])
        at += 4 + size
    return out


def _old_lz4(data: bytes) -> bytes:
    """Return the blocks of a frame, whatever its header's checksum."""
    if not data.startswith(b"\x04\x22\x4d\x18"):
        raise ValueError("no frame")
    out, at = b"", 7 + 8 * (data[4] >> 3 & 1)
    while at + 4 <= len(data) and (size := int.from_bytes(data[at : at + 4], "little")):
        block = data[at + 4 : at + 4 + (size & 0x7FFFFFFF)]
        out += block if size >> 31 else lz4.block.decompress(block, uncompressed_size=1 << 22)
        at += 4 + (size & 0x7FFFFFFF)
    return out
