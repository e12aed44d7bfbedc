"""Reason and reference of certificates must not contain the data to be removed.

Certificates of earlier versions may contain it.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.errors import BadArgument
from diamant.broker.erasure.jobs import texts
from diamant.cleaner.evidence.certificates import reason_check
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from tests.broker.erasure.cases import (
    DAY_MS,
    KEY,
    PERSON,
    START_MS,
    certificates_of,
    certified_at,
    create,
    data_of,
    erase,
    intents_of,
    pinned,
    traces_of,
    wait_idle,
    write,
)
from tests.broker.redaction import test_redacting as redacting
from tests.mutants import Mutant, put_in, returns

MAIL = "ada@example.com"
TEXT = f"mail of {MAIL}, 3 May"
PERSON_ID = UUID("12345678-9abc-def0-1234-56789abcdef0")
REFUSED = "reason and reference .*case number"


async def filled(broker: Broker, key: bytes = MAIL.encode(), value: bytes = PERSON) -> None:
    """`users` with one value of a key."""
    await create(broker)
    write(broker, (key, value))


@pytest.mark.parametrize("texts", [(TEXT, ""), ("GDPR", TEXT)])
async def test_a_text_that_holds_the_key_is_refused(broker: Broker, texts: tuple[str, str]) -> None:
    """It would stay in the certificate. The error says what to write instead, and does not quote it."""
    await filled(broker)
    with pytest.raises(BadArgument, match=REFUSED) as raised:
        await broker.erase(MAIL.encode(), ["users"], reason=texts[0], reference=texts[1])
    assert MAIL not in str(raised.value)
    assert traces_of(broker) == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"customer-42", "data of customer-42"),
        (b"customer-42", "CUSTOMER-42's request"),
        (b"42", "customer 42"),
        (b"42", "42"),
        (b"#4", "ticket#4"),
        ("Müller".encode(), "Mu\u0308ller has asked for it"),
        ("Straße".encode(), "STRASSE"),
        (b"customer-42", "see /customers/customer%2D42"),
        (b"customer 42", "see ?q=customer+42"),
        (b"customer-42", "see /customers/customer%252D42"),
        (b"customer-42", "customer%2526%252345%253B42"),
        (b"customer-42", "customer=2D42"),
        (b"customer-42", "key mn2xg5dpnvsxeljugi======"),
        (b"customer-42", f"0x{b'customer-42'.hex().upper()}"),
        (b"customer-42", "63:75:73:74:6f:6d:65:72:2d:34:32"),
        (b"customer-42", "Y3VzdG9tZXItNDI="),
        (b"\xff\xfe\xfd", "key ff fe fd"),
        (b"\xfb\xef\xff", "key --__ in base64"),
        (b"\x1a", "key 1A"),
        ((42).to_bytes(8, "big"), "customer 42"),
        ((-7).to_bytes(4, "big", signed=True), "number -7"),
        ((42).to_bytes(2, "big"), "customer 42"),
        (b"\x1a\x2b", "key 0x1A2B"),
        (b"\x1a\x2b", "add 0x1a, 0x2b"),
        (b"\x1a\x2b", r"key \x1a\x2b"),
        (b"\0\0\x12g", r"key \x00\x00\x12g"),
        (PERSON_ID.bytes, f"customer {PERSON_ID}"),
        (str(PERSON_ID).encode(), f"customer {PERSON_ID.hex.upper()}"),
        (b"customer-42\n", "customer-42"),
        (b"customer-42", "custo\u200bmer\u201142"),
        (b"customer-42", "customer&#45;42"),
        (b"customer-42", r"customer\u002d42"),
        ("Müller".encode("utf-16-le"), "Müller"),
        (MAIL.encode(), f"mail of {MAIL.upper()}"),
        (MAIL.encode(), f"xx{MAIL.encode().hex()}xx"),
        (MAIL.encode(), "to:ada%40example.com!"),
    ],
)
async def test_so_is_one_that_names_a_short_key_or_spells_it_otherwise(broker: Broker, key: bytes, text: str) -> None:
    """A short key is found as a separate word, in any case, and in the encodings in which keys are given."""
    await create(broker)
    with pytest.raises(BadArgument, match=REFUSED):
        await broker.erase(key, ["users"], reason="GDPR", reference=text)
    assert traces_of(broker) == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"42", "ticket 4211"),
        (b"42", "ticket A42"),
        (b"42", "ticket 3432, NDI"),
        (b"customer-42", "ticket customer-421"),
        (b"", "GDPR Art. 17"),
        (b" ", "GDPR Art. 17"),
        ("\u200b".encode(), "GDPR Art. 17"),
        (b"r", "GDPR: right to erasure"),
        ((42).to_bytes(8, "big"), "ticket 142"),
        (b"\x00\x01", "ticket 4711"),
    ],
)
async def test_what_only_has_its_letters_is_taken(broker: Broker, key: bytes, text: str) -> None:
    """Case numbers are accepted, whatever the key."""
    await create(broker)
    assert (await broker.erase(key, ["users"], reason="GDPR", reference=text)).state == "nothing-matched"


def test_a_long_key_is_looked_for_without_asking_about_each_of_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of a million characters does not block the loop."""
    asked: list[str] = []

    def category(letter: str) -> str:
        asked.append(letter)
        return unicodedata.category(letter)

    monkeypatch.setattr(
        reason_check, "unicodedata", SimpleNamespace(category=category, normalize=unicodedata.normalize)
    )
    for key in (b"customer-42 " * 10_000, "Müller\u200b ".encode() * 10_000):
        assert not reason_check.names_sought("ticket 4711", [key])
        assert reason_check.names_sought(f"of {key.decode()}", [key])
    assert len(asked) < 1000


