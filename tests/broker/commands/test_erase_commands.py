"""Erasures over HTTP and on the command line, and the certificate's page."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.commands.admin.cancel import cancel
from diamant.broker.commands.admin.erase import erase, erase_now
from diamant.broker.commands.admin.explain import explain
from diamant.broker.commands.admin.redact import redact
from diamant.broker.commands.admin.verify import verify
from diamant.cleaner.evidence.certificates.certificate import canonical, merkle_root
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.certifying_broker import certifying_broker, on, run
from tests.broker.groups.offsets.offset_requests import NONE, commit, find_coordinator
from tests.broker.wire import WireClient

KEY = "customer-42"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with HTTP in its own thread, and a topic with the key."""
    with certifying_broker(tmp_path, prepare) as running:
        yield running


async def prepare(broker: Broker) -> None:
    await broker.awaited.create_topic("users", 2, compact=True)
    write(broker)


def write(broker: Broker) -> None:
    records = [Record(0, 1000, KEY.encode(), b"the first of two values"), Record(1, 1000, KEY.encode(), b"v2")]
    broker.node.topics.log("users", 1).append_as_leader(memoryview(build_batch(records, codec=2)))


def test_the_path_of_a_certificate_is_shown_as_it_is(tmp_path: Path) -> None:
    """Brackets in the path are not markup."""
    directory = tmp_path / "[/b]"
    directory.mkdir(parents=True)
    with certifying_broker(directory, prepare) as broker:
        reason = ["--reason", "r"]
        results = [
            run(erase, "users", "--key", KEY, *reason, *on(broker)),
            run(redact, "users", "--where", "key exists", "--yes-all", *reason, *on(broker)),
            run(
                cancel,
                broker.call(broker.services.erasures().queue.unfinished_on_disk())[0]["id"],
                *reason,
                *on(broker),
            ),
        ]
    for result in results:
        assert (result.exit_code, f"certificate {directory}/data/diamant-" in result.output) == (0, True), result.output


def test_the_command_erases_and_writes_certificate_and_page(broker: Broker, tmp_path: Path) -> None:
    """The exit code is 0; another command verifies the certificate, with and without a broker."""
    certificate, page, public = tmp_path / "c.json", tmp_path / "c.html", tmp_path / "public.pem"
    outputs = ["--certificate", str(certificate), "--page", str(page)]
    result = run(erase, "users", "--key", KEY, "--reason", "asked for", *outputs, *on(broker))
    assert (result.exit_code, KEY in result.output, "values-gone" in result.output) == (0, False, True), result.output
    assert "Certificate of erasure" in page.read_text()
    public.write_text(SigningKey.load(str(tmp_path / "certificate.key")).public_pem)
    pinned = ["--public-key", str(public)]
    copy = str(shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns(".lock")))
    whole = certificate.read_text()
    changed = json.dumps({**json.loads(whole), "state": "key-gone"})
    for text, arguments, code, word in (
        (whole, [*pinned, *on(broker)], 0, "valid"),
        (whole, on(broker), 3, "untrusted signer"),
        (whole, [*pinned, "--offline"], 0, "trusted"),
        (whole, [*pinned, "--data", copy, "--key", KEY], 3, "no claim is confirmed"),
        (whole, [*pinned, "--data", copy, "--secret", str(tmp_path / "certificate.key.secret")], 0, "holds"),
        (changed, [*pinned, "--offline"], 3, "NOT VALID"),
        (changed[:500], [*pinned, "--offline"], 3, "cut off"),
    ):
        certificate.write_text(text)
        result = run(verify, str(certificate), *arguments)
        assert (result.exit_code, word in result.output) == (code, True), result.output


