"""`diamant verify` as its users have it: what goes together, what the first line says, and what is asked of the files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from diamant.admin import Admin
from diamant.broker.broker import Broker
from diamant.broker.commands.verify import verify
from diamant.cleaner.evidence.certificate import sign
from diamant.cleaner.evidence.signing_key import SigningKey
from diamant.protocol.records import Record, build_batch
from tests.broker.test_redact_commands import WHERE, broker, on, prepare

__all__ = ["broker"]


class Issued(NamedTuple):
    """A certificate and the key files, as paths."""

    certificate: str
    public: str
    secret: str
    data: str


@pytest.fixture
def issued(broker: Broker, tmp_path: Path) -> Issued:
    """The certificate of a redaction."""
    found = Admin(broker.bootstrap_servers).redact("orders", WHERE, reason="GDPR Art. 17")
    certificate, public = tmp_path / "c.json", tmp_path / "public.pem"
    certificate.write_text(json.dumps(found["certificate"]))
    public.write_text(SigningKey.load(str(tmp_path / "certificate.key")).public_pem)
    return Issued(str(certificate), str(public), str(tmp_path / "certificate.key.secret"), str(tmp_path / "data"))


def run(issued: Issued, *arguments: str) -> Result:
    return CliRunner().invoke(verify, [issued.certificate, "--public-key", issued.public, *arguments])


def first_line(result: Result) -> str:
    return result.output.splitlines()[0]


def test_a_topic_that_is_gone_or_another_one_is_told_without_being_asked(broker: Broker, issued: Issued) -> None:
    """Neither key nor where is needed for that: exit code 3, and what is so in plain words."""
    result = run(issued, *on(broker))
    assert (result.exit_code, first_line(result)) == (0, "valid: trusted"), result.output
    for change, note in (
        (broker.topics.delete(["orders"]), "orders-0, orders-1: not there. The topic was deleted since"),
        (prepare(broker), "orders-0, orders-1: of another topic now"),
    ):
        broker.call(change)
        for where in ((), ("--where", WHERE)):
            result = run(issued, *on(broker), *where)
            assert result.exit_code == 3, result.output
            assert first_line(result) == "NOT CONFIRMED: the signature is trusted; of 2 claims 2 cannot be told"
            assert f"- {note}" in result.output


def test_files_that_a_broker_has_are_refused(broker: Broker, issued: Issued) -> None:
    """They change while they are read; once it is stopped they are looked at, and no broker can take them meanwhile."""
    files = ["--data", issued.data, "--secret", issued.secret, "--where", WHERE]
    result = run(issued, *files)
    assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
    for words in ("in use by this process", "Ask the broker itself, without --data"):
        assert words in result.output
    broker.__exit__(None, None, None)
    result = run(issued, *files)
    assert (result.exit_code, first_line(result)) == (0, "valid: trusted"), result.output


def test_options_that_mean_nothing_are_refused(broker: Broker, issued: Issued) -> None:
    """Of the other kind of certificate, or beside another option: exit code 2 and one line."""
    for arguments, words in (
        (["--key", "customer-42", *on(broker)], "certificate of a redaction: it is about a description of records"),
        (["--key-hex", "00", "--data", issued.data], "certificate of a redaction"),
        (["--offline", "--where", WHERE], "--offline checks the signature only"),
        (["--offline", "--data", issued.data], "--offline checks the signature only"),
        (["--secret", issued.secret, *on(broker)], "--secret goes with --data"),
    ):
        result = run(issued, *arguments)
        assert (result.exit_code, words in result.output, result.output.count("\n")) == (2, True, 1), result.output


def test_a_secret_that_is_none_is_called_what_it_is(broker: Broker, issued: Issued, tmp_path: Path) -> None:
    """A public key may be read by others, and is no secret; a secret that others may read is refused."""
    (tmp_path / "empty").mkdir()
    data = ["--data", str(tmp_path / "empty"), "--secret"]
    result = run(issued, *data, issued.public)
    assert (result.exit_code, "chmod" in result.output) == (1, False), result.output
    assert "expected the secret of the digests" in result.output
    assert "this is a key in PEM" in result.output
    os.chmod(issued.secret, 0o644)
    result = run(issued, *data, issued.secret)
    assert (result.exit_code, "chmod 600 it" in result.output) == (1, True), result.output


def test_the_first_line_says_what_it_comes_to(broker: Broker, issued: Issued) -> None:
    """Trusted is the signature; what is against the rest is said, not that a trusted thing is not valid."""
    batch = build_batch([Record(0, 1000, None, b'{"email": "ada@example.com"}')])
    Path(issued.data, "orders-1", "00000000000000000000.log.swap").write_bytes(batch)
    result = run(issued, *on(broker), "--where", WHERE)
    said = "BROKEN: what was gone is there again; of 2 claims 1 do not hold"
    assert (result.exit_code, first_line(result)) == (3, said), result.output
    key = SigningKey.load(issued.secret.removesuffix(".secret"))
    certificate = json.loads(Path(issued.certificate).read_text())
    unsigned = {name: value for name, value in certificate.items() if name != "signature"}
    for changes, line in (
        ({"claims": []}, "NOT VALID: what the certificate says does not add up"),
        (
            {"state": "not-certified", "claims": []},
            "NOTHING TO CONFIRM: the signature is trusted, and the certificate itself says not-certified",
        ),
    ):
        Path(issued.certificate).write_text(json.dumps(sign({**unsigned, **changes}, key)))
        result = run(issued, "--offline")
        assert (result.exit_code, first_line(result)) == (3, line), result.output
