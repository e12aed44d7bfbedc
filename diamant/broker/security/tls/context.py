"""The OpenSSL context of a listener's handshakes, built from its settings.

As in Kafka, `ssl.enabled.protocols` sets the versions and `ssl.cipher.suites` the suites, by their standard names, and every
certificate in a trust store is trusted. Unlike in Kafka, renegotiation is refused, and client authentication requires a trust
store.
"""

from __future__ import annotations

import ssl

from diamant.broker.client.client_config import load_pem
from diamant.broker.security.tls.cipher_names import openssl_ciphers
from diamant.broker.security.tls.key_material import KeyMaterial, trusted_certificates
from diamant.broker.security.tls.tls_settings import TlsSettings
from diamant.storage.config_key import ConfigError

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(settings: TlsSettings, material: KeyMaterial) -> ssl.SSLContext:
    """Build a listener's context from its key and, if clients may authenticate, its trust store. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _allow_versions(context, settings)
    _allow_ciphers(context, settings)
    _load_key(context, settings, material)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trusted(context, settings)
    return context


def _allow_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.protocols if name not in _VERSIONS]
    if unknown or not settings.protocols:
        raise ConfigError(
            f"ssl.enabled.protocols: {', '.join(unknown) or 'no version'}; {settings.where} supports {' and '.join(_VERSIONS)}"
        )
    versions = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _allow_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.cipher_suites:
        return
    names = openssl_ciphers(settings.cipher_suites)
    if not names.of_tls_1_3:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not names.of_tls_1_2:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise ConfigError("ssl.cipher.suites: none of them belongs to a version in ssl.enabled.protocols")
    if names.of_tls_1_2:
        context.set_ciphers(":".join(names.of_tls_1_2))


def _load_key(context: ssl.SSLContext, settings: TlsSettings, material: KeyMaterial) -> None:
    name = settings.key_store.name
    try:
        load_pem(context, material.pem, lambda: _password(name, material))
    except ssl.SSLError as error:
        raise ConfigError(f"{name}: {_load_problem(error, material)}") from error


def _password(name: str, material: KeyMaterial) -> str:
    if material.password is None:
        raise ConfigError(f"{name}: its key is encrypted, and there is no ssl.key.password")
    return material.password


def _load_problem(error: ssl.SSLError, material: KeyMaterial) -> str:
    reason = error.reason or ""
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the first certificate; the broker's own certificate comes first, then those above it"
    if material.certificate and b"-----BEGIN ENCRYPTED" in material.pem:
        return "its key cannot be decrypted: ssl.key.password is wrong"
    if not material.certificate or b" PRIVATE KEY-----" not in material.pem:
        return "expected a certificate and a private key in PEM (-----BEGIN CERTIFICATE, -----BEGIN PRIVATE KEY)"
    return f"its key and certificates cannot be used: {reason or error}"


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings) -> None:
    store = settings.trust_store
    if not store.is_given:
        raise ConfigError(
            f"{store.name}: {settings.where} has ssl.client.auth={settings.client_auth} and no trust store; set this to a PEM or "
            "PKCS12 file, or ssl.truststore.certificates to PEM"
        )
    certificates = trusted_certificates(store)
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{store.name}: expected certificates in PEM (-----BEGIN CERTIFICATE): {error}") from error
    if not context.get_ca_certs() and not context.cert_store_stats()["x509"]:
        raise ConfigError(f"{store.name}: no certificate found")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java, trust a certificate without trusting its issuer
