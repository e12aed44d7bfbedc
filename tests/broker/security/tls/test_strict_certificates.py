"""Certificates that Python from 3.13 on trusts: of the throw-away authority, and of the recipe in the guide."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.broker.security.tls.certificates import authority, of_broker, of_client, strict_context, written

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "secure-a-broker.md"
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("bash") is None, reason="openssl and bash are not installed"
)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Connect two sides in memory. Raises ssl.SSLError if one does not trust the other."""
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


def of_server(pem: Path) -> ssl.SSLContext:
    """A server's context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def test_the_throw_away_authority_passes_strict_checks_on_both_sides(tmp_path: Path) -> None:
    """A client trusts the broker, and a broker the client."""
    server = of_server(written(tmp_path, of_broker()))
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_verify_locations(cadata=authority().certificate)
    client = strict_context(authority().certificate)
    client.load_cert_chain(written(tmp_path, of_client()))
    shake_hands(client, server, "localhost")


@needs_openssl
def test_the_recipe_of_the_guide_passes_strict_checks(tmp_path: Path) -> None:
    """As it is written there, for the host that it names."""
    (recipe,) = [text for text in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "req -x509" in text]
    subprocess.run(["bash", "-e", "-c", recipe], cwd=tmp_path, check=True, capture_output=True, timeout=30)
    client = strict_context((tmp_path / "ca.pem").read_text())
    shake_hands(client, of_server(tmp_path / "broker.pem"), "broker.example")
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        shake_hands(client, of_server(tmp_path / "broker.pem"), "another.example")
