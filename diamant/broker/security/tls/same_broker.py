"""A certificate that replaces another one has to be the same broker's, unless it is said that it need not.

Source: SslFactory.CertificateEntries.ensureCompatible (KIP-226).
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.broker.config.config_key import ConfigError
from diamant.broker.security.identity.distinguished_name import text_of


class BrokerNames(NamedTuple):
    """The names in a broker's certificate."""

    subject: str
    alternative: frozenset[str]

    def __str__(self) -> str:
        return f"{self.subject} ({', '.join(sorted(self.alternative)) or 'no alternative names'})"


def names_of_broker(pem: bytes) -> BrokerNames:
    """The names in the first certificate of some PEM."""
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName, load_pem_x509_certificate

    certificate = load_pem_x509_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        names = SubjectAlternativeName([])
    return BrokerNames(text_of(certificate.subject.public_bytes()), frozenset(str(name.value) for name in names))


def check_same_broker(old: BrokerNames, new: BrokerNames, *, dn_changes: bool, san_changes: bool) -> None:
    """Raise ConfigError if the subject has changed, or alternative names are missing, and that is not allowed."""
    if not dn_changes and old.subject != new.subject:
        raise ConfigError(
            f"the new certificate is that of {new.subject}, the present one that of {old.subject}; "
            "ssl.allow.dn.changes=true allows it"
        )
    missing = old.alternative - new.alternative
    if not san_changes and missing:
        raise ConfigError(
            f"the new certificate lacks alternative names of the present one: {', '.join(sorted(missing))}; "
            "ssl.allow.san.changes=true allows it"
        )
