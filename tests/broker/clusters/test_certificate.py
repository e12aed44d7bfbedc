"""Certificates of erasures on a Kafka cluster: what they say, and that no defect makes them say more."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.broker.clusters.certificate import issue, key_secret, signing_key
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.cleaner.evidence.certificates.certificate import (
    CertificateError,
    WrongKind,
    parse_certificate,
    sign_certificate,
)
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.certificates.verification import CheckedFiles, Verification
from diamant.cleaner.papers.paper_verification import verify_certificate
from tests.broker.clusters.outcomes import PARTITION, READ, TOMBSTONE, VALUE, outcome, with_read


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state directory with its signing key."""
    return str(tmp_path_factory.mktemp("state"))


def verified(certificate: dict[str, Any], state_dir: str) -> Verification:
    return verify_certificate(certificate, signing_key(state_dir).public_bytes)


def forged(certificate: dict[str, Any], state_dir: str, change: Callable[[dict[str, Any]], object]) -> Verification:
    """Change a certificate, sign the result with the true key, and verify it: only its own rows can contradict it."""
    fields = deepcopy({name: value for name, value in certificate.items() if name != "signature"})
    change(fields)
    return verified(sign_certificate(fields, signing_key(state_dir)), state_dir)


def test_replicas_without_a_value_are_certified_as_unreadable(state_dir: str) -> None:
    """Each replica is named with broker, offsets, times, bytes, segments and known positives; verify accepts it and no more."""
    certificate = issue(outcome(), state_dir)
    assert certificate["state"] == "unreadable"
    (claim,) = certificate["claims"]
    assert [row["broker"] for row in claim["replicas"]] == claim["brokers"] == [1, 2, 3]
    row = claim["replicas"][2]
    assert (row["from_offset"], row["to_offset"], row["bytes"], row["segments"]) == (0, 100, 5_000, [0, 90])
    assert row["known_positives"] == {"planted": 4, "seen": 4}
    assert "file.delete.delay.ms" in certificate["not_covered"][-1]
    found = verified(parse_certificate(json.dumps(certificate).encode()), state_dir)
    assert (found.outcome, found.state) == ("valid", "unreadable")
    assert "not a statement about disks" in found.summary
    assert any("nothing of the bytes on their disks" in note for note in found.notes)


def test_a_fault_while_replicas_are_read_is_not_one_of_the_certificate(state_dir: str) -> None:
    """Only fields that the certificate lacks make it one of another form; an error of the program stays what it is."""

    def read(_: Verification) -> None:
        raise TypeError("a mistake in the program")

    certificate, public_key = issue(outcome(), state_dir), signing_key(state_dir).public_bytes
    with pytest.raises(TypeError, match="a mistake in the program"):
        verify_certificate(certificate, public_key, read_replicas=read)
    with pytest.raises(CertificateError, match="not in the expected form: KeyError\\('below_offset'\\)"):
        forged(certificate, state_dir, lambda fields: fields["claims"][0].pop("below_offset"))


def test_without_tombstones_the_key_itself_is_unreadable(state_dir: str) -> None:
    """The second state needs every replica without a tombstone; one tombstone anywhere keeps the first."""
    gone = replace(outcome(), reads=tuple(replace(one, tombstones=()) for one in outcome().reads))
    assert issue(gone, state_dir)["state"] == "key-unreadable"
    assert issue(with_read(2, tombstones=()), state_dir)["state"] == "unreadable"


def test_lowered_file_delay_is_not_listed_as_not_covered(state_dir: str) -> None:
    """The sentence about waiting files names only topics whose file.delete.delay.ms was not lowered."""
    certificate = issue(outcome(file_delay_lowered=("users",)), state_dir)
    assert not any("file.delete.delay.ms" in one for one in certificate["not_covered"])


