"""A paper that falls short: fields that no record has, topics that were not searched, parts that certify nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument, NotPossible
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.papers.paper_page import page_of
from diamant.cleaner.papers.paper_verification import verify_certificate
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.erasure.issued import key_of
from tests.broker.person.shop import ADA, BOB, MAP, fill
from tests.waiting import wait_until

WHY = "GDPR Art. 17"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the shop's topics."""
    async with broker_at(tmp_path) as running:
        await fill(running)
        yield running


def orders_map(**entry: Any) -> dict[str, Any]:
    """Return a map of the orders alone."""
    return {"version": 1, "topics": {"orders": {"identity": {"customer_id": "value.customer"}, **entry}}}


async def test_a_field_that_no_record_has_is_not_certified(shop: Broker) -> None:
    """A misspelled name blanks nothing: row and page name it, and the key's owner cannot sign that it is forgotten."""
    people = orders_map(do={"blank": ["value.note", "value.nmae"]})
    done = await shop.person.forget({"customer_id": ADA}, people, reason=WHY)
    assert done.state == "not-certified"
    [row] = done.certificate["topics"]
    assert "no record of the person has value.nmae, so nothing was blanked there" in row["problem"]
    assert "no record of the person has value.nmae" in page_of(done.certificate)
    assert "not there any more" not in page_of(done.certificate)
    claimed = copy.deepcopy(done.certificate)
    del claimed["signature"]
    claimed |= {"state": "forgotten", "ended": None}
    claimed["topics"][0] |= {"problem": "", "fields": []}
    signed = sign_certificate(claimed, key_of(shop))
    found = verify_certificate(signed, bytes.fromhex(signed["signature"]["public_key"]))
    assert found.outcome == "not-valid"
    right = await shop.person.forget({"customer_id": ADA}, orders_map(do={"blank": ["value.note"]}), reason=WHY)
    assert right.state == "forgotten"


async def test_a_preview_names_fields_that_no_record_has(shop: Broker) -> None:
    """Before anything is done; not for a person without records, nor once the fields are blanked."""
    people = orders_map(do={"blank": ["value.note", "value.nmae"]})
    [one] = (await shop.person.preview({"customer_id": ADA}, people)).topics
    assert (one.records, one.fields_not_seen) == (3, ("value.nmae",))
    [none] = (await shop.person.preview({"customer_id": "customer-99"}, people)).topics
    assert (none.records, none.fields_not_seen) == (0, ())
    right = orders_map(do={"blank": ["value.note"]})
    assert (await shop.person.forget({"customer_id": ADA}, right, reason=WHY)).state == "forgotten"
    [again] = (await shop.person.preview({"customer_id": ADA}, right)).topics
    assert (again.records, again.fields_not_seen) == (3, ())


async def test_a_field_that_some_records_have_is_certified(shop: Broker) -> None:
    """One record with the field shows that its name is right; nobody's records ask for none."""
    await shop.produce("orders", json.dumps({"customer": ADA, "gift": "for Bea"}))
    people = orders_map(do={"blank": ["value.note", "value.gift"]})
    assert (await shop.person.forget({"customer_id": ADA}, people, reason=WHY)).state == "forgotten"
    assert (await shop.person.forget({"customer_id": "nobody"}, people, reason=WHY)).state == "nothing-matched"


async def test_the_page_names_each_topic_where_records_stay(shop: Broker) -> None:
    """Also records that were only blanked, and what is not certified; its heading is good only if no record stays."""
    blanked = orders_map(do={"blank": ["value.note"]})
    stays = "orders: 3 records stay, with value.note blanked, as long as the topic keeps records, because"
    done = await shop.person.forget({"customer_id": ADA}, blanked, reason=WHY)
    assert stays in page_of(done.certificate)
    assert '<h1 class="">Done as the data map asks: 3 records in 1 topic stay</h1>' in page_of(done.certificate)
    found = verify_certificate(done.certificate, bytes.fromhex(done.certificate["signature"]["public_key"]))
    assert any(note.startswith(stays) for note in found.notes)
    kept = {"version": 1, "topics": {**blanked["topics"], "customers": MAP["topics"]["customers"]}}
    first = page_of((await shop.person.forget({"customer_id": BOB}, kept, reason=WHY)).certificate)
    assert "The data are gone" not in first
    assert "3 records in 1 topic stay, and deletion marks name the keys</h1>" in first
    await shop.produce("orders", b"\0\0\0\0\x07\x16" + ADA.encode())
    failed = page_of((await shop.person.forget({"customer_id": ADA}, blanked, reason=WHY)).certificate)
    assert "orders: what was found may stay, since not all of it is certified" in failed


