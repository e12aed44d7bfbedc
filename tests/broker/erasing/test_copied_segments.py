"""Copies and second names of segments in a running broker's data directory: what is in them is not gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.erasing.cases import PERSON, create, create_with_key, data_of, erase

ROOT = Path(__file__).resolve().parents[3]
SEGMENT = "users-0/00000000000000000000.log"
STRAY = f"users-0.{'0' * 32}-stray"
NOBODYS = [
    "users-copy-0",
    "backup-2024",
    "backup-0",
    "clicks-2024",
    "__cluster_metadata-1",
    *(f"users-copy-0.{'0' * 32}-{one}" for one in ("stray", "future")),
]
"""Called like directories of partitions that do not exist; of these topics there is `clicks`, with one partition."""


def copy_to(name: str) -> Callable[[Path], None]:
    """Return what copies the segment that has the value."""

    def copy(data: Path) -> None:
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((data / SEGMENT).read_bytes())

    return copy


def link_as_bytes_in_a_stray_directory(data: Path) -> None:
    """Have a segment there under a name that nobody knows as one, too."""
    copy_to(f"{STRAY}/00000000000000000000.log")(data)
    os.link(data / STRAY / "00000000000000000000.log", data / STRAY / "0")


PLACES = [
    *(copy_to(f"users-0/{name}") for name in ("00000000000000099999.log", "99999.log", "0.log")),
    link_as_bytes_in_a_stray_directory,
    *(copy_to(f"users-0/00000000000000000000.log.{suffix}") for suffix in ("bak", "1", "tmp")),
    *(copy_to(name) for name in ("users-0/copy.log", "copy.log", "backup/copy", f"{STRAY}/copy")),
    *(copy_to(f"{directory}/00000000000000000000.log") for directory in NOBODYS),
]


@pytest.mark.parametrize("plant", PLACES)
async def test_a_copy_lets_nothing_be_certified(broker: Broker, plant: Callable[[Path], None]) -> None:
    """Of an erasure and of a redaction alike; the certificate names the file."""
    await create_with_key(broker, others=30, codec=1)
    await create(broker, "clicks")
    plant(data_of(broker))
    assert PERSON not in b"".join(path.read_bytes() for path in data_of(broker).rglob("*") if path.is_file())
    redaction = await broker.redact("users", where=f"value == '{PERSON.decode()}'", reason="GDPR Art. 17")
    assert (redaction.state, redaction.certificate["claims"]) == ("not-certified", [])
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    for certificate in (redaction.certificate, erasure.certificate):
        assert certificate["not_certified"]


async def test_what_is_not_covered_stands_in_the_certificate_as_in_the_documentation(broker: Broker) -> None:
    """Word for word, each sentence, and no other."""
    await create_with_key(broker)
    section = (ROOT / "docs" / "erase.md").read_text().partition("### What is not covered")[2].partition("\n###")[0]
    items = [" ".join(one.split()) for one in section.partition("\n\n* ")[2].partition("\n\n")[0].split("\n* ")]
    assert (await erase(broker)).certificate["not_covered"] == items
    redaction = await broker.redact("users", where='key == "nobody"', reason="GDPR Art. 17")
    for promised in ("Compressed bytes that are no record batches", "Values that had gone from the disk before"):
        assert any(one.startswith(promised) for one in redaction.certificate["not_covered"])
