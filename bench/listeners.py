"""Listeners with TLS and with SASL beside a plain one: what a broker is told, and connections to them.

One certificate with an RSA key of 2048 bits, TLS 1.3, one cipher suite, SCRAM-SHA-512: the same for every broker.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import os
import ssl
from functools import cache
from pathlib import Path

from client import ALTER_USER_SCRAM_CREDENTIALS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Client
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

PLAINTEXT, SSL, SASL_SSL = "PLAINTEXT", "SSL", "SASL_SSL"
PORT_OF = {PLAINTEXT: 0, "CONTROLLER": 1, SSL: 2, SASL_SSL: 3}
"""Of each listener, from the first port on."""
SUITE = "TLS_AES_256_GCM_SHA384"
USER, PASSWORD, SALT, ITERATIONS = "alice", b"the password of a benchmark", b"the salt of a benchmark", 4096
MECHANISM, MECHANISM_NUMBER, HASH = "SCRAM-SHA-512", 2, "sha512"


def write_properties(path: Path, port: int) -> None:
    """Write the lines of a server.properties file that open the listeners; key and certificate go beside it."""
    pem = path.with_name("broker.pem")
    _write_certificate(pem)
    addresses = ",".join(f"{name}://127.0.0.1:{port + offset}" for name, offset in PORT_OF.items())
    protocols = ",".join(f"{name}:{PLAINTEXT if name == 'CONTROLLER' else name}" for name in PORT_OF)
    lines = (
        f"listeners={addresses}",
        f"advertised.listeners={addresses}",
        f"listener.security.protocol.map={protocols}",
        "controller.listener.names=CONTROLLER",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={pem}",
        "ssl.enabled.protocols=TLSv1.3",
        f"ssl.cipher.suites={SUITE}",
        f"sasl.enabled.mechanisms={MECHANISM}",
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    )
    path.write_text("\n".join((*lines, "")))


def context_of(properties: Path) -> ssl.SSLContext:
    """What clients trust: the certificate of these listeners."""
    return ssl.create_default_context(cafile=str(properties.with_name("broker.pem")))


def connect(port: int, name: str, context: ssl.SSLContext) -> Client:
    """A connection to one of the listeners whose first port this is, authenticated if that has SASL."""
    client = Client(port + PORT_OF[name], None if name == PLAINTEXT else context)
    if name == SASL_SSL:
        _log_in(client)
    client.call(METADATA, {"topics": []})
    return client


def create_user(client: Client) -> None:
    """Make the user that the listener with SASL asks for, and wait until it is known."""
    upsertion = {
        "name": USER,
        "mechanism": MECHANISM_NUMBER,
        "iterations": ITERATIONS,
        "salt": SALT,
        "salted_password": _salted_password(),
    }
    answer = client.call(ALTER_USER_SCRAM_CREDENTIALS, {"deletions": [], "upsertions": [upsertion]})
    if answer.results[0].error_code:
        raise RuntimeError(f"user {USER}: {answer.results[0].error_code} {answer.results[0].error_message}")


def _log_in(client: Client) -> None:
    """SCRAM without its slow step, which is the client's alone (RFC 5802)."""
    answer = client.call(SASL_HANDSHAKE, {"mechanism": MECHANISM})
    if answer.error_code:
        raise RuntimeError(f"{MECHANISM}: {answer.error_code}, the broker has {answer.mechanisms}")
    first = f"n={USER},r={os.urandom(16).hex()}"
    server_first = _token(client, f"n,,{first}")
    final = f"c=biws,{server_first.partition(',')[0]}"
    signed = f"{first},{server_first},{final}".encode()
    client_key = hmac.digest(_salted_password(), b"Client Key", HASH)
    signature = hmac.digest(hashlib.new(HASH, client_key).digest(), signed, HASH)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    _token(client, f"{final},p={base64.b64encode(proof).decode()}")


def _token(client: Client, text: str) -> str:
    answer = client.call(SASL_AUTHENTICATE, {"auth_bytes": text.encode()})
    if answer.error_code:
        raise RuntimeError(f"login of {USER}: {answer.error_code} {answer.error_message}")
    return bytes(answer.auth_bytes).decode()


@cache
def _salted_password() -> bytes:
    return hashlib.pbkdf2_hmac(HASH, PASSWORD, SALT, ITERATIONS)


def _write_certificate(pem: Path) -> None:
    key = rsa.generate_private_key(65_537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + certificate.public_bytes(Encoding.PEM))
