"""Audits and erasures by users who log in as a properties file of Kafka's own tools says, and what wrong files say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.broker.client import admin as admin_module
from diamant.broker.client.admin import NotDiamant
from diamant.broker.client.client_config import ClientConfig
from diamant.broker.clusters.register import STATE_VARIABLE
from diamant.broker.security.tls.throw_away import ThrowAwayCa
from tests.broker.clusters.any_cluster import OLD_MS, SECURED, AnyCluster, diamant
from tests.broker.clusters.real_kafka import real_kafka
from tests.broker.security.sasl.sasl_wire import unsigned_token
from tests.broker.security.tls.certificates import authority, broker_properties, of_client, written
from tests.mutants import Mutant, put_in

MODULES = "org.apache.kafka.common.security"
PLAIN = f"{MODULES}.plain.PlainLoginModule required"
SCRAM = f"{MODULES}.scram.ScramLoginModule required"
BEARER = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;"
UNSECURED = f"{MODULES}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
LOGINS = {
    "plain.sasl.jaas.config": f'{PLAIN} user_alice="secret" user_bob="secret";',
    "scram-sha-256.sasl.jaas.config": f"{SCRAM};",
    "scram-sha-512.sasl.jaas.config": f"{SCRAM};",
    "oauthbearer.sasl.jaas.config": BEARER,
    "oauthbearer.sasl.server.callback.handler.class": UNSECURED,
}
PROPERTIES = {
    **broker_properties(),
    "listener.name.ssl.ssl.client.auth": "required",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "super.users": "User:ANONYMOUS;User:alice;User:CN=alice",
    **{
        f"listener.name.{name}.{key}": value for name in ("sasl_plaintext", "sasl_ssl") for key, value in LOGINS.items()
    },
}
TRUST = "ssl.truststore.type=PEM\nssl.truststore.location=@/ca.pem\n"
OWN = "ssl.keystore.type=PEM\nssl.keystore.location=@/key.pem\n"
TOKEN = "sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file://@/token\n"


def login(mechanism: str, user: str = "alice", password: str = "secret") -> str:
    """Return the lines of a login with a password."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return f'sasl.mechanism={mechanism}\nsasl.jaas.config={module} username="{user}" password="{password}";\n'


def inline() -> str:
    """Certificates and key in the properties themselves."""
    own = of_client()
    config = ClientConfig("", "SSL", ca=authority().certificate, certificate=own.certificate, key=own.key)
    return "".join(line for line in config.java().splitlines(keepends=True) if line.startswith("ssl."))


RIGHT = {
    "PLAIN": ("SASL_PLAINTEXT", login("PLAIN")),
    "SCRAM-SHA-256": ("SASL_PLAINTEXT", login("SCRAM-SHA-256")),
    "SCRAM-SHA-512 over TLS": ("SASL_SSL", login("SCRAM-SHA-512") + TRUST),
    "token": ("SASL_PLAINTEXT", TOKEN),
    "token over TLS": ("SASL_SSL", f"sasl.jaas.config={BEARER}\n{TOKEN}{TRUST}"),
    "certificate": ("SSL", TRUST + OWN),
    "certificate in the properties": ("SSL", inline()),
}
WRONG = {
    "password": ("SASL_PLAINTEXT", login("PLAIN", password="no"), "user 'alice': Authentication failed: Invalid username or"),
    "SCRAM password": ("SASL_PLAINTEXT", login("SCRAM-SHA-256", password="no"), "user 'alice': Authentication failed during"),
    "SCRAM user": ("SASL_PLAINTEXT", login("SCRAM-SHA-512", user="eve"), "user 'eve': Authentication failed during"),
    "rights": ("SASL_PLAINTEXT", login("PLAIN", user="bob"), "topic 'probed': no ACL allows this user to do that"),
    "token": ("SASL_PLAINTEXT", TOKEN.replace("/token", "/old-token"), "the broker refuses the token: "),
    "mechanism": ("SASL_PLAINTEXT", "sasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n", "expected one of SCRAM-SHA-512"),
    "property": ("SASL_PLAINTEXT", login("PLAIN") + "client.id=x\n", "client.id: not understood; remove it"),
    "CA": ("SASL_SSL", login("PLAIN") + TRUST.replace("ca.pem", "other-ca.pem"), "in --ca, or ssl.truststore.location"),
    "certificate": ("SSL", TRUST + OWN.replace("key.pem", "foreign.pem"), "requires a client certificate that it trusts"),
    "no certificate": ("SSL", TRUST, "set ssl.keystore.location in the file"),
    "no key": ("SSL", TRUST + OWN.replace("key.pem", "ca.pem"), "ssl.keystore: it has no PRIVATE KEY"),
    "no login": ("PLAINTEXT>SASL_PLAINTEXT", "", "it may require a login, or TLS"),
    "no TLS": ("SASL_PLAINTEXT>SASL_SSL", login("PLAIN"), "TLS"),
    "TLS": ("SSL>SASL_PLAINTEXT", TRUST, "expected a listener with TLS"),
    "login": ("SASL_PLAINTEXT>PLAINTEXT", login("PLAIN"), "the broker requires no login here"),
}  # fmt: skip
"""Protocol (> that of the listener), lines, and what is said."""


