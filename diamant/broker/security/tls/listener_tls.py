"""TLS of one listener: the context of its handshakes, which can be replaced while the listener is open.

A replacement certificate has to belong to the same broker, unless a setting turns this check off.

Source: SslFactory.CertificateEntries.ensureCompatible (KIP-226).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.security.identity.authentication_counts import AuthenticationCounts
from diamant.broker.security.identity.distinguished_name import text_of
from diamant.broker.security.identity.mapping_rules import MappingRules, NoRuleApplies
from diamant.broker.security.identity.principal import ANONYMOUS, USER, Principal
from diamant.broker.security.tls.cipher_names import allowed_names
from diamant.broker.security.tls.context import server_context
from diamant.broker.security.tls.handshakes import Handshakes
from diamant.broker.security.tls.key_material import key_material
from diamant.broker.security.tls.tls_settings import TlsSettings
from diamant.storage.config_key import ConfigError

logger = logging.getLogger(__name__)

SCRATCH_BYTES = 256 * 1024
"""The size of the read buffer that all connections of a listener share."""


class NotAdmitted(Exception):
    """Raised to refuse a client whose handshake succeeded; the message gives the reason."""


class AddressCounter(Protocol):
    """Counts the connections of each address from the moment they are accepted, as in Kafka (SocketServer.Acceptor)."""

    def arrived(self, address: str, peer: str) -> bool:
        """Count a new connection; return False if its address has too many. `peer` names the connection in the log."""

    def left(self, address: str) -> None:
        """Stop counting a connection that has closed, whether it was admitted or not."""


class NewStores:
    """Replacement stores of a listener: read and checked, but not in use yet."""

    def __init__(self, tls: ListenerTls, settings: TlsSettings, config: BrokerConfig) -> None:
        """Read the files. Raises ConfigError if they cannot be used, if the settings add a trust store to a listener without one,
        or if the certificate belongs to another broker and no setting allows that.

        As in Kafka, all settings except the stores remain as they were when the listener was opened.
        """
        if settings.trust_store.is_given and not tls.settings.trust_store.is_given:
            raise ConfigError(
                "Cannot add SSL truststore to an existing listener for which no truststore was configured."
            )
        self._tls = tls
        self._settings = replace(tls.settings, key_store=settings.key_store, trust_store=settings.trust_store)
        material = key_material(self._settings.key_store)
        self._context = server_context(self._settings, material)
        self._certificate = material.certificate
        self._names = names_of_broker(self._certificate)
        check_same_broker(
            names_of_broker(tls.certificate),
            self._names,
            dn_changes=bool(config["ssl.allow.dn.changes"]),
            san_changes=bool(config["ssl.allow.san.changes"]),
        )

    def use(self) -> None:
        """Use the stores for new connections. Runs on the loop."""
        self._tls.settings, self._tls.context, self._tls.certificate = self._settings, self._context, self._certificate
        logger.info(
            "%s: key and trust stores reloaded; the certificate belongs to %s",
            self._settings.where,
            self._names,
        )


class ListenerTls:
    """TLS of one listener. Belongs to the loop thread. `log_refusal(peer, reason)` logs why a connection was closed."""

    def __init__(self, settings: TlsSettings, handshakes: Handshakes, log_refusal: Callable[[str, str], None]) -> None:
        """Read the files named by `settings`. Raises ConfigError."""
        self.settings = settings
        material = key_material(settings.key_store)
        self.certificate = material.certificate
        """The broker's certificate, in PEM."""
        self.context = server_context(settings, material)
        """The context of new connections. Replacing it does not affect open ones."""
        self.choose: Callable[[ListenerTls, str], ssl.SSLContext | None] | None = None
        """For fault injection: returns the context of a connection, given its peer, or None for the usual context."""
        self.handshakes = handshakes
        self.log_refusal = log_refusal
        self.counts = AuthenticationCounts()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._rules = MappingRules(settings.mapping_rules)
        self._cipher_names = allowed_names(settings.cipher_suites)

    def context_for(self, peer: str) -> ssl.SSLContext:
        """Return the context of a new connection."""
        chosen = None if self.choose is None else self.choose(self, peer)
        return self.context if chosen is None else chosen

    def admit(self, secured: ssl.SSLObject) -> Principal:
        """Return a client's principal after its handshake: from its certificate, else ANONYMOUS. Raises NotAdmitted."""
        cipher = secured.cipher()
        # Python's `ssl` cannot restrict the suites of TLS 1.3, so a suite that is not allowed is refused here.
        if self._cipher_names and cipher is not None and cipher[0] not in self._cipher_names:
            raise NotAdmitted(f"{cipher[0]} is not among ssl.cipher.suites")
        certificate = secured.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        from diamant.broker.security.identity.distinguished_name import subject_of

        try:
            return Principal(USER, self._rules.name_of(subject_of(certificate)))
        except (NoRuleApplies, ValueError) as error:
            raise NotAdmitted(f"no principal can be derived from the client's certificate: {error}") from error


class BrokerNames(NamedTuple):
    """The names in a broker's certificate."""

    subject: str
    alternative: frozenset[str]

    def __str__(self) -> str:
        return f"{self.subject} ({', '.join(sorted(self.alternative)) or 'no alternative names'})"


def names_of_broker(pem: bytes) -> BrokerNames:
    """Return the names in the first certificate in PEM data."""
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName, load_pem_x509_certificate

    certificate = load_pem_x509_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        names = SubjectAlternativeName([])
    return BrokerNames(text_of(certificate.subject.public_bytes()), frozenset(str(name.value) for name in names))


def check_same_broker(old: BrokerNames, new: BrokerNames, *, dn_changes: bool, san_changes: bool) -> None:
    """Raise ConfigError if the subject changed (unless `dn_changes`) or alternative names are missing (unless `san_changes`)."""
    if not dn_changes and old.subject != new.subject:
        raise ConfigError(
            f"the subject of the new certificate is {new.subject}, but the current one's is {old.subject}; "
            "ssl.allow.dn.changes=true allows it"
        )
    missing = old.alternative - new.alternative
    if not san_changes and missing:
        raise ConfigError(
            f"the new certificate lacks alternative names of the current one: {', '.join(sorted(missing))}; "
            "ssl.allow.san.changes=true allows it"
        )
