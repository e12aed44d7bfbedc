"""Looks for a person in the files of a data directory, without asking the broker and without any of its code.

Twice: for the bytes as they are, as `grep` does, and for the bytes in records, which aiokafka's reader takes out of their
batches, decompressed. Files that wait to be deleted or that the cleaner is writing are read like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiokafka.record.memory_records import MemoryRecords


@dataclass(frozen=True, slots=True)
class Sighting:
    """One place where one of the texts is."""

    text: str
    partition: str
    """As its directory is called; of a file that belongs to none, its name."""
    file: str
    """Relative to the data directory."""
    field: str
    """`key`, `value` or `header` of a record, or `bytes`."""
    offset: int | None = None

    @property
    def topic(self) -> str:
        """Or the file, if it belongs to no topic."""
        topic, hyphen, _ = self.partition.rpartition("-")
        return topic if hyphen and "/" in self.file else self.partition


def search_bytes(data: Path, texts: Sequence[str]) -> list[Sighting]:
    """Every place in any file where one of the texts is as it is."""
    found = []
    for path in _files(data):
        content = _read(path)
        file = str(path.relative_to(data))
        for text in texts:
            found += [Sighting(text, file.partition("/")[0], file, "bytes")] * content.count(text.encode())
    return found


def search_records(data: Path, texts: Sequence[str]) -> list[Sighting]:
    """Every record that holds one of the texts, in any segment's file."""
    found = []
    for path in _files(data):
        if ".log" not in path.name:
            continue
        file = str(path.relative_to(data))
        for offset, field, content in _fields(_read(path)):
            found += [
                Sighting(text, file.partition("/")[0], file, field, offset)
                for text in texts
                if text.encode() in content
            ]
    return found


def segment_count(data: Path, topic: str) -> int:
    """How many segments a topic's partitions have."""
    return sum(1 for path in data.glob(f"{topic}-*/*.log"))


def _files(data: Path) -> list[Path]:
    return sorted(path for path in data.rglob("*") if path.is_file())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""  # The broker has removed it meanwhile.


def _fields(segment: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Offset, name and bytes of what all records of a segment hold."""
    batches = MemoryRecords(segment)
    while batches.has_next():
        batch = batches.next_batch()
        if batch is None:
            return
        for record in batch:
            yield record.offset, "key", record.key or b""
            yield record.offset, "value", record.value or b""
            for name, content in record.headers:
                yield record.offset, "header", name.encode() + b"=" + (content or b"")