@pytest.mark.parametrize("text", [TEXT, "ada%2540example.com", "ada=40example.com", "mfsgcqdfpbqw24dmmuxgg33n"])
async def test_a_text_that_holds_a_value_is_refused_before_anything_is_changed(broker: Broker, text: str) -> None:
    """Values are known once the key is located; then the call leaves nothing behind."""
    await filled(broker, KEY, MAIL.encode())
    with pytest.raises(BadArgument, match=REFUSED) as raised:
        await erase(broker, reference=text)
    assert MAIL not in str(raised.value)
    assert (traces_of(broker), broker.services.erasures().queue.unfinished()) == ([], [])
    assert broker.node.topics.log("users", 0).log_end_offset == 1
    assert broker.services.erasures().table.failed == 1


async def test_the_reason_of_a_cancellation_must_not_hold_it(broker: Broker) -> None:
    """Neither the key nor a value; the erasure continues."""
    await filled(broker, value=b"Anna Schmidt, Bern")
    erasure = await erase(broker, MAIL.encode())
    encoded = ("Anna%20Schmidt,%20Bern", f"see {b'Anna Schmidt, Bern'.hex()}", "QW5uYSBTY2htaWR0LCBCZXJu is hers")
    for text in (TEXT, "Anna Schmidt, Bern has changed her mind", MAIL.upper(), *encoded):
        with pytest.raises(BadArgument, match=r"reason .*case number"):
            await broker.cancel(erasure.id, reason=text)
    assert [one["id"] for one in broker.services.erasures().queue.unfinished()] == [erasure.id]
    assert (await broker.cancel(erasure.id, reason="changed her mind")).certificate["ended"]["what"] == "cancelled"


async def test_the_texts_of_a_redaction_must_not_hold_what_it_is_about(broker: Broker) -> None:
    """Neither a text of its condition nor the value of a matching record."""
    await redacting.create(broker)
    redacting.write(broker, redacting.ORDER, redacting.OTHER)
    for where, reason in (
        (redacting.WHERE, TEXT),
        (f'header.x == "{MAIL}" or ({redacting.WHERE})', TEXT),
        ("value.order == 7", f"the order {redacting.ORDER.decode()}"),
        ("value.order == 7.0", "the order 7"),
        ('value.name == "Ada"', "ada's request"),
        ('key == hex:"00ff"', "key 00FF"),
    ):
        with pytest.raises(BadArgument, match=REFUSED) as raised:
            await broker.redact("orders", where=where, reason=reason)
        assert MAIL not in str(raised.value)
    assert list(data_of(broker).glob("diamant-redaction-*")) == []
    assert (await broker.redact("orders", where=redacting.WHERE, reason="ticket 4711")).removed == 1


