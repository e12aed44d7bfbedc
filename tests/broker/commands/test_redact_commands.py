"""Redactions over HTTP, with the client and on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.commands.admin.redact import redact
from diamant.broker.commands.admin.verify import verify
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.certifying_broker import certifying_broker, on, run

EMAIL = "ada@example.com"
WHERE = f'value.email == "{EMAIL}"'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with HTTP in its own thread, and a topic in which two of three records match."""
    with certifying_broker(tmp_path, prepare) as running:
        yield running


async def prepare(broker: Broker) -> None:
    await broker.awaited.create_topic("orders", 2)
    values = [b'{"email": "ada@example.com", "n": 1}', b'{"email": "bob@example.com"}', b'{"email": "ada@example.com"}']
    records = [Record(offset, 1000, None, value) for offset, value in enumerate(values)]
    broker.node.topics.log("orders", 1).append_as_leader(memoryview(build_batch(records, codec=2)))


@pytest.mark.slow
def test_jobs_and_errors_tell_nothing_of_what_was_looked_for(broker: Broker) -> None:
    """No response has the searched text: 400 for a wrong condition or a reason with it, 404 for a topic, 409 for all records."""
    admin = Admin(broker.bootstrap_servers)
    for topic, where, reason, status, code in (
        ("orders", f'value.email = "{EMAIL}"', "r", 400, "bad-argument"),
        ("orders", WHERE, f"mail of {EMAIL}", 400, "bad-argument"),
        ("nothing", WHERE, "r", 404, "not-found"),
        ("orders", f'value.email exists or key == "{EMAIL}"', "r", 409, "everything-matches"),
    ):
        with pytest.raises(AdminError) as error:
            admin.redact(topic, where, reason=reason)
        assert (error.value.status, error.value.code) == (status, code)
        assert EMAIL not in str(error.value)
    assert EMAIL not in json.dumps(admin.call("GET", "/v1/jobs"))


def test_the_command_redacts_and_writes_certificate_and_page(broker: Broker, tmp_path: Path) -> None:
    """The exit code is 0; another command verifies the certificate, with and without a broker. A restored backup breaks its
    claim.
    """
    certificate, page, public = tmp_path / "c.json", tmp_path / "c.html", tmp_path / "public.pem"
    without_lock = shutil.ignore_patterns(".lock")
    backup = ["--data", str(shutil.copytree(tmp_path / "data", tmp_path / "backup", ignore=without_lock))]
    outputs = ["--certificate", str(certificate), "--page", str(page)]
    result = run(redact, "orders", "--where", WHERE, "--reason", "asked for", *outputs, *on(broker))
    assert (result.exit_code, EMAIL in result.output) == (0, False), result.output
    assert "records-gone" in result.output
    assert "orders-1" in result.output
    assert "Certificate of redaction" in page.read_text()
    public.write_text(SigningKey.load(str(tmp_path / "certificate.key")).public_pem)
    pinned = ["--public-key", str(public)]
    secret = ["--secret", str(tmp_path / "certificate.key.secret")]
    data = ["--data", str(shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=without_lock))]
    (tmp_path / "empty").mkdir()
    empty = ["--data", str(tmp_path / "empty")]
    for arguments, code, word in (
        ([*pinned, "--where", WHERE, *on(broker)], 0, "holds"),
        ([*pinned, *on(broker)], 3, "not given"),
        ([*pinned, "--offline"], 0, "trusted"),
        ([*pinned, *data, *secret, "--where", WHERE], 0, "holds"),
        ([*pinned, *data, *secret, "--where", 'key == "x"'], 3, "not that of the certificate"),
        ([*pinned, *data, "--where", "key is x"], 2, "where: at character"),
        ([*pinned, *data, "--where", WHERE], 3, "cannot be told"),
        ([*pinned, *data, "--where", 'key == "x"'], 3, "no claim is confirmed"),
        ([*pinned, *backup, *secret, "--where", WHERE], 3, "broken"),
        ([*pinned, *empty, *secret, "--where", WHERE], 3, "cannot be told"),
        ([*pinned, *empty], 3, "orders-0, orders-1: not there"),
    ):
        result = run(verify, str(certificate), *arguments)
        assert (result.exit_code, word in result.output) == (code, True), result.output


def test_everything_at_once_needs_an_option(broker: Broker) -> None:
    """Without the option nothing changes, and the error names the option."""
    where = ["--where", "value.email exists", "--reason", "r"]
    result = run(redact, "orders", *where, *on(broker))
    assert (result.exit_code, "set yes_all" in result.output) == (2, True)
    result = run(redact, "orders", *where, "--yes-all", "--json", *on(broker))
    assert (result.exit_code, json.loads(result.output)["removed"]) == (0, 3), result.output
    result = run(redact, "orders", *where, *on(broker))
    first = result.output.splitlines()[0]
    assert (result.exit_code, first[:17]) == (4, "NOTHING WAS FOUND"), result.output
    assert "no record of orders matches value.email exists, so nothing was removed" in first


