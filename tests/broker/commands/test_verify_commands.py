"""`diamant verify`: option combinations, first lines, and checks of files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin
from diamant.broker.commands.admin.verify import verify
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.progress_text import progress_text
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.coverage_account import CoverageAccount
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage import names
from tests.broker.certifying_broker import on
from tests.broker.commands.test_redact_commands import WHERE, broker, prepare

__all__ = ["broker"]

TAKE = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
"""What another broker does first."""


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


def test_a_topic_that_is_gone_or_another_one_is_reported_without_being_asked(broker: Broker, issued: Issued) -> None:
    """A missing or replaced topic is reported without key or where: exit code 3 and plain words."""
    result = run(issued, *on(broker), "--where", WHERE)
    assert (result.exit_code, first_line(result)) == (0, "valid: trusted"), result.output
    for change, note in (
        (delete_topics(broker.node.topics, ["orders"]), "orders-0, orders-1: not there. The topic was deleted since"),
        (prepare(broker), "orders-0, orders-1: of another topic now"),
    ):
        broker.call(change)
        for where in ((), ("--where", WHERE)):
            result = run(issued, *on(broker), *where)
            assert result.exit_code == 3, result.output
            assert (
                first_line(result) == "NOT CONFIRMED: the signature is trusted; both of its claims could not be checked"
            )
            assert f"- {note}" in result.output


def test_files_that_were_not_looked_into_confirm_nothing(broker: Broker, issued: Issued) -> None:
    """Without a scan of records the claims are not confirmed: exit code 3 and the missing options. --offline checks only the
    signature.
    """
    said = "NOT CONFIRMED: the signature is trusted; both of its claims could not be checked"
    broker.create_topic("users", 2, compact=True)
    erasure = Admin(broker.bootstrap_servers).erase("nobody", ["users"], reason="r")["certificate"]
    other = issued._replace(certificate=f"{issued.certificate}.erasure")
    Path(other.certificate).write_text(json.dumps(erasure))
    result = run(issued, *on(broker))
    assert (result.exit_code, first_line(result), "add --where" in result.output) == (3, said, True), result.output
    assert "--secret" not in result.output
    broker.awaited.__exit__(None, None, None)
    data, secret, where = ("--data", issued.data), ("--secret", issued.secret), ("--where", WHERE)
    for which, arguments, words in (
        (
            issued,
            data,
            ("add --where", "and --secret with the file of the secret", "--offline checks only the signature"),
        ),
        (issued, (*data, *secret), ("add --where",)),
        (issued, (*data, *where), ("Without the secret",)),
        (other, data, ("add --secret with the file", "or --key with the key", "--offline checks only the signature")),
    ):
        result = run(which, *arguments)
        assert (result.exit_code, first_line(result)[:14]) == (3, "NOT CONFIRMED:"), result.output
        assert [word for word in words if word not in result.output] == []
        assert json.loads(run(which, *arguments, "--json").output)["outcome"] == "not-confirmed"
    nothing = "NOTHING WAS FOUND: the signature is trusted; nothing was removed, because nothing matched"
    for which, options, expected in (
        (issued, [*data, *secret, *where], (0, "valid: trusted")),
        (other, [*data, *secret], (4, nothing)),
        (issued, ["--offline"], (0, "valid: trusted")),
        (other, ["--offline"], (4, nothing)),
    ):
        result = run(which, *options)
        assert (result.exit_code, first_line(result)) == expected, result.output


@pytest.mark.slow
def test_a_scan_of_files_tells_how_far_it_is(broker: Broker, issued: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of files reports its progress up to all bytes."""
    broker.awaited.__exit__(None, None, None)
    seen: list[tuple[str, int, int]] = []

    def on_progress(_self: Asked, progress: dict[str, Any]) -> None:
        seen.append((progress_text(progress), progress["done"], progress["total"]))

    monkeypatch.setattr(Asked, "on_progress", on_progress)
    run(issued, "--data", issued.data, "--secret", issued.secret, "--where", WHERE)
    assert seen[-1][0].startswith("scanning everything 100 %, ")
    assert seen == sorted(seen, key=lambda one: one[1])


def test_without_a_broker_it_is_said_what_can_be_checked_all_the_same(broker: Broker, issued: Issued) -> None:
    """Without a broker, the error names the options that need none."""
    address = on(broker)
    broker.awaited.__exit__(None, None, None)
    result = run(issued, *address)
    assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
    for words in (
        "no broker answers",
        "--offline checks the signature",
        "--data DIRECTORY and --secret",
    ):
        assert words in result.output


