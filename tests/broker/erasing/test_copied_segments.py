"""Copies and second names of segments, put into the data directory while the broker runs: what is in them is not gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.erasing.cases import PERSON, create_with_key, data_of, erase

SEGMENT = "users-0/00000000000000000000.log"
STRAY = f"users-0.{'0' * 32}-stray"


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
]


@pytest.mark.parametrize("plant", PLACES)
async def test_a_copy_lets_nothing_be_certified(broker: Broker, plant: Callable[[Path], None]) -> None:
    """Of an erasure and of a redaction alike; the certificate names the file."""
    await create_with_key(broker, others=30, codec=1)
    plant(data_of(broker))
    assert PERSON not in b"".join(path.read_bytes() for path in data_of(broker).rglob("*") if path.is_file())
    redaction = await broker.redact("users", where=f"value == '{PERSON.decode()}'", reason="GDPR Art. 17")
    assert (redaction.state, redaction.certificate["claims"]) == ("not-certified", [])
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    for certificate in (redaction.certificate, erasure.certificate):
        assert certificate["not_certified"]
