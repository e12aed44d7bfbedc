"""Reading keys and certificates: from PEM in a file or in the configuration, or from a PKCS12 file.

As in Java, the contents decide the format: a file whose type is not set (Kafka's default is JKS) may be PKCS12 or PEM.
The error for a JKS file contains the command that converts it.

Source: DefaultSslEngineFactory (KIP-651).
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.broker.security.tls.tls_settings import StoreSettings
from diamant.storage.config_key import ConfigError
from diamant.storage.input_file import read_input

MAX_STORE_BYTES = 4 * 1024 * 1024
"""The maximum size of a file with keys or certificates."""

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_JKS_STARTS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


class KeyMaterial(NamedTuple):
    """A private key and its certificate chain, in PEM, and the password if the key is encrypted."""

    pem: bytes
    password: str | None

    @property
    def certificate(self) -> bytes:
        """The first certificate, the broker's own; empty if there is none."""
        start, end = self.pem.find(_BEGIN), self.pem.find(_END)
        return self.pem[start : end + len(_END)] + b"\n" if 0 <= start < end else b""


def key_material(store: StoreSettings) -> KeyMaterial:
    """Read the key of a key store. Raises ConfigError, which names the setting but never a password."""
    if store.location is None:
        if not (store.key and store.certificates):
            raise ConfigError(
                f"{store.name}: there is no key; set this to a PEM or PKCS12 file, or ssl.keystore.key and "
                "ssl.keystore.certificate.chain to PEM"
            )
        return KeyMaterial(f"{store.certificates}\n{store.key}\n".encode(), store.key_password)
    data = _read(store)
    if _is_pem(store, data):
        return KeyMaterial(data, store.key_password)
    return _of_pkcs12(store, data)


def trusted_certificates(store: StoreSettings) -> str:
    """Read the certificates of a trust store, in PEM. Raises ConfigError."""
    if store.location is None:
        return store.certificates or ""
    data = _read(store)
    if _is_pem(store, data):
        return data.decode("ascii", "replace")
    from cryptography.hazmat.primitives.serialization import Encoding

    loaded = _loaded_pkcs12(store, data)
    certificates = [one.certificate for one in (loaded.cert, *loaded.additional_certs) if one is not None]
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def _read(store: StoreSettings) -> bytes:
    assert store.location is not None
    try:
        data = read_input(store.location, MAX_STORE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{store.name}: {store.location}: {reason}") from error
    if data.startswith(_JKS_STARTS):
        raise ConfigError(
            f"{store.name}: {store.location} is a JKS file, which only Java can read. Convert it, and set this to the new file: "
            f"keytool -importkeystore -srckeystore {store.location} "
            f"-destkeystore {_renamed(store.location)} -deststoretype PKCS12"
        )
    return data


def _renamed(location: str) -> str:
    return f"{location.removesuffix('.jks')}.p12"


def _is_pem(store: StoreSettings, data: bytes) -> bool:
    is_pem = b"-----BEGIN " in data
    if store.type == PEM and not is_pem:
        raise ConfigError(f"{store.name}: {store.location}: its type is PEM, but it has no -----BEGIN line")
    if is_pem and store.password:
        raise ConfigError(
            f"{store.name}: {store.location} is PEM, which has no store password; set ssl.key.password for an encrypted key"
        )
    return is_pem


def _of_pkcs12(store: StoreSettings, data: bytes) -> KeyMaterial:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    loaded = _loaded_pkcs12(store, data)
    if loaded.key is None or loaded.cert is None:
        raise ConfigError(f"{store.name}: {store.location} has no private key with its certificate")
    chain = [one.certificate for one in (loaded.cert, *loaded.additional_certs)]
    key = loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyMaterial(b"".join(one.public_bytes(Encoding.PEM) for one in chain) + key, None)


def _loaded_pkcs12(store: StoreSettings, data: bytes):  # type: ignore[no-untyped-def]
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        return load_pkcs12(data, store.password.encode() if store.password is not None else None)
    except ValueError as error:
        raise ConfigError(
            f"{store.name}: {store.location} cannot be opened as PKCS12: {error}. Is its password right "
            f"({store.name.removesuffix('location')}password)?"
        ) from error