DEFECTS: dict[str, tuple[ErasureOutcome, str]] = {
    "replica missing": (outcome(reads=outcome().reads[:2]), "it was not read"),
    "reason of a missing one": (
        outcome(reads=outcome().reads[:2], problems={"users-0@3": "broker 3 is down"}),
        "is down",
    ),
    "read ended early": (with_read(2, to_offset=90), "up to offset 90, expected 91"),
    "read failed": (with_read(2, problem="NOT_LEADER_OR_FOLLOWER"), "NOT_LEADER"),
    "value left": (with_read(3, values=(VALUE,)), "a value of the key is at offset 7"),
    "planted record missed": (with_read(1, planted_found=3), "3 of 4 records"),
    "nothing planted": (with_read(1, planted=0, planted_found=0), "0 of 0 records"),
    "no replicas known": (outcome(partitions=(replace(PARTITION, replicas=()),)), ""),
    "no partitions": (outcome(partitions=()), ""),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_of_a_read_leave_the_certificate_without_a_claim(defect: str, state_dir: str) -> None:
    """A replica that is missing, truncated, unread or searched in vain makes the erasure not certified, with the reason."""
    broken, reason = DEFECTS[defect]
    certificate = issue(broken, state_dir)
    assert certificate["state"] == "not-certified"
    assert not certificate["claims"]
    told = [problem["reason"] for one in certificate["not_certified"] for problem in one["problems"]]
    assert reason in " ".join(told)
    assert verified(certificate, state_dir).outcome == "not-certified"


def test_partition_without_a_read_is_named(state_dir: str) -> None:
    """A partition that was added during the erasure and not read leaves all of it open, and the others keep their claims."""
    added = replace(PARTITION, partition=1, values=0, tombstone_offset=None, below_offset=3)
    certificate = issue(outcome(partitions=(PARTITION, added)), state_dir)
    assert certificate["state"] == "not-certified"
    assert [one["partition"] for one in certificate["claims"]] == [0]
    (refused,) = certificate["not_certified"]
    assert [problem["file"] for problem in refused["problems"]] == ["users-1@1", "users-1@2", "users-1@3"]


def test_nothing_found_proves_no_removal(state_dir: str) -> None:
    """Without values and tombstones the state is nothing-matched, which verify reports as such."""
    reads = tuple(replace(one, tombstones=()) for one in outcome().reads)
    partition = replace(PARTITION, values=0, tombstone_offset=None)
    certificate = issue(outcome(partitions=(partition,), reads=reads), state_dir)
    assert certificate["state"] == "nothing-matched"
    assert verified(certificate, state_dir).outcome == "nothing-matched"


def _claim(certificate: dict[str, Any]) -> dict[str, Any]:
    claim: dict[str, Any] = certificate["claims"][0]
    return claim


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "stronger state": lambda one: one.update(state="key-unreadable"),
    "state of a disk": lambda one: one.update(state="values-gone"),
    "state of an erasure in place": lambda one: one.update(state="key-gone"),
    "state of a redaction": lambda one: one.update(state="records-gone"),
    "claim without a replica": lambda one: _claim(one)["replicas"].pop(),
    "same replica twice": lambda one: _claim(one)["replicas"].__setitem__(2, _claim(one)["replicas"][0]),
    "no replica at all": lambda one: _claim(one).update(replicas=[], brokers=[]),
    "stronger claim": lambda one: (_claim(one).update(state="key-unreadable"), one.update(state="key-unreadable")),
    "claim of a disk": lambda one: (_claim(one).update(state="values-gone"), one.update(state="values-gone")),
    "higher end": lambda one: _claim(one).update(below_offset=101),
    "value hidden in a row": lambda one: _claim(one)["replicas"][0].update(values=[3]),
    "blind search": lambda one: _claim(one)["replicas"][0].update(known_positives={"planted": 0, "seen": 0}),
    "read before the request": lambda one: _claim(one)["replicas"][0].update(began_ms=1),
    "read after the certificate": lambda one: _claim(one)["replicas"][0].update(ended_ms=1 << 60),
    "claim twice": lambda one: one["claims"].append(_claim(one)),
    "claim for another topic": lambda one: _claim(one).update(topic="other"),
    "partition left out": lambda one: one["request"]["partitions"].update(users=2),
    "no claims": lambda one: one.update(claims=[]),
    "disks of nobody": lambda one: one.update(state="values-gone", disks=[]),
    "disk of one broker": lambda one: one.update(
        state="values-gone",
        disks=[
            {"broker": 1, "claims": [{"topic": "users", "partition": 0, "below_offset": 91, "state": "values-gone"}]}
        ],
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_contradictory_certificates_are_not_valid_even_with_the_right_signature(forgery: str, state_dir: str) -> None:
    """Verify computes every state from the rows once more, so a certificate cannot claim more than its rows prove."""
    found = forged(issue(outcome(), state_dir), state_dir, FORGERIES[forgery])
    assert found.outcome == "not-valid"
    assert not found.coverage_adds_up


def test_edited_certificate_has_no_valid_signature(state_dir: str) -> None:
    """Any change after signing makes it invalid, and a certificate signed by another key is not trusted."""
    certificate = issue(outcome(), state_dir)
    edited = deepcopy(certificate)
    _claim(edited)["below_offset"] = 80
    assert verified(edited, state_dir).outcome == "not-valid"
    assert verify_certificate(certificate, bytes(32)).outcome == "not-valid"
    assert verify_certificate(certificate, None).outcome == "untrusted"


def test_files_and_keys_confirm_nothing_about_a_cluster(state_dir: str, tmp_path: Path) -> None:
    """Verifying with a directory leaves the claims unconfirmed; a key or a description of records is refused."""
    certificate = issue(outcome(), state_dir)
    from diamant.storage.env.env import RealEnv

    found = verify_certificate(certificate, signing_key(state_dir).public_bytes, CheckedFiles(RealEnv(), str(tmp_path)))
    assert found.outcome == "not-confirmed"
    with pytest.raises(WrongKind, match="Kafka cluster"):
        verify_certificate(certificate, None, key=b"k")


def test_command_verifies_without_a_broker(state_dir: str, tmp_path: Path) -> None:
    """`diamant verify` checks a cluster's certificate by itself, as no single broker could confirm it."""
    path, pinned = tmp_path / "c.json", tmp_path / "public.pem"
    path.write_text(json.dumps(issue(outcome(), state_dir)))
    pinned.write_text(signing_key(state_dir).public_pem)
    done = CliRunner().invoke(main, ["verify", str(path), "--public-key", str(pinned)])
    assert done.exit_code == 0, done.output
    assert "unreadable" in done.output


def test_secret_is_made_once_and_private(tmp_path: Path) -> None:
    """The first use makes both files with mode 0600, and later uses return the same secret."""
    directory = str(tmp_path / "state")
    assert key_secret(directory) == key_secret(directory)
    assert [path.stat().st_mode & 0o777 for path in sorted((tmp_path / "state").iterdir())] == [0o600, 0o600]


def test_rows_keep_what_was_seen_besides(state_dir: str) -> None:
    """Records written since, and other keys' records with the same bytes, are listed and change no claim."""
    written = replace(VALUE, offset=95)
    certificate = issue(with_read(1, written_since=(written,), same_bytes=(12,), same_bytes_not_listed=3), state_dir)
    assert certificate["written_since"] == [{"topic": "users", "partition": 0, "offset": 95}]
    assert certificate["elsewhere"] == [{"topic": "users", "partition": 0, "offset": 12, "what": "same-bytes"}]
    assert certificate["elsewhere_not_listed"] == 3
    row = certificate["claims"][0]["replicas"][0]
    assert row["tombstones"] == [TOMBSTONE.offset] == [READ.tombstones[0].offset]


def test_a_copy_that_only_a_follower_was_searched_for_is_listed_once(state_dir: str) -> None:
    """A leader without the key is read before the values are known: the copies are found in its followers."""
    made = outcome()
    reads = tuple(replace(one, same_bytes=() if one.is_leader else (12,)) for one in made.reads)
    certificate = issue(replace(made, reads=reads), state_dir)
    assert certificate["elsewhere"] == [{"topic": "users", "partition": 0, "offset": 12, "what": "same-bytes"}]


def test_verification_says_what_is_in_the_way(state_dir: str) -> None:
    """Of a certificate without a claim: the replica and its problem, as the certificate has them."""
    found = verify_certificate(issue(with_read(2, to_offset=3), state_dir), None)
    assert "users-0: users-0@2: it was read up to offset 3, expected 91." in found.notes


def test_page_speaks_of_answers_not_of_a_data_directory(state_dir: str) -> None:
    """The page for people names the replicas and what was not covered, and does not claim that files were read or replaced."""
    page = certificate_page(issue(outcome(), state_dir))
    assert "No broker returns a value" in page
    assert "Nothing is said of the brokers&#39; disks" in page
    assert page.count("<td><span>Broker</span>") == 3
    assert "data directory was read" not in page
    assert "Nothing was written to the topics for that" in page
    refused = certificate_page(issue(with_read(2, to_offset=3), state_dir))
    assert "users-0@2: it was read up to offset 3, expected 91" in refused
    assert "do not rely" in certificate_page(issue(outcome(), state_dir), problem="it was changed").lower()
