"""The translation of cipher suites' standard names, which Java and Kafka use, to OpenSSL's names.

`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` is `ECDHE-RSA-AES256-GCM-SHA384` in OpenSSL. TLS 1.3 suites have the same name in both.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import NamedTuple

from diamant.storage.config_key import ConfigError


class OpenSslCiphers(NamedTuple):
    """OpenSSL's names of configured cipher suites, in their configured order."""

    of_tls_1_2: tuple[str, ...]
    of_tls_1_3: tuple[str, ...]


def openssl_ciphers(suites: Sequence[str]) -> OpenSslCiphers:
    """Translate suites, given by standard or OpenSSL names, to OpenSSL's names. Raises ConfigError if this OpenSSL lacks one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL")
    known = {cipher["name"]: cipher["protocol"] for cipher in context.get_ciphers()}
    names = [_openssl_name(suite) for suite in suites]
    missing = [suite for suite, name in zip(suites, names, strict=True) if name not in known]
    if missing:
        raise ConfigError(f"ssl.cipher.suites: {', '.join(missing)}: {ssl.OPENSSL_VERSION} has no such suite")
    return OpenSslCiphers(
        tuple(name for name in names if known[name] != "TLSv1.3"),
        tuple(name for name in names if known[name] == "TLSv1.3"),
    )


def allowed_names(suites: Sequence[str]) -> frozenset[str]:
    """Return OpenSSL's names of the allowed suites; an empty set if all are allowed."""
    return frozenset().union(*openssl_ciphers(suites)) if suites else frozenset()


def _openssl_name(suite: str) -> str:
    exchange, with_, rest = suite.removeprefix("TLS_").partition("_WITH_")
    if not with_:
        return suite
    name = f"{exchange}_{rest}".removeprefix("RSA_")
    name = (
        name.replace("AES_128_", "AES128_")
        .replace("AES_256_", "AES256_")
        .removesuffix("_SHA256" if "POLY1305" in rest else "")
    )
    for mode in ("AES128", "AES256"):
        name = name.replace(f"{mode}_CBC_", f"{mode}_")
    return name.replace("_", "-")
