"""Redactions, and copies in files that belong to no partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from tests.broker.redaction.test_redacting import EMAIL, ORDER, OTHER, WHERE, broker, create, data_of, redact, write

__all__ = ["broker"]

COPY = "backup/00000000000000000000.log"


def put_copy(directory: Path, key: bytes | None, value: bytes | None) -> Path:
    """Put a segment where no partition is."""
    path = directory / COPY
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(build_batch([Record(0, 1000, key, value)]))
    return path


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        (f'value == "{EMAIL}"', b"k", EMAIL.encode()),
        (f'key == "{EMAIL}"', EMAIL.encode(), None),
        (f'key == "{EMAIL}"', EMAIL.encode(), EMAIL.encode()),
        (WHERE, b"k", ORDER),
        (WHERE, b"k", b"customer, email: " + EMAIL.encode()),
    ],
    ids=["value", "key of a tombstone", "key that is the value", "field", "undecided"],
)
async def test_a_copied_record_lets_nothing_be_certified(
    broker: Broker, where: str, key: bytes, value: bytes | None
) -> None:
    """Also if it is nothing but what was looked for; each partition names the file. Without the copy it is certified."""
    await create(broker, partitions=2)
    write(broker, OTHER, value, key=key)
    write(broker, OTHER, key=b"other")
    path = put_copy(data_of(broker), key, value)
    redaction = await redact(broker, where)
    certificate = redaction.certificate
    assert (redaction.state, certificate["claims"], certificate["ended"]) == ("not-certified", [], None)
    assert [one["partition"] for one in certificate["not_certified"]] == [0, 1]
    for one in certificate["not_certified"]:
        assert one["state"] == "inconclusive"
        assert COPY in [problem["file"] for problem in one["problems"]]
    pinned = bytes.fromhex(certificate["signature"]["public_key"])
    path.unlink()
    other = await redact(broker, where, undecided="remove")
    state, outcome = ("records-gone", "valid") if other.removed else ("nothing-matched", "nothing-matched")
    assert other.state == state
    verified = await broker.services.certificates().verify(other.certificate, public_key=pinned, where=where)
    assert (verified.outcome, {one["verdict"] for one in verified.claims}) == (outcome, {"holds"})
    put_copy(data_of(broker), key, value)
    found = await broker.services.certificates().verify(other.certificate, public_key=pinned, where=where)
    assert (found.is_valid, {one["verdict"] for one in found.claims}) == (False, {"cannot be told"})
    assert "Files that belong to no partition in which records match, or may: 1." in found.notes


async def test_a_text_in_a_file_of_nobody_is_listed_and_no_obstacle(broker: Broker) -> None:
    """A mail address is in many files; that is no record of the topic."""
    await create(broker)
    write(broker, ORDER, OTHER)
    (data_of(broker) / "notes.txt").write_bytes(b"write to " + EMAIL.encode())
    put_copy(data_of(broker), b"k", b"to: " + EMAIL.encode())
    certificate = (await redact(broker)).certificate
    assert certificate["state"] == "records-gone"
    assert {(one["file"], one["what"]) for one in certificate["elsewhere"]} == {
        ("notes.txt", "raw"),
        (COPY, "same-bytes"),
    }


async def test_another_topic_of_the_same_name_is_none_that_was_certified(broker: Broker) -> None:
    """Whether it has such records or not."""
    await create(broker)
    write(broker, ORDER, OTHER)
    certificate = (await redact(broker)).certificate
    pinned = bytes.fromhex(certificate["signature"]["public_key"])
    assert (await broker.services.certificates().verify(certificate, public_key=pinned, where=WHERE)).is_valid
    await delete_topics(broker.node.topics, ["orders"])
    broker.services.evidence().remove_doomed(["orders"], [])
    await create(broker)
    for value in (OTHER, ORDER):
        write(broker, value)
        found = await broker.services.certificates().verify(certificate, public_key=pinned, where=WHERE)
        assert {(one["verdict"], one["state_now"]) for one in found.claims} == {("cannot be told", "topic-recreated")}