async def test_the_page_says_that_nothing_stays(shop: Broker) -> None:
    """Its heading is good; a number and its noun stay on one line."""
    done = await shop.person.forget({"customer_id": ADA}, orders_map(do="remove-record"), reason=WHY)
    page = page_of(done.certificate)
    assert '<h1 class="good">Everything that was found is gone' in page
    assert "No record of what was found." in page
    assert "3\N{NO-BREAK SPACE}records" in page


async def test_topics_that_no_identifier_leads_to_are_named(shop: Broker) -> None:
    """Also one that was searched in another role: the paper, its page and its verification say so."""
    people = orders_map(do="remove-record")
    people["topics"]["customers"] = {"identity": {"profile": "key"}, "do": "erase-key"}
    people["topics"]["orders"] = [people["topics"]["orders"], {"identity": {"courier": "value.courier"}}]
    unknown = [{"topic": "customers", "identifiers": ["profile"]}, {"topic": "orders", "identifiers": ["courier"]}]
    done = await shop.person.forget({"customer_id": ADA}, people, reason=WHY)
    assert done.certificate["not_searched"] == unknown
    page = page_of(done.certificate)
    assert "customers was not searched" in page
    assert "in 1 place of the 1 that were searched" in page
    found = verify_certificate(done.certificate, bytes.fromhex(done.certificate["signature"]["public_key"]))
    assert any("customers was not searched" in note for note in found.notes)


async def test_a_part_that_certifies_nothing_gives_its_reasons(shop: Broker) -> None:
    """A record that cannot be decoded may be the person's: the row says so."""
    await shop.produce("orders", b"\0\0\0\0\x07\x16" + ADA.encode())
    done = await shop.person.forget({"customer_id": ADA}, orders_map(do="remove-record"), reason=WHY)
    assert done.state == "not-certified"
    [row] = done.certificate["topics"]
    assert "1 obstacle: it cannot be decided whether this record matches" in row["problem"]
    assert "its part was ended before it was finished (undecided-records)" in row["problem"]


async def test_a_request_whose_parts_are_complete_is_not_closed(shop: Broker) -> None:
    """Closing would end it as not certified, and the last paper follows by itself."""
    people = {"version": 1, "topics": {"customers": MAP["topics"]["customers"]}}
    first = await shop.person.forget({"customer_id": ADA}, people, reason=WHY)
    table = shop.services.people().table
    table.hold(first.id)
    assert first.next_due_ms is not None
    move_to(shop, first.next_due_ms)
    await wait_until(lambda: [*data_of(shop).glob("diamant-erasure-*.key-gone.json")] != [])
    with pytest.raises(NotPossible, match=r"closing it would end it as not certified\. Its last paper will be issued"):
        await shop.person.close(first.id, reason="done")
    table.release(first.id)
    await wait_until(lambda: [*data_of(shop).glob("diamant-person-*.forgotten.json")] != [])


async def test_the_reference_of_the_register_is_on_the_paper(shop: Broker) -> None:
    """It was given with the receipt; the caller need not repeat it."""
    entry = await shop.person.receive({"customer_id": ADA}, reference="case 77")
    done = await shop.person.forget({"customer_id": ADA}, MAP, reason=WHY)
    assert (done.id, done.certificate["request"]["reference"]) == (entry.id, "case 77")


@pytest.mark.parametrize("reason", [f"{ADA} has withdrawn", f"wish of ({ADA})."])
async def test_a_reason_to_close_must_not_name_the_person(shop: Broker, reason: str) -> None:
    """The register keeps it, and knows the identifier by its HMAC alone."""
    entry = await shop.person.receive({"customer_id": ADA})
    with pytest.raises(BadArgument, match="must not contain an identifier of the request"):
        await shop.person.close(entry.id, reason=reason)
    with pytest.raises(BadArgument, match="must not contain an identifier of the request"):
        await shop.person.extend(entry.id, reason=reason)
