"""A certificate authority for tests. Its key exists in memory only, and its certificates are valid for 30 days.

The certificates have the extensions that RFC 5280 requires (key identifiers, key usage); Python 3.13 rejects any without them.
Keys are ECDSA on P-256: creating a CA and a certificate takes a few milliseconds, and a handshake costs a tenth of one with RSA.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 30


class Issued(NamedTuple):
    """A private key and its certificate, in PEM."""

    certificate: str
    key: str


class ThrowAwayCa:
    """A CA that signs certificates for the brokers and clients of one test."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Diamant throw-away CA")
        builder = self._builder(self._name, self._key.public_key(), is_expired=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(is_authority=True), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
        """The CA certificate in PEM, for the trust stores of clients and of brokers with client authentication."""

    def issue(self, common_name: str, *, hosts: Sequence[str] = (), is_expired: bool = False) -> Issued:
        """Issue a certificate for a client, or for a broker that clients reach by one of `hosts` (names or addresses)."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(common_name), key.public_key(), is_expired=is_expired)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(is_authority=False), critical=True)
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(usages, critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
        return Issued(
            builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_expired: bool
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * day)
            .not_valid_after(now - day if is_expired else now + VALID_DAYS * day)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer_key, critical=False)
        )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
