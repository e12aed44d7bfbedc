"""Keys, certificates and settings of TLS: the accepted ones, and the errors of others."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Listener
from diamant.broker.security.tls.cipher_names import openssl_ciphers
from diamant.broker.security.tls.context import server_context
from diamant.broker.security.tls.key_material import key_material
from diamant.broker.security.tls.tls_settings import TlsSettings
from diamant.storage.config_key import ConfigError
from tests.broker.security.tls.certificates import authority, broker_properties, of_broker

SECRET = BestAvailableEncryption(b"secret")


def context_of(properties: dict[str, str], listen: str = "SSL://127.0.0.1:0") -> ssl.SSLContext:
    """Return the context of the listener of a broker with these settings."""
    config = BrokerConfig(listen=listen, properties=properties)
    settings = TlsSettings.of_listener(config, config.listeners[0])
    return server_context(settings, key_material(settings.key_store))


def pkcs12_file(directory: Path) -> Path:
    """Return a PKCS12 key store with the password `secret`."""
    key = load_pem_private_key(of_broker().key.encode(), None)
    certificate, ca = (
        load_pem_x509_certificate(pem.encode()) for pem in (of_broker().certificate, authority().certificate)
    )
    file = directory / "key.p12"
    file.write_bytes(pkcs12.serialize_key_and_certificates(b"kafka", key, certificate, [ca], SECRET))  # type: ignore[arg-type]
    return file


def encrypted_pem(directory: Path) -> Path:
    """Return a PEM file with a key encrypted by `secret`."""
    key = load_pem_private_key(of_broker().key.encode(), None)
    file = directory / "key.pem"
    file.write_text(of_broker().certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, SECRET).decode())
    return file


@pytest.mark.parametrize("type_name", [{}, {"ssl.keystore.type": "PKCS12"}])
def test_a_pkcs12_file_is_a_key_store(tmp_path: Path, type_name: dict[str, str]) -> None:
    """The store's contents decide, even if its type is not set."""
    context_of({"ssl.keystore.location": str(pkcs12_file(tmp_path)), "ssl.keystore.password": "secret", **type_name})


def test_an_encrypted_key_is_opened_by_its_password(tmp_path: Path) -> None:
    """The password opens an encrypted key in a file and in the configuration."""
    file = encrypted_pem(tmp_path)
    context_of({"ssl.keystore.location": str(file), "ssl.key.password": "secret"})
    pem = file.read_text()
    context_of(
        {
            "ssl.keystore.key": pem,
            "ssl.keystore.certificate.chain": of_broker().certificate,
            "ssl.key.password": "secret",
        }
    )


def test_a_pkcs12_file_is_a_trust_store(tmp_path: Path) -> None:
    """Every certificate in it is trusted."""
    store = {"ssl.truststore.location": str(pkcs12_file(tmp_path)), "ssl.truststore.password": "secret"}
    properties = {**broker_properties("required"), "ssl.truststore.type": "JKS", **store}
    assert context_of(properties).cert_store_stats()["x509"] == 2


def test_each_error_of_a_store_names_its_setting(tmp_path: Path) -> None:
    """Each error names its setting and never shows a password."""
    jks, junk, key_only = tmp_path / "key.jks", tmp_path / "junk", tmp_path / "key-only.pem"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    junk.write_bytes(b"junk")
    key_only.write_text(of_broker().key)
    mixed = {
        "ssl.keystore.key": authority().issue("other").key,
        "ssl.keystore.certificate.chain": of_broker().certificate,
    }
    located = [
        (
            jks,
            {},
            f"keytool -importkeystore -srckeystore {jks} -destkeystore {tmp_path / 'key.p12'} -deststoretype PKCS12",
        ),
        (tmp_path / "none", {}, "No such file or directory"),
        (junk, {}, "cannot be opened as PKCS12"),
        (junk, {"ssl.keystore.type": "PEM"}, "its type is PEM, but it has no -----BEGIN line"),
        (key_only, {}, "expected a certificate and a private key in PEM"),
        (encrypted_pem(tmp_path), {}, "its key is encrypted, and there is no ssl.key.password"),
        (encrypted_pem(tmp_path), {"ssl.key.password": "hush"}, "ssl.key.password is wrong"),
        (encrypted_pem(tmp_path), {"ssl.keystore.password": "hush"}, "is PEM, which has no store password"),
        (pkcs12_file(tmp_path), {"ssl.keystore.password": "hush"}, "Is its password right (ssl.keystore.password)?"),
    ]
    for properties, reason in [
        ({}, "ssl.keystore.location: there is no key"),
        (mixed, "the key does not belong to the first certificate"),
        *(({"ssl.keystore.location": str(file), **more}, reason) for file, more, reason in located),
    ]:
        with pytest.raises(ConfigError) as caught:
            context_of(properties)
        assert reason in str(caught.value)
        assert str(caught.value).startswith("ssl.keystore.location: ")
        assert "hush" not in str(caught.value)


def test_client_certificates_need_a_trust_store() -> None:
    """Otherwise every CA trusted by the system could issue client certificates."""
    properties = {**broker_properties("required"), "ssl.truststore.certificates": ""}
    with pytest.raises(ConfigError, match="and no trust store"):
        context_of(properties)
    with pytest.raises(ConfigError, match="expected certificates in PEM"):
        context_of({**properties, "ssl.truststore.certificates": "none"})


def test_beside_sasl_only_the_listeners_own_client_authentication_counts() -> None:
    """With SASL on a listener, only its own client authentication counts, as in Kafka (KIP-684)."""
    listener = Listener("SASL_SSL", "127.0.0.1", 0, "SASL_SSL")
    sasl = {**broker_properties("required"), "sasl.enabled.mechanisms": "PLAIN"}
    assert TlsSettings.of_listener(BrokerConfig(listen=str(listener), properties=sasl), listener).client_auth == "none"
    sasl["listener.name.sasl_ssl.ssl.client.auth"] = "requested"
    assert (
        TlsSettings.of_listener(BrokerConfig(listen=str(listener), properties=sasl), listener).client_auth
        == "requested"
    )


def test_versions_and_suites() -> None:
    """Cipher suites of only one TLS version disable the other version."""
    only_1_2 = context_of({**broker_properties(), "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"})
    assert only_1_2.maximum_version == ssl.TLSVersion.TLSv1_2
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in {cipher["name"] for cipher in only_1_2.get_ciphers()}
    only_1_3 = context_of({**broker_properties(), "ssl.enabled.protocols": "TLSv1.3"})
    assert only_1_3.minimum_version == ssl.TLSVersion.TLSv1_3
    for name, value, reason in (
        ("ssl.cipher.suites", "TLS_NO_SUCH", "TLS_NO_SUCH: OpenSSL .* has no such suite"),
        ("ssl.enabled.protocols", "TLSv1", "TLSv1.2"),
    ):
        with pytest.raises(ConfigError, match=reason):
            context_of({**broker_properties(), name: value})
    with pytest.raises(ConfigError, match="none of them belongs to a version"):
        context_of(
            {
                **broker_properties(),
                "ssl.enabled.protocols": "TLSv1.3",
                "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384",
            }
        )


@pytest.mark.parametrize(
    ("suite", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "DHE-RSA-AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_standard_names_become_openssls(suite: str, openssl: str) -> None:
    """Names of TLS 1.2 are translated; those of TLS 1.3 are the same."""
    assert openssl_ciphers([suite]).of_tls_1_2 == (openssl,)
    assert openssl_ciphers(["TLS_AES_128_GCM_SHA256"]).of_tls_1_3 == ("TLS_AES_128_GCM_SHA256",)
