"""A directory with the records of one person, and its scans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.search.needles import KEY, Needles
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.protocol.batches.header import Header, Record
from diamant.storage.env.env import RealEnv

PERSON = b'{"name": "Anna Schmidt", "city": "Bern"}'
TOPIC = ("users", 0)
LOG = "users-0/00000000000000000000.log"
END = 1 << 40


def subject(key: bytes = b"customer-42", *values: bytes) -> Subject:
    """Return the subject of a search in the topic users."""
    needles = Needles(b"s" * 32)
    needles.add(KEY, key)
    for value in values or (PERSON,):
        needles.add(VALUE_NEEDLE, value)
    return Subject(key, frozenset({"users"}), needles)


def put(directory: Path, name: str, *batches: bytes | bytearray) -> Path:
    """Write a file below the data directory."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(batches))
    return path


def record(key: bytes | None, value: bytes | None, offset: int = 0, *headers: Header) -> Record:
    return Record(offset, 1000, key, value, headers)


def scan(directory: Path, looked_for: Subject | None = None, **options: Any) -> ScanReport:
    env = options.pop("env", None) or RealEnv()
    [report] = scan_directory(env, str(directory), [looked_for or subject()], options.pop("ends", {}), **options)
    return report


def state(report: ScanReport, looked_for: Subject | None = None, end: int = END) -> str:
    return report.state(TOPIC, end, (looked_for or subject()).key_digest.hex())


def whats(report: ScanReport) -> list[str]:
    return sorted(one.what for one in report.findings)


def moved(batch: bytes | bytearray, offset: int) -> bytes:
    """Return the same batch at another offset, which no checksum covers."""
    return offset.to_bytes(8, "big", signed=True) + bytes(batch[8:])
