"""An independent scanner: raw bytes, and records by the naive reader, with codecs of other packages than the broker's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests import naive
from tests.cleaner.evidence.scan import independent_scanner


class Seen(NamedTuple):
    """A record and its place."""

    path: Path
    offset: int
    key: bytes | None
    value: bytes | None


def unpack(codec: int, data: bytes) -> bytes:
    """Decompress with other implementations than the broker's."""
    unpacked = independent_scanner.unpack(codec, data, magic=2) if codec else data
    assert unpacked is not None
    return unpacked


def records_in(path: Path) -> list[Seen]:
    """Return every record of a segment's file, magic 2."""
    data, at, found = path.read_bytes(), 0, []
    while at + 61 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        batch = data[at : at + size]
        base = int.from_bytes(batch[0:8], "big")
        attributes = int.from_bytes(batch[21:23], "big")
        count = int.from_bytes(batch[57:61], "big")
        if count and not attributes & 0x20:
            for record in naive.parse_records(unpack(attributes & 7, batch[61:]), count):
                found.append(Seen(path, base + record.offset_delta, record.key, record.value))
        at += size
    return found


def log_files(directory: Path, topic: str | None = None) -> list[Path]:
    """Return the files of all segments in any state; of one topic, or of all but the metadata."""
    found = [path for path in directory.rglob("*") if ".log" in path.name and path.is_file()]
    return [
        path
        for path in found
        if not path.parent.name.startswith("__cluster") and (topic is None or path.parent.name.startswith(f"{topic}-"))
    ]


def records_of_key(directory: Path, topic: str, key: bytes) -> list[Seen]:
    """Return every record of a key in the topic's files."""
    return [one for path in log_files(directory, topic) for one in records_in(path) if one.key == key]


def files_with(directory: Path, needle: bytes) -> list[str]:
    """Return the names of files that hold some bytes, plain or in the records of a batch."""
    found = [path for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]
    for path in log_files(directory):
        if any(needle in (one.value or b"") for one in records_in(path)):
            found.append(path)
    return sorted({path.name for path in found})
