"""A client's properties file, as Kafka's own tools take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.client.client_properties import read_client_properties
from diamant.broker.client.login import Login
from diamant.broker.errors import BadArgument

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def written(path: Path, *lines: str) -> str:
    """A file of these lines."""
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
        (["security.protocol=SSL", "ssl.truststore.location=/x.jks"], "ssl.truststore.type"),
        (["security.protocol=SSL", "ssl.truststore.type=PEM", "ssl.truststore.certificates=x"], "certificates"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER"], "token.endpoint.url"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, lines: list[str], said: str) -> None:
    """No client connects in another way than its file says."""
    with pytest.raises(BadArgument, match=said):
        read_client_properties(written(tmp_path, *lines))
