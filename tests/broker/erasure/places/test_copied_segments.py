"""Copies and second names of segments, also outside partitions, refuse claims about their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.verification import verify_certificate
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from tests.broker.erasure.brokers import data_of, env_of
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certificates_of, certified_at, key_of, pinned, signed
from tests.broker.erasure.obstacles import at_stage
from tests.broker.erasure.records import create, create_with_key, write

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


PLACES = ["users-0/00000000000000099999.log", "users-0/0.log", "users-0/copy.log", "copy", f"{STRAY}/copy"]


@pytest.mark.parametrize("place", [*PLACES, *(f"{directory}/{0:020d}.log" for directory in NOBODYS)])
async def test_a_copy_lets_nothing_be_certified(broker: Broker, place: str) -> None:
    """For erasures and redactions alike; the certificate names the file. tests/cleaner/evidence/scan has the other names."""
    await create_with_key(broker, others=30, codec=1)
    await create(broker, "clicks")
    path = data_of(broker) / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((data_of(broker) / SEGMENT).read_bytes())
    assert PERSON not in b"".join(path.read_bytes() for path in data_of(broker).rglob("*") if path.is_file())
    redaction = await broker.redact("users", where=f"value == '{PERSON.decode()}'", reason="GDPR Art. 17")
    assert (redaction.state, redaction.certificate["claims"]) == ("not-certified", [])
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    for certificate in (redaction.certificate, erasure.certificate):
        assert place in [one["file"] for one in certificate["not_certified"][0]["problems"]]


async def test_a_directory_with_zeros_before_the_partitions_number_is_none_in_use(broker: Broker) -> None:
    """Its files may change at any time, so one that changed during the scan is read again."""
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
    """Word for word, sentence by sentence; each field of the certificate is documented."""
    await create_with_key(broker)
    page = (ROOT / "docs" / "explanation" / "erasure.md").read_text()
    section = page.partition("## What is not covered")[2].partition("\n##")[0]
    items = [" ".join(one.split()) for one in section.partition("\n\n* ")[2].partition("\n\n")[0].split("\n* ")]
    certificate = (await erase(broker)).certificate
    assert certificate["not_covered"] == items
    fields = (ROOT / "docs" / "reference" / "certificates.md").read_text()
    assert [name for name in certificate if f"`{name}`" not in fields] == []
    redaction = await broker.redact("users", where='key == "nobody"', reason="GDPR Art. 17")
    for promised in (
        "Compressed bytes that are no record batches",
        "Values that had gone from the disk before",
        "copied into the directories of other topics",
    ):
        assert any(promised in one for one in redaction.certificate["not_covered"])


@pytest.mark.parametrize("place", ["backup/00000000000000000000.log", f"users-5.{'0' * 32}-stray/{0:020d}.log"])
async def test_a_copied_tombstone_keeps_the_key_from_being_gone(broker: Broker, place: str) -> None:
    """The values are gone; `key-gone` is refused, with the file that names the key."""
    await create_with_key(broker, others=30)
    path = data_of(broker) / place
    path.parent.mkdir()
    path.write_bytes(build_batch([Record(0, 1000, KEY, None)]))
    erasure = await erase(broker, is_now=True)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    (refused,) = erasure.certificate["not_certified"]
    assert (refused["state"], refused["problems"][0]["file"]) == ("inconclusive", place)
    assert len(certificates_of(broker, "values-gone")) == 1
    path.unlink()
    await certified_at(broker, broker.env.clock.now_ms() + DAY_MS + RETRY_MS, "key-gone")


def without_ids(broker: Broker, certificate: dict[str, Any]) -> dict[str, Any]:
    """The certificate in the form of an earlier version, without topic ids."""
    request = {name: value for name, value in certificate["request"].items() if name != "topic_ids"}
    return signed(certificate, key_of(broker), request=request)


async def test_another_topic_of_the_same_name_is_none_that_was_certified(broker: Broker) -> None:
    """With or without the key in it, nothing is confirmed. Certificates without ids use names."""
    await create_with_key(broker, others=30)
    certificate = (await erase(broker)).certificate
    assert list(certificate["request"]["topic_ids"]) == ["users"]
    arguments: dict[str, Any] = {"public_key": pinned(certificate), "key": KEY}
    assert (await broker.services.certificates().verify(certificate, **arguments)).is_valid
    await delete_topics(broker.node.topics, ["users"])
    broker.services.evidence().remove_doomed(["users"], [])
    await create(broker)
    for values in ((), ((b"a", b"b"), (KEY, b"another customer"))):
        write(broker, (b"a", b"b"), *values)
        found = await broker.services.certificates().verify(certificate, **arguments)
        assert (found.is_valid, [one["verdict"] for one in found.claims]) == (False, ["cannot be told"])
        assert [one["state_now"] for one in found.claims] == ["topic-recreated"]
        assert any(one.startswith("users-0: of another topic now.") for one in found.notes)
    old = await broker.services.certificates().verify(without_ids(broker, certificate), **arguments)
    assert [one["verdict"] for one in old.claims] == ["broken"]


async def test_a_partition_that_does_not_say_whose_it_is_confirms_nothing(broker: Broker) -> None:
    """Its log may be any log; a value that is back there counts all the same."""
    await create_with_key(broker)
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    certificate = (await erase(broker)).certificate
    (data_of(broker) / "users-0" / names.PARTITION_METADATA).unlink()
    arguments: dict[str, Any] = {"key": KEY, "secret": key_of(broker).secret}
    found = verify_certificate(certificate, pinned(certificate), RealEnv(), str(data_of(broker)), **arguments)
    assert (found.is_valid, [one["verdict"] for one in found.claims]) == (False, ["cannot be told"])
    assert f"{names.PARTITION_METADATA} is missing" in " ".join(found.notes)
    before = without_ids(broker, certificate)
    assert verify_certificate(before, pinned(before), RealEnv(), str(data_of(broker)), **arguments).is_valid
    (data_of(broker) / "users-0" / "00000000000000000000.log.swap").write_bytes(old)
    found = verify_certificate(certificate, pinned(certificate), RealEnv(), str(data_of(broker)), **arguments)
    assert [one["verdict"] for one in found.claims] == ["broken"]
