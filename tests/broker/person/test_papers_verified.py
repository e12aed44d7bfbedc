"""A person's paper is verified as a whole, by the identifiers of the person."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.verification import CheckedFiles
from diamant.cleaner.papers.paper_verification import PaperSubject, verify_certificate
from diamant.storage.env.env import RealEnv
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.issued import key_of
from tests.broker.person.shop import ADA, BOB, MAP, fill

MAIL = "ada.lovelace@example.com"
ALL = {"customer_id": ADA, "email": MAIL}
PEOPLE: dict[str, Any] = {
    "version": 1,
    "topics": {
        **MAP["topics"],
        "orders": {
            "identity": {"customer_id": "value.customer"},
            "learns": {"email": "value.email"},
            "do": {"blank": ["value.note"]},
        },
        "letters": {
            "identity": {"email": ["value.to", "value.from"], "customer_id": "value.of"},
            "do": "remove-record",
        },
    },
}


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the shop's topics, and letters that name the person by e-mail."""
    async with broker_at(tmp_path) as running:
        await fill(running)
        await running.create_topic("letters")
        await running.produce("orders", json.dumps({"customer": ADA, "email": MAIL, "note": "ring twice"}))
        for sender in (MAIL, "bob@example.com"):
            await running.produce("letters", json.dumps({"from": sender, "to": "us@example.com"}))
        yield running


async def forgotten(shop: Broker) -> dict[str, Any]:
    done = await shop.person.forget({"customer_id": ADA}, PEOPLE, reason="GDPR Art. 17", now=True)
    assert done.state == "forgotten"
    return done.certificate


async def checked(shop: Broker, paper: dict[str, Any], **identifiers: str) -> tuple[str, dict[str, str], list[str]]:
    """Return the outcome, that of each topic's part, and the notes."""
    found = await shop.verify(paper, public_key=paper["signature"]["public_key"], identifiers=identifiers)
    parts = {topic: part["outcome"] for part in found.parts for topic in part["topics"]}
    return found.outcome, parts, found.notes


async def test_all_parts_are_checked_by_the_identifiers(shop: Broker) -> None:
    """Erased keys, removed records and blanked fields are all checked; what was written since is above the claims."""
    paper = await forgotten(shop)
    outcome, parts, _ = await checked(shop, paper, **ALL)
    assert (outcome, {*parts.values()}) == ("valid", {"valid"})
    assert {*parts} == {"customers", "carts", "orders", "letters"}
    await shop.produce("letters", json.dumps({"from": MAIL, "to": "us@example.com"}))
    assert (await checked(shop, paper, **ALL))[0] == "valid"


async def test_parts_whose_identifiers_are_not_given_stay_open(shop: Broker) -> None:
    """The note says which are missing; those that can be checked are."""
    paper = await forgotten(shop)
    outcome, parts, notes = await checked(shop, paper, customer_id=ADA)
    assert outcome == "not-confirmed"
    assert parts == {"customers": "valid", "carts": "valid", "orders": "valid", "letters": "not-confirmed"}
    assert any("(letters): identifiers of the person are missing: 1 of email." in note for note in notes)


@pytest.mark.parametrize("given", [{"customer_id": BOB, "email": "bob@example.com"}, {"email": ADA}])
async def test_identifiers_of_another_person_confirm_nothing(shop: Broker, given: dict[str, str]) -> None:
    """Their HMACs are not in the paper; erased keys are looked for by their digests."""
    outcome, parts, _ = await checked(shop, await forgotten(shop), **given)
    assert outcome == "not-confirmed"
    assert parts == {"customers": "valid", "carts": "valid", "orders": "not-confirmed", "letters": "not-confirmed"}


async def test_the_paper_alone_proves_its_signatures(shop: Broker) -> None:
    """Without identifiers, records of redactions are not looked for, and without files none is; the notes say so."""
    paper = await forgotten(shop)
    outcome, _, notes = await checked(shop, paper)
    assert outcome == "not-confirmed"
    assert any("Without the person's identifiers" in note for note in notes)
    alone = verify_certificate(paper, bytes.fromhex(paper["signature"]["public_key"]))
    assert alone.outcome == "valid"
    assert any("Only the signature and the certificate's own statements were checked" in note for note in alone.notes)


async def test_a_copy_is_checked_with_the_secret(shop: Broker, tmp_path: Path) -> None:
    """The check needs no broker; it finds records that came back below the claims."""
    await shop.produce("letters", json.dumps({"from": MAIL, "to": "us@example.com"}))
    copy = tmp_path / "copy"
    kept = {one.name: one.read_bytes() for one in (data_of(shop) / "letters-0").glob("*.log")}
    paper = await forgotten(shop)
    pinned, secret = bytes.fromhex(paper["signature"]["public_key"]), key_of(shop).secret
    shutil.copytree(data_of(shop), copy)
    given = PaperSubject({name: [value] for name, value in ALL.items()})
    found = verify_certificate(paper, pinned, CheckedFiles(RealEnv(), str(copy)), person=given, secret=secret)
    assert found.outcome == "valid", found.notes
    for name, data in kept.items():
        (copy / "letters-0" / name).write_bytes(data)
    found = verify_certificate(paper, pinned, CheckedFiles(RealEnv(), str(copy)), person=given, secret=secret)
    assert found.outcome == "broken", found.notes
    assert {part["topics"][0] for part in found.parts if part["outcome"] == "broken"} == {"letters"}


async def test_a_paper_of_an_earlier_version_says_what_cannot_be_checked(shop: Broker) -> None:
    """It has no places of identifiers: keys are checked, redactions are left open."""
    paper = await forgotten(shop)
    del paper["signature"]
    for row in paper["topics"]:
        del row["identity"]
    signed = sign_certificate(paper, key_of(shop))
    outcome, parts, _ = await checked(shop, signed, **ALL)
    assert outcome == "not-confirmed"
    assert parts == {"customers": "valid", "carts": "valid", "orders": "not-confirmed", "letters": "not-confirmed"}


async def test_identifiers_are_for_papers_alone(shop: Broker) -> None:
    """A part takes its key or its where, and a paper neither."""
    paper = await forgotten(shop)
    with pytest.raises(BadArgument, match="not the certificate of a person's request"):
        await shop.verify(paper["parts"][0], identifiers=ALL)
    with pytest.raises(BadArgument, match="verify it with identifiers of the person"):
        await shop.verify(paper, key=ADA)
    with pytest.raises(BadArgument, match="identifiers: email: expected a string"):
        await shop.verify(paper, identifiers={"email": ""})
