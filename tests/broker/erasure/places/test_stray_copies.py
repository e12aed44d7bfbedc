"""Copies in files of no partition, and topics of the same name: nothing is certified, or confirmed, that they may deny."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import verify_certificate
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from tests.broker.erasure.cases import (
    DAY_MS,
    KEY,
    PERSON,
    RETRY_MS,
    certificates_of,
    certified_at,
    create,
    create_with_key,
    data_of,
    erase,
    pinned,
    write,
    write_often,
)
from tests.broker.erasure.obstacles import SCANNING, at_stage

COPY = "backup/00000000000000000000.log"


def put_copy(broker: Broker, key: bytes, value: bytes | None) -> None:
    """Put a segment where no partition is."""
    path = data_of(broker) / COPY
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(build_batch([Record(0, 1000, key, value)]))


@pytest.mark.parametrize("value", [b"short", KEY], ids=["value", "value that equals its key"])
async def test_a_copied_record_lets_nothing_be_certified(broker: Broker, value: bytes) -> None:
    """Whatever its value is, and however often the key is in other topics; each partition says why, and names the file."""
    await create(broker, partitions=2)
    await create(broker, "events", policy="delete", segment_bytes=1_000_000)
    write(broker, (KEY, PERSON))
    write_often(broker, MAX_LISTED + 10, b"something that happened", "events")
    put_copy(broker, KEY, value)
    certificate = (await erase(broker)).certificate
    assert (certificate["state"], certificate["claims"]) == ("not-certified", [])
    assert [one["partition"] for one in certificate["not_certified"]] == [0, 1]
    for one in certificate["not_certified"]:
        assert (one["state"], one["problems"][0]["file"]) == ("inconclusive", COPY)
        assert "belongs to no partition" in one["problems"][0]["reason"]
    assert len(certificate["not_certified"][1]["problems"]) == 1


async def test_a_copied_tombstone_keeps_the_key_from_being_gone(broker: Broker) -> None:
    """Values are gone; that the key is not gone is said with the file that names it."""
    await create_with_key(broker, others=30)
    put_copy(broker, KEY, None)
    erasure = await erase(broker, is_now=True)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    (refused,) = erasure.certificate["not_certified"]
    assert (refused["state"], refused["problems"][0]["file"]) == ("inconclusive", COPY)
    assert len(certificates_of(broker, "values-gone")) == 1
    (data_of(broker) / COPY).unlink()
    await certified_at(broker, broker.env.clock.now_ms() + DAY_MS + RETRY_MS, "key-gone")


async def test_very_many_writes_behind_the_claim_are_no_obstacle(broker: Broker) -> None:
    """Of a key that is written all the time what is below the claim is certified."""
    await create_with_key(broker)
    writing = at_stage(SCANNING, lambda: write_often(broker, MAX_LISTED + 10))
    assert (await erase(broker, progress=writing)).state == "values-gone"


def signed_without_ids(broker: Broker, certificate: dict[str, Any]) -> dict[str, Any]:
    """The certificate as a version before would have written it."""
    request = {name: value for name, value in certificate["request"].items() if name != "topic_ids"}
    fields = {name: value for name, value in certificate.items() if name != "signature"}
    return sign_certificate({**fields, "request": request}, signing_key(broker))


def signing_key(broker: Broker) -> SigningKey:
    return SigningKey.load(str(data_of(broker).parent / "keys" / "certificate.key"))


async def test_another_topic_of_the_same_name_is_none_that_was_certified(broker: Broker) -> None:
    """With the key in it or without: nothing can be told. Certificates without ids go by names."""
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
    old = await broker.services.certificates().verify(signed_without_ids(broker, certificate), **arguments)
    assert [one["verdict"] for one in old.claims] == ["broken"]


async def test_a_partition_that_does_not_say_whose_it_is_confirms_nothing(broker: Broker) -> None:
    """Somebody may have put any log there; what is there again is there, whosoever it is."""
    await create_with_key(broker)
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    certificate = (await erase(broker)).certificate
    (data_of(broker) / "users-0" / names.PARTITION_METADATA).unlink()
    arguments: dict[str, Any] = {"key": KEY, "secret": signing_key(broker).secret}
    found = verify_certificate(certificate, pinned(certificate), RealEnv(), str(data_of(broker)), **arguments)
    assert (found.is_valid, [one["verdict"] for one in found.claims]) == (False, ["cannot be told"])
    assert f"{names.PARTITION_METADATA} is missing" in " ".join(found.notes)
    before = signed_without_ids(broker, certificate)
    assert verify_certificate(before, pinned(before), RealEnv(), str(data_of(broker)), **arguments).is_valid
    (data_of(broker) / "users-0" / "00000000000000000000.log.swap").write_bytes(old)
    found = verify_certificate(certificate, pinned(certificate), RealEnv(), str(data_of(broker)), **arguments)
    assert [one["verdict"] for one in found.claims] == ["broken"]