def test_files_that_a_broker_has_are_refused(broker: Broker, issued: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a running broker change while they are read, so they are refused. Once it is stopped they are scanned under its
    lock, and nothing changes.
    """
    files = ["--data", issued.data, "--secret", issued.secret, "--where", WHERE]
    result = run(issued, *files)
    assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
    for words in ("in use by this process", "Ask the broker itself, without --data"):
        assert words in result.output
    broker.awaited.__exit__(None, None, None)
    before, tried = sorted(os.listdir(issued.data)), []
    account = CoverageAccount.put_into

    def account_while_a_broker_comes(*arguments: Any) -> None:
        lock = f"{issued.data}/{names.LOCK}"
        command = [sys.executable, "-S", "-c", TAKE, lock]
        tried.append(subprocess.run(command, capture_output=True, text=True, check=False).stderr)
        account(*arguments)

    monkeypatch.setattr(CoverageAccount, "put_into", account_while_a_broker_comes)
    result = run(issued, *files)
    assert (result.exit_code, first_line(result)) == (0, "valid: trusted"), result.output
    assert tried
    assert all("BlockingIOError" in one for one in tried)
    assert sorted(os.listdir(issued.data)) == before
    assert "not locked" not in result.output


def test_files_that_cannot_be_locked(broker: Broker, issued: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only directory is still checked, with a note that it was not locked."""
    broker.awaited.__exit__(None, None, None)
    opened = os.open

    def read_only(path: str, flags: int, *arguments: int, **options: int) -> int:
        if flags & os.O_CREAT and str(path).startswith(issued.data):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only)
    result = run(issued, "--data", issued.data, "--secret", issued.secret, "--where", WHERE)
    assert (result.exit_code, first_line(result)) == (0, "valid: trusted"), result.output
    (line,) = [line for line in result.output.splitlines() if "not locked" in line]
    assert f"{issued.data}/{names.LOCK}: Read-only file system" in line


def test_options_that_mean_nothing_are_refused(broker: Broker, issued: Issued) -> None:
    """Options of the other kind of certificate, or that exclude each other, are refused with exit code 2 and one line."""
    for arguments, words in (
        (["--key", "customer-42", *on(broker)], "certificate of a redaction: verify it with a description of records"),
        (["--key-hex", "00", "--data", issued.data], "certificate of a redaction"),
        (["--offline", "--where", WHERE], "--offline checks only the signature"),
        (["--offline", "--data", issued.data], "--offline checks only the signature"),
        (["--secret", issued.secret, *on(broker)], "--secret needs --data"),
    ):
        result = run(issued, *arguments)
        assert (result.exit_code, words in result.output, result.output.count("\n")) == (2, True, 1), result.output


def test_a_secret_that_is_none_is_called_what_it_is(broker: Broker, issued: Issued, tmp_path: Path) -> None:
    """A public key is not a secret; a secret that others can read is refused."""
    (tmp_path / "empty").mkdir()
    data = ["--data", str(tmp_path / "empty"), "--secret"]
    result = run(issued, *data, issued.public)
    assert (result.exit_code, "chmod" in result.output) == (1, False), result.output
    assert "expected the secret of the digests" in result.output
    assert "got a key in PEM" in result.output
    os.chmod(issued.secret, 0o644)
    result = run(issued, *data, issued.secret)
    assert (result.exit_code, "chmod 600 it" in result.output) == (1, True), result.output


def test_a_certificate_of_a_stranger_is_only_shown(issued: Issued) -> None:
    """Text in a certificate is neither markup nor a control sequence."""
    path = Path(issued.certificate)
    fields = {**json.loads(path.read_text()), "state": "[/red]\x1b[2J\u202e"}
    del fields["signature"]
    path.write_text(json.dumps(sign_certificate(fields, SigningKey.load(str(path.with_name("stranger.key"))))))
    result = run(issued, "--offline")
    assert (result.exit_code, type(result.exception)) == (3, SystemExit), result.output
    assert "The certificate says [/red]\\x1b[2J\\u202e; signed by" in result.output


def test_the_first_line_says_what_it_comes_to(broker: Broker, issued: Issued) -> None:
    """The headline separates a trusted signature from failed claims."""
    batch = build_batch([Record(0, 1000, None, b'{"email": "ada@example.com"}')])
    Path(issued.data, "orders-1", "00000000000000000000.log.swap").write_bytes(batch)
    result = run(issued, *on(broker), "--where", WHERE)
    said = "BROKEN: removed records are there again; 1 of its 2 claims no longer hold"
    assert (result.exit_code, first_line(result)) == (3, said), result.output
    key = SigningKey.load(issued.secret.removesuffix(".secret"))
    certificate = json.loads(Path(issued.certificate).read_text())
    unsigned = {name: value for name, value in certificate.items() if name != "signature"}
    for changes, line in (
        ({"claims": []}, "NOT VALID: the certificate contradicts itself"),
        (
            {"state": "not-certified", "claims": []},
            "NOTHING TO CONFIRM: the signature is trusted, and the certificate itself says not-certified",
        ),
    ):
        Path(issued.certificate).write_text(json.dumps(sign_certificate({**unsigned, **changes}, key)))
        result = run(issued, "--offline")
        assert (result.exit_code, first_line(result)) == (3, line), result.output
