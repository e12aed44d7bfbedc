"""A client's properties file, as Kafka's own tools take it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from diamant.broker.client.client_properties import read_client_properties
from diamant.broker.client.login import Login
from diamant.broker.client.tls_problem import tls_problem
from diamant.broker.operation_errors import BadArgument
from tests.broker.security.tls.certificates import of_client

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def written(path: Path, *lines: str) -> str:
    """Return a file of these lines."""
    file = path / "client.properties"
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_and_a_password(tmp_path: Path, mechanism: str) -> None:
    """The login of the JAAS text, with its escapes, by the mechanism that is named."""
    jaas = f'sasl.jaas.config={PLAIN} username="a" \\\n  password="b\\\\"c; d";'
    path = written(
        tmp_path, "bootstrap.servers=k:1", "security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", jaas
    )
    assert read_client_properties(path) == ("k:1", Login("a", 'b"c; d', mechanism), None)


def test_a_token_in_a_file(tmp_path: Path) -> None:
    """OAUTHBEARER takes the token from the file that the URL names, without its newline."""
    (tmp_path / "token").write_text("abc.def\n")
    url = f"sasl.oauthbearer.token.endpoint.url=file://{tmp_path}/token"
    path = written(tmp_path, "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", url)
    assert read_client_properties(path).login == Login("", "abc.def", "OAUTHBEARER")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["client.dns.lookup=x"], "client.dns.lookup"),
        (["security.protocol=TLS"], "security.protocol=TLS"),
        (["security.protocol=SASL_SSL"], "sasl.mechanism=GSSAPI"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", f"sasl.jaas.config={PLAIN} username=a;"], "username"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.jaas.config=x"], "sasl.jaas.config"),
        (
            ["security.protocol=SSL", "ssl.truststore.location=/x", "ssl.truststore.password=x"],
            "ssl.truststore.type=JKS",
        ),
        (["security.protocol=SSL", "ssl.keystore.type=PKCS12", "ssl.keystore.location=/x"], "ssl.keystore.type=PKCS12"),
        (
            ["security.protocol=SSL", "ssl.keystore.type=PEM", "ssl.keystore.location=/x", "ssl.keystore.key=x"],
            "either the file, or",
        ),
        (["security.protocol=SASL_SSL", "sasl.kerberos.service.name=kafka"], "sasl.mechanism=GSSAPI"),
        (["security.protocol=SSL", "ssl.truststore.type=PEM", "ssl.truststore.certificates=x"], "certificates"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER"], "token.endpoint.url"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, lines: list[str], said: str) -> None:
    """No client connects in another way than its file says."""
    with pytest.raises(BadArgument, match=said):
        read_client_properties(written(tmp_path, *lines))


@pytest.mark.parametrize(("code", "said"), [(62, "addresses in the broker's certificate"), (20, "in --ca, or")])
def test_a_certificate_that_fails_its_check_is_told_by_its_cure(code: int, said: str) -> None:
    """One of another host needs another address, one of an unknown CA needs that CA."""
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "failed"
    assert said in tls_problem(error)[0]


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("", "own", "it has no CERTIFICATE"),
        ("own", "", "it has no PRIVATE KEY"),
        ("", "", "it has no CERTIFICATE and no PRIVATE KEY"),
        ("own", "other", "key that belongs to it"),
        ("own", "encrypted", "ssl.key.password"),
    ],
)
def test_what_a_key_store_lacks_is_named(tmp_path: Path, certificate: str, key: str, said: str) -> None:
    """Also if its file is empty: without a certificate the client would be another user."""
    own = of_client()
    found = load_pem_private_key(own.key.encode(), None)
    secret = found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")).decode()
    keys = {"": "", "own": own.key, "other": of_client("bob").key, "encrypted": secret}
    (tmp_path / "own.pem").write_text((own.certificate if certificate else "") + keys[key])
    store = ["ssl.keystore.type=PEM", f"ssl.keystore.location={tmp_path}/own.pem"]
    with pytest.raises(BadArgument, match=said):
        read_client_properties(written(tmp_path, "security.protocol=SSL", *store))
