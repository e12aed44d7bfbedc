"""Certificates for tests, created once: a CA, certificates of brokers and clients, and client contexts."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

from diamant.broker.security.tls.throw_away import Issued, ThrowAwayCa


@cache
def authority() -> ThrowAwayCa:
    """Return the CA that both sides trust."""
    return ThrowAwayCa()


@cache
def of_broker() -> Issued:
    """Return the broker's certificate, for this machine."""
    return authority().issue("broker", hosts=["localhost", "127.0.0.1"])


@cache
def of_client(name: str = "alice") -> Issued:
    """Return a client's certificate."""
    return authority().issue(name)


def broker_properties(client_auth: str = "none") -> dict[str, str]:
    """TLS settings with all PEM in the configuration."""
    issued = of_broker()
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": issued.key,
        "ssl.keystore.certificate.chain": issued.certificate,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority().certificate,
        "ssl.client.auth": client_auth,
    }


def client_context(directory: Path, issued: Issued | None = None) -> ssl.SSLContext:
    """Return a client context that trusts the CA, with a certificate if one is given; its files are in `directory`."""
    context = strict_context(authority().certificate)
    if issued is not None:
        context.load_cert_chain(written(directory, issued))
    return context


def strict_context(ca: str) -> ssl.SSLContext:
    """Return a client context that trusts a CA, with the checks that are Python's default from 3.13 on."""
    context = ssl.create_default_context(cadata=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def written(directory: Path, issued: Issued) -> Path:
    """Return a PEM file with a certificate and its key."""
    file = directory / "key.pem"
    file.write_text(issued.certificate + issued.key)
    return file