@pytest.fixture(scope="module", params=["diamant", pytest.param("kafka", marks=pytest.mark.slow)])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A cluster with all logins, and the client's files."""
    files = tmp_path_factory.mktemp("files")
    (files / "ca.pem").write_text(authority().certificate)
    other = ThrowAwayCa()
    (files / "other-ca.pem").write_text(other.certificate)
    foreign = other.issue("alice")
    (files / "foreign.pem").write_text(foreign.certificate + foreign.key)
    written(files, of_client())
    (files / "token").write_bytes(unsigned_token(sub="alice", exp=time.time() + 36000))
    (files / "old-token").write_bytes(unsigned_token(sub="alice", exp=1000))
    (files / "password").write_text("secret")
    path, is_diamant = tmp_path_factory.mktemp("cluster"), request.param == "diamant"
    quick = {} if is_diamant else {"log_cleaner_backoff_ms": "100"}
    with (diamant if is_diamant else real_kafka)(path, SECURED, PROPERTIES, **quick) as cluster:
        words = ["user", "add", "alice", "--password-file", str(files / "password"), "-b", cluster.bootstrap]
        done = CliRunner().invoke(main, words)
        assert not done.exit_code, done.output
        cluster.create("probed")
        yield SimpleNamespace(cluster=cluster, files=files, is_diamant=is_diamant)


def run(secured: SimpleNamespace, state: Path, protocol: str, lines: str, *words: str) -> Result:
    """Run a command with these lines as its properties file."""
    protocol, _, listener = protocol.partition(">")
    file = state / "client.properties"
    file.write_text(f"security.protocol={protocol}\n{lines}".replace("@", str(secured.files)))
    cluster: AnyCluster = secured.cluster
    address = cluster.addresses.get(listener or protocol, cluster.bootstrap)
    options = ["-b", address, "--command-config", str(file)]
    return CliRunner().invoke(main, [*words, *options], env={STATE_VARIABLE: str(state / "state")})


@pytest.mark.parametrize("how", RIGHT)
def test_a_properties_file_is_enough(
    secured: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The user's own name counts for the rights of audit, plan and erasure."""

    def find(*_: object) -> str:
        raise NotDiamant("it is asked nothing but Kafka's protocol")

    if secured.is_diamant:
        put_in(monkeypatch, Mutant(admin_module, "_find_http_url", lambda _real: find))
    name = secured.cluster.create(f"secured-{[*RIGHT].index(how)}")
    secured.cluster.produce(name, [(b"k", b"old"), (b"other", b"1")], timestamp_ms=OLD_MS)
    erase = ["erase", name, "-k", "k", "--reason", "asked"]
    codes = {"no-compaction-deadline": (["audit", name], 3), "write 1 tombstone": ([*erase, "--dry-run"], 0)}
    for said, (words, code) in {**codes, "unreadable": (erase, 0)}.items():
        done = run(secured, tmp_path, *RIGHT[how], *words)
        assert (done.exit_code, said in done.stdout) == (code, True), done.output
    assert [one.value for one in secured.cluster.held(name) if one.value] == [b"1"]


@pytest.mark.parametrize("what", WRONG)
def test_an_error_says_what_is_wrong_and_what_to_do(secured: SimpleNamespace, tmp_path: Path, what: str) -> None:
    """Alike in a command that only looks, and in an erasure: one line, no other advice, and nothing has happened."""
    protocol, lines, said = WRONG[what]
    for words in (["audit", "probed"], ["erase", "probed", "-k", "k", "--reason", "asked"]):
        done = run(secured, tmp_path, protocol, lines, *words)
        assert done.exit_code in (1, 2), done.output
        assert (said in done.stderr, done.stderr.count("\n")) == (True, 1), done.output
        assert "--token-file" not in done.stderr
        assert "Errno" not in done.stderr
