"""Copies and second names of segments in a running broker's data directory: what is in them is not gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from tests.broker.erasure.cases import (
    KEY,
    PERSON,
    RETRY_MS,
    START_MS,
    certified_at,
    create,
    create_with_key,
    data_of,
    env_of,
    erase,
    fill,
)
from tests.broker.erasure.obstacles import SCANNING, at_stage
from tests.cleaner.evidence.scan.independent_scanner import search

ROOT = Path(__file__).resolve().parents[4]
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


def put_batch(path: Path, offset: int) -> None:
    """Have a file of one compressed batch there, with a value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(build_batch([Record(offset, START_MS, KEY, PERSON)], codec=1))


@pytest.mark.parametrize("offset", [12, 99_999])
@pytest.mark.parametrize("name", ["{}.log.cleaned", "{}.log.swap", "diamant-staging-0/{}.log", "{}.log"])
async def test_the_offsets_of_what_the_log_does_not_have_mean_nothing(broker: Broker, name: str, offset: int) -> None:
    """A file is called like one of the log, or like the output of a round, and has a value above the end of the claim."""
    await create_with_key(broker, others=8)
    path = data_of(broker) / "users-0" / name.format(f"{offset:020d}")
    put_batch(path, offset)
    # The log goes on behind the claim.
    erasure = await erase(broker, progress=at_stage(SCANNING, lambda: fill(broker, 8)))
    redaction = await broker.redact("users", where=f"value == '{PERSON.decode()}'", reason="GDPR Art. 17")
    for certificate in (erasure.certificate, redaction.certificate):
        assert (certificate["state"], certificate["claims"]) == ("not-certified", [])
        assert path.name in {Path(one["file"]).name for one in certificate["not_certified"][0]["problems"]}
    path.unlink()
    await certified_at(broker, START_MS + RETRY_MS, "values-gone")
    assert search(data_of(broker), PERSON) == []


async def test_a_directory_with_zeros_before_the_partitions_number_is_none_in_use(broker: Broker) -> None:
    """Its files may be changed by anybody, so one that was while the scan ran is read again."""
    await create_with_key(broker)
    path = data_of(broker) / "users-00" / Path(SEGMENT).name
    path.parent.mkdir()
    path.write_bytes(build_batch([Record(0, START_MS, b"another", None)]))
    found: list[bool] = []

    def change() -> None:
        found.append(PERSON in path.read_bytes())
        # It was listed for the census and to be read, and was read.
        if len(found) == 3:
            path.write_bytes(build_batch([Record(0, START_MS, b"another", PERSON)]))

    watch = at_stage("scanning everything", lambda: env_of(broker).before("list_dir", str(path.parent), change))
    erasure = await erase(broker, progress=watch)
    assert found[:4] == [False, False, False, True]
    assert [one["file"] for one in erasure.certificate["elsewhere"]] == [f"users-00/{path.name}"]


async def test_what_is_not_covered_stands_in_the_certificate_as_in_the_documentation(broker: Broker) -> None:
    """Word for word, each sentence, and no other; and each field of the certificate is explained."""
    await create_with_key(broker)
    page = (ROOT / "docs" / "explanation" / "erasure.md").read_text()
    section = page.partition("## What is not covered")[2].partition("\n##")[0]
    items = [" ".join(one.split()) for one in section.partition("\n\n* ")[2].partition("\n\n")[0].split("\n* ")]
    certificate = (await erase(broker)).certificate
    assert certificate["not_covered"] == items
    fields = (ROOT / "docs" / "reference" / "certificates.md").read_text()
    assert [name for name in certificate if f"`{name}`" not in fields] == []
    redaction = await broker.redact("users", where='key == "nobody"', reason="GDPR Art. 17")
    for promised in ("Compressed bytes that are no record batches", "Values that had gone from the disk before"):
        assert any(one.startswith(promised) for one in redaction.certificate["not_covered"])
