"""Reason and reference of certificates must not contain the data to be removed.

Certificates of earlier versions may contain it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diamant.broker import certificate_texts
from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, START_MS
from tests.broker.erasure.erasing import erase, intents_of, traces_of, unfinished, wait_idle
from tests.broker.erasure.issued import certificates_of, certified_at, signed, verify
from tests.broker.erasure.records import create, write
from tests.broker.redaction import test_redacting as redacting
from tests.mutants import Mutant, put_in, returns

MAIL = "ada@example.com"
TEXT = f"mail of {MAIL}, 3 May"
REFUSED = "reason and reference .*case number"


async def filled(broker: Broker, key: bytes = MAIL.encode(), value: bytes = PERSON) -> None:
    """`users` with one value of a key."""
    await create(broker)
    write(broker, (key, value))


@pytest.mark.parametrize("texts", [(TEXT, ""), ("GDPR", TEXT)])
async def test_a_text_that_holds_the_key_is_refused(broker: Broker, texts: tuple[str, str]) -> None:
    """The text would stay in the certificate, so it is refused. The error says what to write instead, and does not quote it."""
    await filled(broker)
    with pytest.raises(BadArgument, match=REFUSED) as raised:
        await broker.erase(MAIL.encode(), ["users"], reason=texts[0], reference=texts[1])
    assert MAIL not in str(raised.value)
    assert traces_of(broker) == []


async def test_a_text_that_holds_a_value_is_refused_before_anything_is_changed(broker: Broker) -> None:
    """Values are known once the key is located; then the call leaves nothing behind."""
    await filled(broker, KEY, MAIL.encode())
    with pytest.raises(BadArgument, match=REFUSED) as raised:
        await erase(broker, reference=TEXT)
    assert MAIL not in str(raised.value)
    assert (traces_of(broker), unfinished(broker)) == ([], [])
    assert broker.node.topics.log("users", 0).log_end_offset == 1
    assert broker.services.erasures().table.failed == 1


async def test_the_reason_of_a_cancellation_must_not_hold_it(broker: Broker) -> None:
    """The reason must contain neither the key nor a value, nor the text of a redaction; if it does, the job continues."""
    await filled(broker, value=b"Anna Schmidt, Bern")
    erasure = await erase(broker, MAIL.encode())
    await redacting.create(broker)
    redacting.write(broker, redacting.ORDER, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    redaction = await broker.redact("orders", where=redacting.WHERE, reason="ticket 4711", yes_all=True)
    for job_id, text in (
        (erasure.id, TEXT),
        (erasure.id, "Anna Schmidt, Bern has changed her mind"),
        (redaction.id, TEXT),
    ):
        with pytest.raises(BadArgument, match=r"reason .*case number"):
            await broker.cancel(job_id, reason=text)
    assert [one["id"] for one in unfinished(broker)] == [erasure.id]
    assert [one["id"] for one in broker.services.redactions().queue.unfinished()] == [redaction.id]
    assert (await broker.cancel(erasure.id, reason="changed her mind")).certificate["ended"]["what"] == "cancelled"


async def test_the_texts_of_a_redaction_must_not_hold_what_it_is_about(broker: Broker) -> None:
    """Reason and reference must contain neither a text of the condition nor the value of a matching record."""
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


# -- certificates that hold it all the same ----------------------------------------------------------------------------------


@pytest.fixture
def is_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the check of texts, as in earlier versions."""
    put_in(monkeypatch, Mutant(certificate_texts, "check_unsaid", returns(None)))


def told(certificate: dict[str, Any]) -> list[str]:
    """Return the files that a certificate lists under `elsewhere`."""
    return [one["file"] for one in certificate["elsewhere"]]


@pytest.mark.usefixtures("is_unchecked")
@pytest.mark.parametrize(("key", "value"), [(MAIL.encode(), PERSON), (KEY, MAIL.encode())], ids=["key", "value"])
async def test_a_certificate_of_this_broker_that_holds_it_is_named_and_in_nobodys_way(
    broker: Broker, key: bytes, value: bytes
) -> None:
    """The broker's own signed certificate stays; it is listed, but refuses no claim."""
    await filled(broker, key, value)
    erasure = await erase(broker, key, reference=TEXT)
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert told(certificate) == [one.name for one in certificates_of(broker, "values-gone")]
    assert any("certificates" in one and "elsewhere" in one for one in certificate["not_covered"])
    assert erasure.certificate["not_covered"] != certificate["not_covered"]
    verified = await verify(broker, certificate, key)
    assert verified.outcome == "valid"
    assert any("certificates" in note for note in verified.notes) == (key == MAIL.encode())


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
    done = await broker.erase_now(erasure.id, confirm_groups_behind=True)
    assert done.state == "key-gone"
    assert len(told(done.certificate)) == 2
    # What is not to be found again: nobody finds it in the way of another redaction, either.
    redacting.write(broker, redacting.ORDER)
    assert (await broker.redact("orders", where=redacting.WHERE, reason="r")).state == "records-gone"


@pytest.mark.usefixtures("is_unchecked")
@pytest.mark.parametrize("change", ["edited", "strangers", "renamed"])
async def test_a_certificate_of_another_key_is_treated_as_any_file(broker: Broker, tmp_path: Path, change: str) -> None:
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
        path.write_text(json.dumps(signed(fields, SigningKey.load(str(tmp_path / "other.key")))))
    broker.node.scheduler.poke()
    (one,) = unfinished(broker)
    certificate = await certified_at(broker, START_MS + DAY_MS, "not-certified")
    await wait_idle(broker)
    assert certificates_of(broker, "key-gone") == []
    assert [problem["file"] for problem in certificate["not_certified"][0]["problems"]] != []
    assert len(intents_of(broker)) == 1
    assert one["id"] == certificate["id"]