def test_mistakes_are_one_line(broker: Broker) -> None:
    """A user's error has exit code 2 and one line without the searched text."""
    for topic, where, reason in (
        ("orders", f"key = '{EMAIL}'", "r"),
        ("nothing", f"key == '{EMAIL}'", "r"),
        ("orders", WHERE, f"mail of {EMAIL}"),
    ):
        result = run(redact, topic, "--where", where, "--reason", reason, *on(broker))
        assert (result.exit_code, result.output.count("\n"), EMAIL in result.output) == (2, 1, False), result.output


def append(broker: Broker, value: bytes, **batch: Any) -> None:
    """Append a record to a partition that has none."""

    async def write() -> None:
        records = [Record(0, 1000, None, value)]
        broker.node.topics.log("orders", 0).append_as_leader(memoryview(build_batch(records, **batch)))

    broker.call(write())


def test_an_open_transaction_is_reported_by_the_exit_code(broker: Broker) -> None:
    """An open transaction gives exit code 3."""
    in_transaction = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    append(broker, b'{"email": "ada@example.com"}', **in_transaction)
    result = run(redact, "orders", "--where", WHERE, "--reason", "r", *on(broker))
    assert result.exit_code == 3, result.output
    assert "1 of them match" in result.output
    assert "The broker continues it" in result.output


def test_a_path_that_is_wrong_does_not_look_like_success(broker: Broker, tmp_path: Path) -> None:
    """The exit code is 3; the error has the number of records that contain the text and the first one's place, not the text
    itself.
    """
    page = tmp_path / "page.html"
    where = ["--where", f'value.customer.mail == "{EMAIL}"', "--reason", "r", "--page", str(page)]
    result = run(redact, "orders", *where, *on(broker))
    said = " ".join(result.output.split())
    assert (result.exit_code, EMAIL in said) == (3, False), said
    assert said.startswith(
        "NOTHING WAS REMOVED: no record of orders matches value.customer.mail == ?, but 2 records hold"
    )
    assert "orders-1 at offset 0" in said
    assert "2 records of the topic hold what was looked for" in page.read_text()
    found = json.loads(run(redact, "orders", *where, "--json", *on(broker)).output)
    assert (found["state"], found["removed"]) == ("nothing-matched", 0)
    assert found["unmatched"] == found["certificate"]["unmatched"]
    assert [one["offset"] for one in found["unmatched"]["first"]] == [0, 2]
    result = run(redact, "orders", "--where", 'value.mail == "nobody"', "--reason", "r", *on(broker))
    assert (result.exit_code, "Other places were not searched" in result.output) == (4, True), result.output


def test_undecided_records_are_reported_with_what_to_do(broker: Broker) -> None:
    """They give exit code 3, hints, and no certified offset; --undecided remove removes them."""
    append(broker, b'{"email": "ada@example.com"} and more')
    arguments = ["orders", "--where", WHERE, "--reason", "r", *on(broker)]
    result = run(redact, *arguments)
    assert (result.exit_code, "repeat the command with" in " ".join(result.output.split())) == (3, True), result.output
    assert "orders-0/00000000000000000000.log, offset 0: it cannot be decided" in result.output
    assert "1 record contains the searched text, but cannot be decoded." in " ".join(result.output.split())
    rows = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line.startswith(" orders-")}
    assert rows["orders-0"] == ["0", "0", "-", "inconclusive"]
    assert rows["orders-1"] == ["2", "0", "3", "records-gone"]
    result = run(redact, *arguments, "--undecided", "remove")
    assert (result.exit_code, "records-gone" in result.output) == (0, True), result.output


def test_a_matching_record_that_cannot_be_changed_is_called_that(broker: Broker) -> None:
    """The error has the reason and the first place, and no advice to remove the record; kept, it is no case of nothing found."""
    arguments = [
        "orders",
        "--where",
        WHERE,
        "--reason",
        "r",
        "--blank",
        "value.n",
        "--blank-with",
        "default",
        *on(broker),
    ]
    result = run(redact, *arguments)
    said = " ".join(result.output.split())
    assert result.exit_code == 3, result.output
    assert "1 matching record could not be changed: JSON has no default (first: orders-1@0)" in said
    assert "with --undecided keep" in said
    assert not [text for text in ("NO MATCHING RECORD", "searched text", "remove or keep") if text in said]
    result = run(redact, *arguments, "--undecided", "keep")
    assert (result.exit_code, "NOTHING WAS FOUND" in result.output) == (0, False), result.output
    assert "fields-blanked, certificate" in " ".join(result.output.split())


def test_the_command_blanks_and_corrects_fields(broker: Broker, tmp_path: Path) -> None:
    """Exit code 0, and 3 if no record has a field. The certificate of given values is confirmed by these."""
    certificate = str(tmp_path / "c.json")
    asked = ["orders", "--where", WHERE, "--reason", "r", *on(broker), "--certificate", certificate]
    result = run(redact, *asked, "--blank", "value.n", "--blank", "value.m", "--blank-with", "empty")
    assert (result.exit_code, "NO MATCHING RECORD HAS value.m" in result.output) == (3, True), result.output
    assert "fields-blanked" in result.output
    given = ["--set", 'value.n="Ada L."']
    result = run(redact, *asked, *given, "--blank", "value.email")
    assert result.exit_code == 0, result.output
    assert "changed" in result.output
    for arguments, word in ((given, "holds"), ([], "cannot be told")):
        result = run(verify, certificate, "--where", WHERE, *arguments, *on(broker))
        assert word in result.output, result.output
