"""Redactions whose sought text is elsewhere: in stray files, in another field, under another path."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from tests.broker.erasure.brokers import data_of
from tests.broker.redaction.test_redacting import EMAIL, ORDER, OTHER, WHERE, create, redact, verified, write

COPY = "backup/00000000000000000000.log"


def put_copy(directory: Path, key: bytes | None, value: bytes | None) -> Path:
    """Put a segment outside any partition."""
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
    """A copy of only the sought text is enough; each partition names the file. Without the copy the claim is certified."""
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
    path.unlink()
    other = await redact(broker, where, undecided="remove")
    state, outcome = ("records-gone", "valid") if other.removed else ("nothing-matched", "nothing-matched")
    assert other.state == state
    found = await verified(broker, other.certificate, where)
    assert (found.outcome, {one["verdict"] for one in found.claims}) == (outcome, {"holds"})
    put_copy(data_of(broker), key, value)
    found = await verified(broker, other.certificate, where)
    assert (found.is_valid, {one["verdict"] for one in found.claims}) == (False, {"cannot be told"})
    assert f"Files outside all partitions with records that match, or may match: {COPY}." in found.notes
    assert any(one.startswith("Values outside of records, as in files beside the logs, are") for one in found.notes)


async def test_a_text_in_a_file_of_nobody_is_listed_and_no_obstacle(broker: Broker) -> None:
    """Many files may contain a mail address; that is not a record of the topic."""
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
    """Another topic of the same name is not certified, with or without such records."""
    await create(broker)
    write(broker, ORDER, OTHER)
    certificate = (await redact(broker)).certificate
    assert (await verified(broker, certificate)).is_valid
    await delete_topics(broker.node.topics, ["orders"])
    broker.services.evidence().remove_doomed(["orders"], [])
    await create(broker)
    for value in (OTHER, ORDER):
        write(broker, value)
        found = await verified(broker, certificate)
        assert {(one["verdict"], one["state_now"]) for one in found.claims} == {("cannot be told", "topic-recreated")}


MAIL = f'value.customer.mail == "{EMAIL}"'
ON_TOP = "No record matched, and nothing was removed"


async def test_records_that_hold_the_text_elsewhere_are_counted(broker: Broker) -> None:
    """Each record of the topic itself is counted once, whichever field holds the text; the first ones are listed."""
    await create(broker, partitions=2)
    await create(broker, "mails")
    write(broker, ORDER, OTHER, ORDER.replace(b"Bern", EMAIL.encode()))
    write(broker, None, partition=1, headers=(Header("from", EMAIL.encode()),), key=EMAIL.encode())
    write(broker, ORDER, topic="mails")
    redaction = await redact(broker, MAIL)
    assert (redaction.state, redaction.removed) == ("nothing-matched", 0)
    assert redaction.unmatched == redaction.to_fields()["unmatched"]
    assert redaction.unmatched == {
        "records": 3,
        "first": [
            {"topic": "orders", "partition": index, "offset": offset} for index, offset in ((0, 0), (0, 2), (1, 0))
        ],
    }
    assert ON_TOP in certificate_page(redaction.certificate)
    found = await verified(broker, redaction.certificate, None)
    assert "but 3 records of the topic held the text in another place" in " ".join(found.notes)


async def test_nothing_is_said_where_something_matched_or_is_only_elsewhere(broker: Broker) -> None:
    """Nor of matching records written later, nor of a text that is too short to search for everywhere."""
    await create(broker)
    await create(broker, "mails")
    write(broker, ORDER, b'{"mail": "ada@example.com"}', OTHER)
    write(broker, ORDER, topic="mails")
    found = await redact(broker)
    assert (found.removed, found.unmatched) == (1, None)
    write(broker, b'{"user": "short"}')
    assert (await redact(broker, 'value.name == "short"')).unmatched is None
    assert (await redact(broker, 'value.customer.mail == "carl@example.com"')).unmatched is None
    assert (await redact(broker, 'value.mail == "ada@example.com"')).removed == 1
    again = await redact(broker, 'value.mail == "ada@example.com"')
    assert (again.removed, again.unmatched) == (0, None)
    assert ON_TOP not in certificate_page(again.certificate)


@pytest.mark.parametrize(
    ("where", "records"),
    [
        (f'value.mail == "{EMAIL}" and value.land == "Switzerland, Bern"', 0),
        (f'value.mail == "{EMAIL}" or value.land == "Switzerland, Bern"', 1),
        (f'value.mail == "{EMAIL}" and value.city == "Bern" and value.order == 7', 1),
        (f'(value.mail == "{EMAIL}" or value.mail == "{EMAIL}x") and value.mail exists', 1),
    ],
)
async def test_joined_descriptions_are_held_by_a_record_as_a_whole(broker: Broker, where: str, records: int) -> None:
    """A frequent text alone does not count if others are required; texts that are not searched for may be present."""
    await create(broker)
    write(broker, ORDER, OTHER)
    found = (await redact(broker, where)).unmatched
    assert (found["records"] if found else 0) == records


async def test_a_text_that_other_topics_have_very_often_hides_nothing(broker: Broker) -> None:
    """However many of their places are listed, the first one in the topic's own file is listed, too."""
    # Several segments: large files are searched first, two at a time, so when it is the order's turn one of these is through.
    await create(broker, "events")
    for _ in range(MAX_LISTED // 5):
        write(broker, *[ORDER] * 10, topic="events")
    await create(broker)
    write(broker, ORDER)
    redaction = await redact(broker, MAIL)
    assert redaction.unmatched is not None
    assert redaction.unmatched["first"] == [{"topic": "orders", "partition": 0, "offset": 0}]
