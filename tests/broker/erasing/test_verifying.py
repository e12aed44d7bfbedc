"""Certificates held against the broker that issued them, and forged ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.verbs.errors import BadArgument
from diamant.cleaner.evidence import certificate as certificates
from tests.broker.erasing.cases import KEY, PERSON, create, data_of, erase, pinned, write


async def test_a_certificate_is_verified_against_the_broker(broker: Broker) -> None:
    """With the pinned key it is trusted; without one the signer is not; a manual clock is stated."""
    await create(broker)
    write(broker, (KEY, PERSON))
    erasure = await erase(broker)
    found = await broker.erasures.verify(erasure.certificate, public_key=pinned(erasure.certificate))
    assert (found.is_valid, found.signature, found.was_scanned) == (True, "trusted", True)
    assert not found.is_evidence
    assert "no evidence" in found.notes[0]
    assert [one["verdict"] for one in found.claims] == ["holds"]
    unknown = await broker.erasures.verify(erasure.certificate)
    assert (unknown.is_valid, unknown.signature) == (False, "untrusted signer")
    other = await broker.erasures.verify(erasure.certificate, public_key=bytes(32))
    assert (other.is_valid, "another key" in other.signature) == (False, True)


async def test_later_writes_and_values_that_come_back_are_told_apart(broker: Broker) -> None:
    """What was written behind the claim is named; a restored old segment breaks the claim."""
    await create(broker)
    write(broker, (KEY, PERSON))
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    erasure = await erase(broker)
    write(broker, (KEY, b"a customer again"))
    found = await broker.erasures.verify(erasure.certificate, public_key=pinned(erasure.certificate), key=KEY)
    assert (found.is_valid, found.claims[0]["written_since"]) == (True, 1)
    (data_of(broker) / "users-0" / "00000000000000000000.log.swap").write_bytes(old)
    found = await broker.erasures.verify(erasure.certificate, public_key=pinned(erasure.certificate))
    assert (found.is_valid, found.claims[0]["verdict"]) == (False, "broken")


async def test_a_changed_certificate_is_refused(broker: Broker) -> None:
    """Whatever was changed in it, and if it is cut off."""
    await create(broker)
    write(broker, (KEY, PERSON))
    erasure = await erase(broker)
    changes: tuple[dict[str, Any], ...] = ({"state": "key-gone"}, {"claims": []}, {"is_evidence": True}, {"extra": 1})
    for change in changes:
        found = await broker.erasures.verify({**erasure.certificate, **change}, public_key=pinned(erasure.certificate))
        assert (found.is_valid, "not valid" in found.signature) == (False, True)
    text = json.dumps(erasure.certificate).encode()
    for cut in (0, 10, len(text) // 2, len(text) - 1):
        with pytest.raises(certificates.CertificateError):
            certificates.parse(text[:cut])
    with pytest.raises(BadArgument):
        await broker.erasures.verify({"type": "something"})
