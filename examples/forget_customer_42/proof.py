"""Certificates as somebody keeps them who has to answer for it: files, checked by `diamant verify` with a key known before."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from diamant.broker.client.admin import Admin
from examples.forget_customer_42.broker import diamant

VERIFY_TIMEOUT_S = 60.0
SECRET_BYTES = 32
VALID, NOT_SO = 0, 3
"""Exit codes of `diamant verify`."""


def make_key(path: Path) -> None:
    """Make the private key and the secret beside it, before the broker does for its first erasure: so they are known by then."""
    path.parent.mkdir(mode=0o700)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    secret = os.urandom(SECRET_BYTES).hex().encode()
    for file, content in ((path, pem), (path.with_name(f"{path.name}.secret"), secret)):
        file.touch(0o600)
        file.write_bytes(content)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `diamant verify` said."""

    code: int
    said: str

    @property
    def first_line(self) -> str:
        return self.said.partition("\n")[0]


class Folder:
    """Where certificates, their pages and the pinned public key are kept."""

    def __init__(self, path: Path, admin: Admin) -> None:
        self.path = path
        self._admin = admin
        path.mkdir()

    @property
    def public_key(self) -> Path:
        """The key that was pinned."""
        return self.path / "public.pem"

    def pin(self) -> str:
        """Keep the broker's public key, before there is anything to be signed; returns it."""
        pem: str = self._admin.call("GET", "/v1/certificates")["public_key"]
        self.public_key.write_text(pem)
        return pem

    def keep(self, name: str, certificate: dict[str, Any]) -> Path:
        """Write a certificate, and its page for people as the broker serves it; returns the certificate's file."""
        file = self.path / f"{name}.json"
        file.write_text(json.dumps(certificate, indent=1, sort_keys=True))
        address = f"{self._admin.http_url}/v1/certificates/{certificate['id']}/page"
        with urllib.request.urlopen(address, timeout=self._admin.timeout_s) as answer:  # noqa: S310  (the broker's own)
            (self.path / f"{name}.html").write_bytes(answer.read())
        return file

    def tamper(self, file: Path, **changes: Any) -> Path:
        """Write a copy of a certificate that says something else, signature and all."""
        forged = self.path / f"{file.stem}.tampered.json"
        forged.write_text(json.dumps({**json.loads(file.read_text()), **changes}, indent=1, sort_keys=True))
        return forged


def verify(certificate: Path, *options: str) -> Verdict:
    """Run `diamant verify`."""
    done = subprocess.run(
        diamant("verify", str(certificate), *options),
        capture_output=True,
        text=True,
        check=False,
        timeout=VERIFY_TIMEOUT_S,
    )
    return Verdict(done.returncode, (done.stdout or done.stderr).strip())
