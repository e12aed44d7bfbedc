"""Redactions that match nothing although what was looked for is there: in another field, behind another path."""

from __future__ import annotations

import pytest

from diamant.broker.broker import Broker
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.protocol.batches.header import Header
from tests.broker.redaction.test_redacting import EMAIL, ORDER, OTHER, broker, create, redact, write

__all__ = ["broker"]

MAIL = f'value.customer.mail == "{EMAIL}"'
ON_TOP = "No record matched, and nothing was removed"


async def test_records_that_hold_the_text_elsewhere_are_counted(broker: Broker) -> None:
    """Once each, whatever the field, in the topic itself only; the first of them are named."""
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
    verified = await broker.services.certificates().verify(redaction.certificate)
    assert "but 3 of the topic held what was looked for in another place" in " ".join(verified.notes)


async def test_nothing_is_said_where_something_matched_or_is_only_elsewhere(broker: Broker) -> None:
    """Nor of records that match and were written later, nor of what is too short to be looked for everywhere."""
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
    """A text that many records have says nothing where others have to be there, too; what is not searched for may be there."""
    await create(broker)
    write(broker, ORDER, OTHER)
    found = (await redact(broker, where)).unmatched
    assert (found["records"] if found else 0) == records


async def test_a_text_that_other_topics_have_very_often_hides_nothing(broker: Broker) -> None:
    """However many places are listed of them, the topic's own file has its first one."""
    # Several segments: large files are searched first, two at a time, so when it is the order's turn one of these is through.
    await create(broker, "events")
    for _ in range(MAX_LISTED // 5):
        write(broker, *[ORDER] * 10, topic="events")
    await create(broker)
    write(broker, ORDER)
    redaction = await redact(broker, MAIL)
    assert redaction.unmatched is not None
    assert redaction.unmatched["first"] == [{"topic": "orders", "partition": 0, "offset": 0}]
