"""A certificate's signature, verified by other programs with the documentation's recipe for auditors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.evidence.certificates.certificate import CertificateError, bundle_of, canonical, sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey

DOCUMENT = Path(__file__).parents[4] / "docs" / "how-to" / "verify-a-certificate.md"
ODD = 'Straße \u00e9 \U0001f600 \u2028 / \\ " \x7f \x1f \b\t\n\f\r \udc80'

FORM: dict[str, Any] = {
    "type": "diamant-erasure-certificate", "version": 1, "state": "key-gone", "request": {}, "claims": [], "segments": {},
}  # fmt: skip


def recipe(begin: str = "python3 ") -> str:
    """Return the shell commands in the documentation that begin like this."""
    (found,) = re.findall(rf"```sh\n({begin}.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    """One key for all tests."""
    return SigningKey.load(str(tmp_path_factory.mktemp("keys") / "certificate.key"))


def put(directory: Path, key: SigningKey, fields: dict[str, Any], **layout: Any) -> None:
    (directory / "public.pem").write_text(key.public_pem)
    (directory / "erasure.json").write_text(json.dumps(fields, **layout), encoding="utf-8", errors="surrogatepass")


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-ec", recipe()], cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("layout", [{}, {"indent": 1, "sort_keys": True}, {"indent": 4}])
def test_openssl_checks_the_signature(tmp_path: Path, key: SigningKey, layout: dict[str, Any]) -> None:
    """OpenSSL verifies any layout of the file without our code, and rejects a changed letter or another key."""
    fields = sign_certificate(
        {"id": "1", "request": {"reason": ODD, "größe": [2**63 - 1, -1, True, None]}, "claims": []}, key
    )
    put(tmp_path, key, fields, **layout)
    result = run(tmp_path)
    assert (result.returncode, "Verified Successfully" in result.stdout) == (0, True), result.stderr
    put(tmp_path, key, {**fields, "id": "2"}, **layout)
    assert run(tmp_path).returncode != 0
    put(tmp_path, SigningKey.load(str(tmp_path / "another.key")), fields, **layout)
    assert run(tmp_path).returncode != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_alone_checks_a_bundle(tmp_path: Path, key: SigningKey) -> None:
    """The check needs no program that reads JSON; a changed byte, another signature or another key is not verified."""
    fields = {**FORM, "id": "1", "request": {"reason": ODD, "größe": [2**63 - 1, -1, True, None]}}

    def check(changed: dict[str, bytes]) -> bool:
        files = bundle_of(sign_certificate(fields, key)).files("erasure.signed")
        for name, content in {**files, "public.pem": key.public_pem.encode(), **changed}.items():
            (tmp_path / name).write_bytes(content)
        done = subprocess.run(["sh", "-ec", recipe("cmp ")], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == ("Verified Successfully" in done.stdout), done.stderr
        return done.returncode == 0

    other = SigningKey.load(str(tmp_path / "another.key"))
    forged = bundle_of(sign_certificate(fields, other)).files("erasure.signed")
    signed = bundle_of(sign_certificate(fields, key)).signed
    assert b"9223372036854775807" in signed
    assert check({})
    assert not check({"erasure.signed": signed.replace(b"9223372036854775807", b"9223372036854776000")})
    assert not check({"erasure.signed.sig": forged["erasure.signed.sig"]})
    assert not check(forged)


def test_a_bundle_has_the_key_in_the_form_of_all_programs(key: SigningKey) -> None:
    """The PEM of the certificate's key is that of the signing key; what has no signature has no bundle."""
    signed = sign_certificate(FORM, key)
    assert bundle_of(signed).public_key == key.public_pem
    for broken in ({}, {"public_key": "00"}, {"value": "x"}, {"value": signed["signature"]["value"].upper()}):
        other = {**signed, "signature": {**signed["signature"], **broken}} if broken else {**signed, "signature": {}}
        with pytest.raises(CertificateError):
            bundle_of(other)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_name_that_is_given_twice_is_no_signed_certificate(tmp_path: Path, key: SigningKey) -> None:
    """A repeated name is rejected, since programs differ in which value they take; no earlier result is reused."""
    put(tmp_path, key, sign_certificate({"id": "1", "state": "not-certified"}, key))
    assert run(tmp_path).returncode == 0
    path = tmp_path / "erasure.json"
    path.write_text(path.read_text().replace("{", '{"state": "key-gone", ', 1))
    for flags in ("-c", "-ec"):
        result = subprocess.run(["sh", flags, recipe()], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (result.returncode != 0, "Verified" in result.stdout) == (True, False)


def test_the_signed_bytes_are_those_that_the_documentation_describes() -> None:
    """The signed bytes follow the documentation to the letter, so that any later version can verify them."""
    fields = {"b": [], "a": {"z": -1, "B": {}, "\u00e9": True}, "text": ODD, "none": None, "n": 2**63 - 1}
    assert canonical(fields) == (
        b'{"a":{"B":{},"z":-1,"\xc3\xa9":true},"b":[],"n":9223372036854775807,"none":null,"text":"Stra\xc3\x9fe \xc3\xa9 '
        b'\xf0\x9f\x98\x80 \xe2\x80\xa8 / \\\\ \\" \x7f \\u001f \\b\\t\\n\\f\\r \xed\xb2\x80"}'
    )
