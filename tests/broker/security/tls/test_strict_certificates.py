"""Certificates that Python from 3.13 on trusts: of the throw-away authority, and of the recipes in the documentation."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from diamant.broker.security.identity.distinguished_name import subject_of
from tests.broker.security.tls.certificates import authority, of_broker, of_client, strict_context, written
from tests.broker.security.tls.test_context import context_of

ROOT = Path(__file__).resolve().parents[4]
GUIDE = "docs/how-to/secure-a-broker.md"
MAKES_CERTIFICATES = re.compile(r"^(?:openssl (?:req|x509|ca|pkcs12)|keytool -gen)", re.MULTILINE)
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def recipes(page: Path) -> list[str]:
    """Return the blocks of a page that make certificates."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if MAKES_CERTIFICATES.search(block)]


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> list[ssl.SSLObject]:
    """Connect two sides in memory, and return them. Raises ssl.SSLError if one does not trust the other."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides


def of_server(pem: Path) -> ssl.SSLContext:
    """Return a server's context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def test_the_throw_away_authority_passes_strict_checks_on_both_sides(tmp_path: Path) -> None:
    """With strict checks, a client trusts the broker, and a broker the client."""
    server = of_server(written(tmp_path, of_broker()))
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_verify_locations(cadata=authority().certificate)
    client = strict_context(authority().certificate)
    client.load_cert_chain(written(tmp_path, of_client()))
    shake_hands(client, server, "localhost")


def test_one_page_has_all_recipes() -> None:
    """The others refer to it; so all are tried below."""
    pages = [
        *ROOT.glob("*.md"),
        *(page for name in ("docs", "docker", "examples") for page in (ROOT / name).rglob("*.md")),
    ]
    assert [str(page.relative_to(ROOT)) for page in pages if recipes(page)] == [GUIDE]


@needs_openssl
@pytest.mark.parametrize("settings", [{}, {"OPENSSL_CONF": "/dev/null"}], ids=["Debian's openssl.cnf", "none"])
def test_the_recipes_of_the_guide_pass_strict_checks_on_both_sides(tmp_path: Path, settings: dict[str, str]) -> None:
    """The recipes pass as they are written, in any POSIX shell, whatever openssl.cnf adds: the broker takes the files, for the
    host and the client that the guide names.
    """
    for recipe in recipes(ROOT / GUIDE):
        variables = os.environ | settings
        done = subprocess.run(
            ["sh", "-ec", recipe], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stderr
    server = context_of(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tmp_path / "broker.pem"),
            "ssl.client.auth": "required",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(tmp_path / "ca.pem"),
        }
    )
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    client = strict_context((tmp_path / "ca.pem").read_text())
    client.load_cert_chain(tmp_path / "alice.crt", tmp_path / "alice.key")
    _, accepted = shake_hands(client, server, "broker.example")
    certificate = accepted.getpeercert(binary_form=True)
    assert certificate is not None
    assert subject_of(certificate) == "CN=alice,O=Example"
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        shake_hands(client, server, "another.example")
