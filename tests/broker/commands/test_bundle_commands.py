"""Bundles for auditors: from `diamant certificates`, from `diamant verify`, and from HTTP; and the public key."""

from __future__ import annotations

import json
import urllib.request
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin
from diamant.broker.commands.admin.certificates import certificates
from diamant.broker.commands.admin.verify import verify
from diamant.cleaner.evidence.certificates.certificate import parse_certificate
from tests.broker.certifying_broker import on
from tests.broker.commands.test_erase_commands import broker as running_broker
from tests.broker.erasure.constants import KEY

__all__ = ["running_broker"]


def check(signed: bytes, signature: bytes, pem: bytes) -> None:
    """Check a bundle; InvalidSignature."""
    key = load_pem_public_key(pem)
    assert isinstance(key, Ed25519PublicKey)
    key.verify(signature, signed)


def check_files(path: Path) -> bytes:
    """Check the bundle at a path, and return the signed bytes."""
    parts = [path.with_name(path.name + suffix).read_bytes() for suffix in ("", ".sig", ".pem")]
    check(*parts)
    return parts[0]


def test_a_bundle_is_written_and_downloaded(running_broker: Broker, tmp_path: Path) -> None:
    """All three ways give the same bytes, which are the certificate without the value of its signature."""
    found = Admin(running_broker.bootstrap_servers).erase(KEY.decode(), "users", reason="r")
    expected = found["certificate"]
    value = expected["signature"].pop("value")
    one, two = tmp_path / "one", tmp_path / "two"
    result = CliRunner().invoke(certificates, [found["id"], "--signed", str(one), *on(running_broker)])
    assert result.exit_code == 0, result.output
    assert json.loads(check_files(one)) == expected
    result = CliRunner().invoke(verify, [found["certificate_path"], "--offline", "--signed", str(two)])
    assert f"wrote {two}, {two}.sig, {two}.pem" in result.stderr
    assert check_files(two) == one.read_bytes(), result.output
    url = f"{running_broker.http_url}/v1/certificates/{found['id']}"
    page = urllib.request.urlopen(f"{url}/page").read().decode()
    assert '<a href="bundle">' in page
    archive = ZipFile(BytesIO(urllib.request.urlopen(f"{url}/bundle").read()))
    content = {name.removeprefix(f"certificate-{found['id']}"): archive.read(name) for name in archive.namelist()}
    check(content[".signed"], content[".signed.sig"], content[".signed.pem"])
    assert content[".signed"] == one.read_bytes()
    assert parse_certificate(content[".json"])["signature"]["value"] == value


def test_the_public_key_is_printed(running_broker: Broker, tmp_path: Path) -> None:
    """The key is printed as PEM and nothing else, so a redirection makes the file to be pinned; without a key, an error says
    so.
    """
    result = CliRunner().invoke(certificates, ["--public-key", *on(running_broker)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no key yet" in result.stderr
    assert "openssl genpkey -algorithm ed25519 -out certificate.key" in result.stderr
    found = Admin(running_broker.bootstrap_servers).erase(KEY.decode(), "users", reason="r")
    result = CliRunner().invoke(certificates, ["--public-key", *on(running_broker)])
    assert (result.exit_code, result.stdout) == (0, found["public_key"])
    pinned = tmp_path / "public.pem"
    pinned.write_text(result.stdout)
    result = CliRunner().invoke(verify, [found["certificate_path"], "--public-key", str(pinned), "--offline"])
    assert result.exit_code == 0, result.output


def test_a_bundle_needs_an_id_and_a_place(running_broker: Broker, tmp_path: Path) -> None:
    """Usage errors and files that cannot be written have their exit codes."""
    result = CliRunner().invoke(certificates, ["--signed", str(tmp_path / "x"), *on(running_broker)])
    assert (result.exit_code, "need an ID" in result.stderr) == (2, True)
    found = Admin(running_broker.bootstrap_servers).erase(KEY.decode(), "users", reason="r")
    (tmp_path / "x.sig").mkdir()
    for command, arguments in (
        (certificates, [found["id"], *on(running_broker)]),
        (verify, [found["certificate_path"], "--offline"]),
    ):
        result = CliRunner().invoke(command, [*arguments, "--signed", str(tmp_path / "x")])
        assert (result.exit_code, "x.sig: Is a directory" in result.stderr) == (1, True), result.output
