"""`diamant certificates`: lists certificates and pending jobs, and writes one to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin
from diamant.broker.commands.admin.certificates import certificates
from diamant.cleaner.evidence.certificates.files import MAX_DESCRIBED
from tests.broker.certifying_broker import on
from tests.broker.commands.test_erase_commands import KEY, broker

__all__ = ["broker"]


def run(broker: Broker, *arguments: str) -> Result:
    return CliRunner().invoke(certificates, [*arguments, *on(broker)])


def test_the_list_has_certificates_and_pending_jobs(broker: Broker) -> None:
    """The list has the subject and issue time of each, newest last, and the pending jobs."""
    assert "There are no certificates." in run(broker).output
    admin = Admin(broker.bootstrap_servers)
    first = admin.erase(KEY, "users", reason="GDPR Art. 17", reference="ticket 7")
    second = admin.erase("nobody", "users", reason="r", reference="ticket [8]")
    result = run(broker)
    lines = result.output.splitlines()
    assert result.exit_code == 0, result.output
    for line, one in zip(lines[0:4:2], (first, second), strict=True):
        *cells, issued = line.split()
        assert (cells, issued[-1]) == ([one["id"], "erasure", one["state"]], "Z")
    assert lines[1:4:2] == ["    topics: users; reference: ticket 7", "    topics: users; reference: ticket [8]"]
    assert any(line.startswith(f"in progress: erasure {first['id']}, continues from 2") for line in lines[4:])
    assert any(
        line.startswith("    to continue at once: diamant erase-now ") and "; to cancel it: " in line for line in lines
    )
    listed = json.loads(run(broker, "--json").output)["certificates"]
    assert [(one["topics"], one["reference"], one["kind"]) for one in listed] == [
        (["users"], "ticket 7", "erasure"), (["users"], "ticket [8]", "erasure"),
    ]  # fmt: skip
    assert [one["issued_ms"] for one in listed] == [one["certificate"]["clock"]["issued_ms"] for one in (first, second)]


def test_unreadable_and_old_certificates_are_listed_by_file(broker: Broker) -> None:
    """A list reads a bounded number of certificates. Others, and damaged ones, are listed by ID, state and file."""
    admin = Admin(broker.bootstrap_servers)
    found = admin.erase("nobody", "users", reason="r", reference="ticket 7")
    path = Path(found["certificate_path"])
    later = [path.with_name(f"diamant-erasure-{number:032x}.nothing-matched.json") for number in range(MAX_DESCRIBED)]
    for one in later:
        one.write_bytes(path.read_bytes())
    os.utime(path, (0, 0))  # is the oldest, whatever the resolution of the file system's times
    listed = {one["id"]: one for one in json.loads(run(broker, "--json").output)["certificates"]}
    assert (listed[found["id"]]["topics"], listed[found["id"]]["issued_ms"]) == (None, None)
    assert listed[f"{0:032x}"]["topics"] == ["users"]
    for one in later:
        one.unlink()
    endless = json.dumps({**found["certificate"], "clock": {"issued_ms": float("inf")}})
    for text in ("{", endless, endless.replace("Infinity", "1e999"), '{"type": 1}', "[" * 100_000):
        path.write_text(text)
        result = run(broker)
        assert (result.exit_code, "NOT AS IT WAS SIGNED: it cannot be read" in result.output) == (3, True), (
            result.output
        )
        assert result.output.splitlines()[0].split()[:2] == [found["id"], "erasure"]
        assert "ticket" not in result.output


def test_texts_of_versions_before_are_only_shown(broker: Broker) -> None:
    """Older versions accepted control characters and newlines in texts; they are escaped."""
    certificate = Admin(broker.bootstrap_servers).erase("nobody", "users", reason="r")["certificate"]
    certificate["request"] |= {"reason": "a\x1b[2J", "reference": "[b]\nc"}
    path = Path(json.loads(run(broker, "--json").output)["certificates"][0]["path"])
    path.write_text(json.dumps(certificate))
    assert run(broker).output.splitlines()[1] == "    topics: users; reference: [b]\\nc"
    assert "reason: a\\x1b[2J; reference: [b]\\nc" in run(broker, certificate["id"], "--as-it-is").output


def test_one_is_fetched_and_written(broker: Broker, tmp_path: Path) -> None:
    """The last certificate of an ID is written as JSON and as a page."""
    found = Admin(broker.bootstrap_servers).erase(KEY, "users", reason="GDPR Art. 17", reference="ticket 7")
    file, page = tmp_path / "c.json", tmp_path / "c.html"
    result = run(broker, found["id"], "--certificate", str(file), "--page", str(page))
    assert (result.exit_code, json.loads(file.read_text())) == (0, found["certificate"]), result.output
    assert result.output.startswith("values-gone, issued ")
    assert "reference: ticket 7" in result.output
    assert "Certificate of erasure" in page.read_text()
    assert json.loads(run(broker, found["id"], "--json").output) == found["certificate"]
    for arguments, code, words in (
        (("nothing",), 2, "no such certificate"),
        (("--page", str(page)), 2, "need an ID"),
        ((found["id"], "--certificate", "/dev/full"), 1, "No space left"),
    ):
        result = run(broker, *arguments)
        assert (result.exit_code, words in result.output) == (code, True), result.output