async def test_the_reason_of_a_redactions_cancellation_must_not_hold_it(broker: Broker) -> None:
    """As for erasures."""
    await redacting.create(broker)
    redacting.write(broker, redacting.OTHER)
    redacting.write(broker, redacting.ORDER, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    redaction = await broker.redact("orders", where=redacting.WHERE, reason="ticket 4711")
    assert redaction.state == "not-certified"
    with pytest.raises(BadArgument, match=r"reason .*case number"):
        await broker.cancel(redaction.id, reason=TEXT)
    assert [one["id"] for one in broker.services.redactions().queue.unfinished()] == [redaction.id]


# -- certificates that hold it all the same ----------------------------------------------------------------------------------


@pytest.fixture
def is_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the check of texts, as in earlier versions."""
    put_in(monkeypatch, Mutant(texts, "check_unsaid", returns(None)))


def told(certificate: dict[str, Any]) -> list[str]:
    """The files that a certificate lists under `elsewhere`."""
    return [one["file"] for one in certificate["elsewhere"]]


@pytest.mark.usefixtures("is_unchecked")
async def test_a_certificate_of_this_broker_that_holds_the_key_is_named_and_in_nobodys_way(broker: Broker) -> None:
    """The broker's own signed certificate stays; it is listed, but refuses no claim."""
    await filled(broker)
    erasure = await erase(broker, MAIL.encode(), reference=TEXT)
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    (before,) = certificates_of(broker, "values-gone")
    assert told(certificate) == [before.name]
    assert any("certificates" in one and "elsewhere" in one for one in certificate["not_covered"])
    assert erasure.certificate["not_covered"] != certificate["not_covered"]
    verified = await broker.services.certificates().verify(
        certificate, public_key=pinned(certificate), key=MAIL.encode()
    )
    assert (verified.outcome, any("certificates" in note for note in verified.notes)) == ("valid", True)


@pytest.mark.usefixtures("is_unchecked")
async def test_nor_is_one_that_holds_a_value(broker: Broker) -> None:
    """Value bytes in any other file would refuse the claim."""
    await filled(broker, KEY, MAIL.encode())
    assert (await erase(broker, reference=TEXT)).state == "values-gone"
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert told(certificate) == [certificates_of(broker, "values-gone")[0].name]


@pytest.mark.usefixtures("is_unchecked")
async def test_nor_one_of_a_redaction_or_of_a_cancellation(broker: Broker) -> None:
    """All certificates signed by this broker are treated alike."""
    await redacting.create(broker)
    redacting.write(broker, redacting.ORDER, redacting.OTHER)
    await broker.redact("orders", where=redacting.WHERE, reason="r", reference=TEXT)
    await filled(broker)
    cancelled = await erase(broker, MAIL.encode())
    await broker.cancel(cancelled.id, reason=TEXT)
    erasure = await erase(broker, MAIL.encode())
    done = await broker.erase_now(erasure.id, is_confirmed=True)
    assert done.state == "key-gone"
    assert len(told(done.certificate)) == 2
    # What is not to be found again: nobody finds it in the way of another redaction, either.
    redacting.write(broker, redacting.ORDER)
    assert (await broker.redact("orders", where=redacting.WHERE, reason="r")).state == "records-gone"


@pytest.mark.usefixtures("is_unchecked")
@pytest.mark.parametrize("change", ["edited", "strangers", "renamed"])
async def test_what_is_not_signed_with_this_brokers_key_is_any_file(
    broker: Broker, tmp_path: Path, change: str
) -> None:
    """An altered certificate, another broker's, or a renamed copy is treated like any other file."""
    await filled(broker)
    await erase(broker, MAIL.encode(), reference=TEXT)
    (path,) = certificates_of(broker, "values-gone")
    if change == "renamed":
        path.rename(path.with_suffix(".txt"))
    elif change == "edited":
        path.write_text(path.read_text().replace("GDPR Art. 17", "GDPR Art. 18"))
    else:
        fields = json.loads(path.read_bytes())
        path.write_text(json.dumps(sign_certificate(fields, SigningKey.load(str(tmp_path / "other.key")))))
    broker.node.scheduler.poke()
    (one,) = broker.services.erasures().queue.unfinished()
    certificate = await certified_at(broker, START_MS + DAY_MS, "not-certified")
    await wait_idle(broker)
    assert certificates_of(broker, "key-gone") == []
    assert [problem["file"] for problem in certificate["not_certified"][0]["problems"]] != []
    assert len(intents_of(broker)) == 1
    assert one["id"] == certificate["id"]