def test_the_command_asks_before_it_overrides_the_horizon(broker: Broker, tmp_path: Path) -> None:
    """Without consent the tombstone stays, with hints for the next steps; --confirm-groups-behind removes it, too."""
    certificate = tmp_path / "c.json"
    arguments = ["users", "--key", KEY, "--reason", "r", "--now", "--certificate", str(certificate), *on(broker)]
    for answer in ("", "n\n"):
        result = CliRunner().invoke(erase, arguments, input=answer)
        assert (result.exit_code, "no group" in result.output) == (3, True), result.output
        kept = json.loads(certificate.read_text())
        assert kept["state"] == "values-gone"
        assert (kept["id"] in result.stderr, "values-gone" in result.stdout) == (True, True), result.output
        for words in (
            "tombstones stay",
            f"diamant erase-now {kept['id']} --confirm-groups-behind",
            f"diamant cancel {kept['id']}",
        ):
            assert words in result.stderr
    result = run(
        erase, "users", "--key", KEY, "--reason", "r", "--now", "--confirm-groups-behind", "--json", *on(broker)
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.output[result.output.index("{") :])["state"] == "key-gone"


@pytest.mark.parametrize("option", ["--certificate", "--page"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_erased(
    broker: Broker, tmp_path: Path, option: str
) -> None:
    """Exit code 2, and no request is sent."""
    for path in (tmp_path / "no" / "c.json", tmp_path):
        result = run(
            erase,
            "users",
            "--key",
            KEY,
            "--reason",
            "r",
            "--confirm-groups-behind",
            "--now",
            option,
            str(path),
            *on(broker),
        )
        assert (result.exit_code, option in result.output, str(tmp_path) in result.output) == (2, True, True)
    for path in (tmp_path / "c", tmp_path / "." / "c"):
        both = ["--certificate", str(tmp_path / "c"), "--page", str(path)]
        result = run(erase, "users", "--key", KEY, "--reason", "r", *both, *on(broker))
        assert (result.exit_code, "expected two files" in result.output) == (2, True), result.output
    listed = Admin(broker.bootstrap_servers).call("GET", "/v1/certificates")
    assert (listed["certificates"], listed["unfinished"]) == ([], [])


def test_a_file_that_cannot_be_written_after_all_stops_nothing(broker: Broker, tmp_path: Path) -> None:
    """On a full disk the erasure completes, the certificate's path is printed, and the exit code is 1."""
    page = tmp_path / "c.html"
    outputs = ["--certificate", "/dev/full", "--page", str(page)]
    result = run(
        erase, "users", "--key", KEY, "--reason", "r", "--now", "--confirm-groups-behind", *outputs, *on(broker)
    )
    assert (result.exit_code, "key-gone" in result.stdout) == (1, True), result.output
    (erasure_id,) = {
        one["id"] for one in Admin(broker.bootstrap_servers).call("GET", "/v1/certificates")["certificates"]
    }
    assert f"/dev/full: No space left on device; the broker keeps the certificate: {tmp_path}" in result.stderr
    assert erasure_id in result.stderr
    assert page.exists()
    result = run(erase_now, erasure_id, *outputs, *on(broker))
    assert (result.exit_code, "No space left on device" in result.stderr) == (1, True), result.output


def test_a_key_that_is_nowhere_is_said_to_be_so_first(broker: Broker) -> None:
    """A missing key does not look like success: the first line says so and what to check; a certificate and exit code 4."""
    for arguments in (
        ["--key", "costumer-42"],
        ["--key-hex", ""],
        ["--key", "customer-4Z2", "--now", "--confirm-groups-behind"],
    ):
        result = run(erase, "users", *arguments, "--reason", "r", *on(broker))
        first, second = result.stdout.splitlines()[:2]
        assert (result.exit_code, first[:46]) == (4, "NOTHING WAS FOUND under this key in users, so "), result.output
        for words in (
            "Is the key spelled as",
            "--key-hex",
            "is it in these topics",
            "it was erased before",
            "values are unknown",
        ):
            assert words in first
        assert (second[:15], arguments[1] in first and arguments[1] != "") == ("nothing-matched", False)
    for when in ("found", "erased before"):
        result = run(erase, "users", "--key", KEY, "--reason", "r", "--now", "--confirm-groups-behind", *on(broker))
        is_nothing = when == "erased before"
        assert ("NOTHING WAS FOUND" in result.stdout, result.exit_code) == (is_nothing, 4 if is_nothing else 0), (
            result.output
        )


def test_an_empty_key_is_refused_as_text(broker: Broker) -> None:
    """An unset shell variable is not a key: exit code 2, one line, and no certificate."""
    result = run(erase, "users", "--key", "", "--reason", "r", *on(broker))
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert "--key is empty: is a variable not set?" in result.output
    assert Admin(broker.bootstrap_servers).call("GET", "/v1/certificates")["certificates"] == []


def test_a_text_that_names_the_key_is_refused(broker: Broker) -> None:
    """HTTP answers 400, the command one line and exit code 2; both say what to write instead, and do not quote the text."""
    text = f"account of {KEY}"
    with pytest.raises(AdminError, match="case number") as error:
        Admin(broker.bootstrap_servers).erase(KEY, ["users"], reason="r", reference=text)
    assert (error.value.status, error.value.code, KEY in str(error.value)) == (400, "bad-argument", False)
    result = run(erase, "users", "--key", KEY, "--reason", "r", "--reference", text, *on(broker))
    assert (result.exit_code, result.output.count("\n"), KEY in result.output) == (2, 1, False), result.output
    assert "case number" in result.output


def test_the_command_continues_one_erasure(broker: Broker, tmp_path: Path) -> None:
    """With --now, the `key-gone` certificate includes the first findings and nothing of another erasure."""
    data, certificate = tmp_path / "data", tmp_path / "c.json"
    outputs = ["--certificate", str(certificate)]
    result = run(
        erase, "users", "--key", KEY, "--reason", "r", "--now", "--confirm-groups-behind", *outputs, *on(broker)
    )
    assert result.exit_code == 0, result.output
    gone = json.loads(certificate.read_text())
    assert (gone["state"], gone["coverage"]["values_searched_for"]) == ("key-gone", 1)
    assert [(one["values"], len(one["value_hmacs"])) for one in gone["found"]] == [(2, 2)]
    kept = sorted(one.name for one in data.glob("diamant-erasure-*"))
    assert kept == [f"diamant-erasure-{gone['id']}.{state}.json" for state in ("key-gone", "values-gone")]
    first = json.loads((data / kept[1]).read_text())
    assert (gone["found"], gone["segments"]["before"]) == (first["found"], first["segments"]["before"])


def test_the_command_continues_later_with_what_was_answered_with_no(broker: Broker, tmp_path: Path) -> None:
    """`diamant erase-now ID` lists the groups that are behind, asks, and continues the same erasure, even after its end."""

    async def commit_the_beginning() -> None:
        async with WireClient(broker.bootstrap_servers) as wire:
            assert await find_coordinator(wire, "billing") is NONE
            assert await commit(wire, "billing", {("users", 1): 0}) == [NONE]

    broker.call(commit_the_beginning())
    result = CliRunner().invoke(erase, ["users", "--key", KEY, "--reason", "r", "--now", *on(broker)], input="n\n")
    (intent,) = (tmp_path / "data").glob("*.intent")
    erasure_id = intent.stem.removeprefix("diamant-erasure-")
    assert f"diamant erase-now {erasure_id}" in result.stderr
    arguments = [erasure_id, "--certificate", str(tmp_path / "c.json"), *on(broker)]
    result = CliRunner().invoke(erase_now, arguments, input="n\n")
    assert (result.exit_code, intent.exists()) == (3, True), result.output
    for words in ("users-1: billing", "tombstones stay until"):
        assert words in result.stderr
    for answer in ("y\n", ""):
        result = CliRunner().invoke(erase_now, arguments, input=answer)
        assert (result.exit_code, intent.exists()) == (0, False), result.output
        gone = json.loads((tmp_path / "c.json").read_text())
        assert (gone["id"], gone["state"]) == (erasure_id, "key-gone")
        assert gone["overrides"][0]["groups_that_had_not_passed_it"] == ["billing"]
    result = run(erase_now, "0" * 32, *on(broker))
    assert (result.exit_code, result.output.count("\n"), "no erasure" in result.output) == (2, 1, True), result.output
    assert f"shows the unfinished ones: diamant certificates -b {broker.bootstrap_servers}" in result.output


def test_mistakes_are_one_line(broker: Broker) -> None:
    """A user's error has exit code 2 and one line without the key."""
    for arguments in (["users", "--reason", "r"], ["nothing", "--key", KEY, "--reason", "r"]):
        result = run(erase, *arguments, *on(broker))
        assert (result.exit_code, result.output.count("\n"), KEY in result.output) == (2, 1, False), result.output


def test_the_canonical_form_is_one_and_holds_no_floats() -> None:
    """Order and spaces do not change it; a float is refused, because its text varies."""
    assert canonical({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"ü"]}'.encode()
    with pytest.raises(TypeError):
        canonical({"a": [{"b": 1.5}]})


def test_the_merkle_root_is_that_of_rfc_6962() -> None:
    """Another file, size, digest or order gives another root."""
    leaves = [{"file": f"t-0/{number}.log", "size": number, "sha256": "ab" * 32} for number in range(7)]
    roots = {merkle_root(leaves[:count]) for count in range(8)}
    assert len(roots) == 8
    assert merkle_root([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for change in ({"file": "x"}, {"size": 9}, {"sha256": "cd" * 32}):
        assert merkle_root([{**leaves[0], **change}, *leaves[1:]]) not in roots
    assert merkle_root(leaves[::-1]) not in roots


def test_the_command_says_why_nothing_is_certified(broker: Broker, tmp_path: Path) -> None:
    """Each place is printed once, however many partitions it affects, with the time of the retry."""
    copy = tmp_path / "data" / "[backup]" / "00000000000000000000.log"
    copy.parent.mkdir()
    copy.write_bytes(build_batch([Record(0, 1000, KEY.encode(), b"the first of two values")]))
    result = run(erase, "users", "--key", KEY, "--reason", "asked for", *on(broker))
    assert result.exit_code == 3
    place = f"[backup]/{copy.name}, offset 0: a record to be removed is in this file, which belongs to no partition: remove it"
    assert result.output.count(place) == 1, result.output
    assert "The broker tries again" in result.output
    assert "The broker removes the tombstones" not in result.output


@pytest.mark.slow
def test_a_key_as_large_as_kafka_takes_is_erased(broker: Broker, tmp_path: Path) -> None:
    """The largest key works from a file and over HTTP; a longer one is refused with the limit."""
    key = random.Random(1).randbytes(900_000)
    broker.call(append(broker, key))
    (tmp_path / "key").write_bytes(key)
    keyed = ["--key-file", str(tmp_path / "key"), *on(broker), "--timeout", "5m"]
    result = run(erase, "users", "--reason", "r", "--json", *keyed)
    found = json.loads(result.stdout)
    assert (result.exit_code, found["state"], found["certificate"]["found"][0]["values"]) == (0, "values-gone", 1)
    explained = json.loads(run(explain, "users", "--json", *keyed).stdout)
    assert [one["status"] for one in explained["partitions"][1]["records"]] == ["tombstone"]
    certificate = tmp_path / "c.json"
    certificate.write_text(json.dumps(found["certificate"]))
    assert "holds" in run(verify, str(certificate), *keyed).stdout
    admin = Admin(broker.bootstrap_servers)
    with pytest.raises(AdminError, match=r"at most 1048588 \(max\.message\.bytes\)"):
        admin.erase(b"k" * 2_000_000, "users", reason="r")
    (tmp_path / "key").write_bytes(bytes(7_000_000))
    result = run(erase, "users", "--reason", "r", *keyed)
    assert (result.exit_code, "it has 7,000,000 bytes" in result.stderr) == (2, True), result.output


async def append(broker: Broker, key: bytes) -> None:
    broker.node.topics.log("users", 1).append_as_leader(memoryview(build_batch([Record(0, 1000, key, b"value")])))
