"""A certificate has one form: any other text is refused, although Python's JSON would read the same values from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.evidence.certificates.certificate import (
    INVALID,
    TRUSTED,
    CertificateError,
    check_signature,
    parse_certificate,
    sign_certificate,
)
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import NOT_VALID
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.constants import HTTP, KEY
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.records import create_with_key
from tests.broker.http_asking import ask

FIELDS: dict[str, Any] = {
    "type": "diamant-erasure-certificate", "version": 1, "id": "a", "state": "key-gone",
    "request": {"reason": "ü"}, "claims": [], "segments": {}, "zero": 0, "large": 9223372036854775807,
}  # fmt: skip


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A certificate."""
    return sign_certificate(FIELDS, SigningKey.load(str(tmp_path_factory.mktemp("keys") / "key")))


def public(certificate: dict[str, Any]) -> bytes:
    """Return the key that signed it, as if pinned."""
    return bytes.fromhex(certificate["signature"]["public_key"])


def test_the_original_form_is_accepted(signed: dict[str, Any]) -> None:
    """Whatever the order of names, line ends and escapes."""
    for options in ({}, {"indent": 1, "sort_keys": True}, {"ensure_ascii": False}):
        text = json.dumps(signed, **options).encode()
        assert check_signature(parse_certificate(text + b"\n"), public(signed)) == TRUSTED


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_another_encoding_is_refused(signed: dict[str, Any], encoding: str) -> None:
    """Certificates are UTF-8 without a byte order mark."""
    with pytest.raises(CertificateError, match="not JSON"):
        parse_certificate(json.dumps(signed).encode(encoding))


@pytest.mark.parametrize("other", [b"-0", b"NaN", b"00", b"+0", b"0x0", b'0, "zero": 0'])
def test_another_form_of_a_number_is_refused(signed: dict[str, Any], other: bytes) -> None:
    """Another spelling of a number is refused, as are names that are given twice."""
    text = json.dumps(signed).encode()
    assert text.count(b'"zero": 0') == 1
    with pytest.raises(CertificateError, match="not JSON"):
        parse_certificate(text.replace(b'"zero": 0', b'"zero": ' + other))


@pytest.mark.parametrize("other", [b"0.0", b"0e1", b"-0.0"])
def test_a_number_with_a_point_is_not_signed(signed: dict[str, Any], other: bytes) -> None:
    """Certificates hold no such numbers."""
    text = json.dumps(signed).encode().replace(b'"zero": 0', b'"zero": ' + other)
    assert check_signature(parse_certificate(text), public(signed)) == INVALID


FORMS: list[Callable[[str], str]] = [str.upper, " ".join, lambda one: f" {one}", lambda one: f"{one}\n", str.title]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["value", "public_key"])
def test_another_form_of_the_signature_is_not_valid(
    signed: dict[str, Any], name: str, form: Callable[[str], str]
) -> None:
    """The signature is in lower-case hexadecimal digits without blanks; any other form is not valid."""
    other = {**signed, "signature": {**signed["signature"], name: form(signed["signature"][name])}}
    assert check_signature(other, public(signed)) == INVALID


async def test_http_refuses_them_too(tmp_path: Path) -> None:
    """A body is read as strictly as a file."""
    async with broker_at(tmp_path, **HTTP) as broker:
        await create_with_key(broker)
        certificate = (await erase(broker, KEY)).certificate
        body = json.dumps({"certificate": certificate, "public_key": certificate["signature"]["public_key"]})
        assert (await ask(broker, "POST", "/v1/verify", body.encode())).status == 200
        for other in (
            body.encode("utf-16"),
            body.encode("utf-8-sig"),
            body.replace('"partition": 0', '"partition": -0').encode(),
        ):
            assert (await ask(broker, "POST", "/v1/verify", other)).status == 400
        certificate["signature"]["value"] = certificate["signature"]["value"].upper()
        body = json.dumps({"certificate": certificate, "public_key": certificate["signature"]["public_key"]})
        assert (await ask(broker, "POST", "/v1/verify", body.encode())).json["outcome"] == NOT_VALID
