"""The check that a replacement certificate belongs to the same broker. A setting turns it off.

Source: SslFactory.CertificateEntries.ensureCompatible (KIP-226).
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.broker.security.identity.distinguished_name import text_of
from diamant.storage.config_key import ConfigError


class BrokerNames(NamedTuple):
    """The names in a broker's certificate."""

    subject: str
    alternative: frozenset[str]

    def __str__(self) -> str:
        return f"{self.subject} ({', '.join(sorted(self.alternative)) or 'no alternative names'})"


def names_of_broker(pem: bytes) -> BrokerNames:
    """The names in the first certificate of a PEM text."""
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName, load_pem_x509_certificate

    certificate = load_pem_x509_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        names = SubjectAlternativeName([])
    return BrokerNames(text_of(certificate.subject.public_bytes()), frozenset(str(name.value) for name in names))


def check_same_broker(old: BrokerNames, new: BrokerNames, *, dn_changes: bool, san_changes: bool) -> None:
    """Raise ConfigError if the subject has changed or alternative names are missing, and the setting does not allow it."""
    if not dn_changes and old.subject != new.subject:
        raise ConfigError(
            f"the subject of the new certificate is {new.subject}, of the present one {old.subject}; "
            "ssl.allow.dn.changes=true allows it"
        )
    missing = old.alternative - new.alternative
    if not san_changes and missing:
        raise ConfigError(
            f"the new certificate lacks alternative names of the present one: {', '.join(sorted(missing))}; "
            "ssl.allow.san.changes=true allows it"
        )
