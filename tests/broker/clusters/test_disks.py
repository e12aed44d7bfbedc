"""Certificates of disks: the log directories of a running broker are searched, and what they say joins that of the cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.broker.clusters.certificate import issue, signing_key
from diamant.broker.clusters.operations import erase
from diamant.broker.clusters.register import STATE_VARIABLE, Register
from diamant.broker.inspection import disks
from diamant.broker.inspection.disks import ReadLimit, certify_disks, disk_of, join, log_ends
from diamant.broker.operation_errors import BadArgument, NotGenuine
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.json_types import JsonObject
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from tests.broker.clusters.any_cluster import AnyCluster, diamant
from tests.broker.clusters.outcomes import KEY, outcome
from tests.broker.clusters.real_kafka import real_kafka
from tests.mutants import Mutant, put_in

ERASED = b"customer-000042"


@dataclass(slots=True)
class Erased:
    """A running cluster after an erasure."""

    cluster: AnyCluster
    directory: str
    register: Register
    certificate: JsonObject

    @property
    def signing(self) -> SigningKey:
        return signing_key(str(self.register.directory))

    def search(self, key: bytes = ERASED, directory: str = "") -> JsonObject:
        """Search the broker's log directory while it runs."""
        return certify_disks(
            RealEnv(), [directory or self.directory], self.certificate, key, self.signing, ReadLimit(0)
        )


@pytest.fixture(scope="module", params=["diamant", pytest.param("kafka", marks=pytest.mark.slow)])
def erased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Erased]:
    """A cluster in which a key was erased from two partitions."""
    path = tmp_path_factory.mktemp("cluster")
    is_kafka = request.param == "kafka"
    with real_kafka(path) if is_kafka else diamant(path) as cluster:
        topic = cluster.create("certified", partitions=2)
        for partition in range(2):
            pairs = [(b"customer-%06d" % (number % 50), b"value of customer %d" % number) for number in range(100)]
            cluster.produce(topic, pairs, partition=partition)
        register = Register(tmp_path_factory.mktemp("state"))
        found = erase(cluster.client, ERASED, [topic], reason="asked", timeout_s=120, register=register)
        assert found["state"] == "unreadable"
        yield Erased(cluster, str(path / "data1") if is_kafka else str(path), register, found["certificate"])


def test_disk_of_a_running_broker_is_certified(erased: Erased) -> None:
    """A read-only search of the live directory certifies values-gone; with the disk of the only broker, so does the cluster's."""
    disk = erased.search()
    assert (disk["state"], disk["broker"], disk["not_certified"]) == ("values-gone", 1, [])
    assert [claim["state"] for claim in disk["claims"]] == ["values-gone", "values-gone"]
    known = disk["coverage"]["known_positives"]
    assert known["planted"] == known["seen"] > 0
    joined = join(erased.certificate, [disk], erased.signing)
    assert (joined["state"], joined["without_disk"]) == ("values-gone", [])
    for one in (disk, joined):
        found = verify_certificate(one, erased.signing.public_bytes)
        assert (found.outcome, found.notes[-1][:4]) == ("valid", "Only")


def test_what_is_left_on_the_disk_is_named(erased: Erased, tmp_path: Path) -> None:
    """A value in a file that no broker serves, or a partition without its directory, leaves the disk without a claim."""
    directory = str(tmp_path / "copy")
    shutil.copytree(erased.directory, directory)
    (tmp_path / "copy" / "certified-0" / "notes.txt").write_bytes(build_batch([Record(3, 5, ERASED, b"value of old")]))
    disk = erased.search(directory=directory)
    assert disk["state"] == "not-certified"
    told = [problem["file"] for one in disk["not_certified"] for problem in one["problems"]]
    assert any(name.endswith("certified-0/notes.txt") for name in told)
    joined = join(erased.certificate, [disk], erased.signing)
    assert joined["state"] == "unreadable"
    assert "certified-0@1" in joined["without_disk"]
    shutil.rmtree(tmp_path / "copy" / "certified-1")
    disk = erased.search(directory=directory)
    assert {one["state"] for one in disk["not_certified"] if one["partition"] == 1} == {"not-there"}


def test_a_stray_file_is_named_alone(tmp_path: Path) -> None:
    """Not the segments whose tombstones the erasure wrote itself: without the file, the same disk is values-gone."""
    state = str(tmp_path / "state")
    signing = signing_key(state)
    certificate = issue(outcome(signing.secret), state)
    directory = log_directory(tmp_path / "data", [Record(90, 1_000, KEY, None)])
    stray = tmp_path / "data" / "copy.log"
    stray.write_bytes(build_batch([Record(3, 5, KEY, b"value of old")], base_offset=3))
    (refused,) = certify_disks(RealEnv(), [directory], certificate, KEY, signing, ReadLimit(0))["not_certified"]
    assert {problem["file"] for problem in refused["problems"]} == {str(stray)}
    stray.unlink()
    assert certify_disks(RealEnv(), [directory], certificate, KEY, signing, ReadLimit(0))["state"] == "values-gone"


def test_directory_of_another_topic_of_the_name_is_no_proof(erased: Erased, tmp_path: Path) -> None:
    """A topic that was deleted and created again has another id, so its clean files prove nothing about the first."""
    directory = tmp_path / "copy"
    shutil.copytree(erased.directory, directory)
    metadata = directory / "certified-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    disk = erased.search(directory=str(directory))
    (refused,) = [one for one in disk["not_certified"] if one["partition"] == 0]
    assert "topic-recreated" in {problem["reason"] for problem in refused["problems"]}


def test_wrong_inputs_are_refused(erased: Erased, tmp_path: Path) -> None:
    """Another key, cluster, directory, signer or erasure gives an error that says so, and no certificate."""
    with pytest.raises(BadArgument, match="about another key"):
        erased.search(key=b"customer-000043")
    (tmp_path / "plain").mkdir()
    with pytest.raises(BadArgument, match="expected a log directory"):
        erased.search(directory=str(tmp_path / "plain"))
    (tmp_path / "plain" / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=other\n")
    with pytest.raises(BadArgument, match="belongs to cluster other"):
        erased.search(directory=str(tmp_path / "plain"))
    other = signing_key(str(tmp_path / "state"))
    with pytest.raises(NotGenuine, match="another key"):
        certify_disks(RealEnv(), [erased.directory], erased.certificate, ERASED, other, ReadLimit(0))
    disk = erased.search()
    later = erase(
        erased.cluster.client, ERASED, ["certified"], reason="again", timeout_s=120, register=erased.register
    )["certificate"]
    with pytest.raises(BadArgument, match="belongs to erasure"):
        disk_of(later, disk, erased.signing)
    with pytest.raises(BadArgument, match="expected a certificate of type"):
        join(disk, [], erased.signing)


def test_missing_disk_is_named_and_cannot_be_hidden(tmp_path: Path) -> None:
    """Of three replicas one disk is searched: the state stays, the others are named, and no edit makes it values-gone."""
    state = str(tmp_path / "state")
    signing = signing_key(state)
    certificate = issue(outcome(signing.secret), state)
    directory = log_directory(tmp_path / "data", [Record(90, 1_000, KEY, None)])
    disk = certify_disks(RealEnv(), [directory], certificate, KEY, signing, ReadLimit(0))
    assert disk["state"] == "values-gone", disk["not_certified"]
    joined = join(certificate, [disk], signing)
    assert (joined["state"], joined["without_disk"]) == ("unreadable", ["users-0@1", "users-0@3"])
    assert verify_certificate(joined, signing.public_bytes).outcome == "valid"
    stranger = signing_key(str(tmp_path / "stranger"))
    for changes in (
        {"state": "values-gone"},
        {"without_disk": []},
        {
            "state": "values-gone",
            "disks": [disk, forged(disk, signing, broker=1), forged(disk, stranger, broker=3)],
        },
        {"disks": [forged(disk, signing, erasure={"id": "e0", "sha256": "0" * 64})]},
        {"disks": [forged(disk, signing, state="key-gone")]},
    ):
        found = verify_certificate(resigned({**joined, **changes}, signing), signing.public_bytes)
        assert found.outcome == "not-valid", changes


def test_many_disks_are_joined_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each disk is checked when it is read and when the whole is: with one after the other joined, it was a thousand times."""
    state = tmp_path / "state"
    signing = signing_key(str(state))
    certificate = issue(outcome(signing.secret), str(state))
    (path := tmp_path / "erasure.json").write_text(json.dumps(certificate))
    directory = log_directory(tmp_path / "data", [Record(90, 1_000, KEY, None)])
    disk = certify_disks(RealEnv(), [directory], certificate, KEY, signing, ReadLimit(0))
    words = ["certify", "--erasure", str(path)]
    for broker in range(1, 21):
        (one := tmp_path / f"{broker}.json").write_text(json.dumps(forged(disk, signing, broker=broker)))
        words += ["--join", str(one)]
    signed: list[object] = []
    put_in(
        monkeypatch,
        Mutant(disks, "sign_certificate", lambda real: lambda fields, key: signed.append(1) or real(fields, key)),
    )
    done = CliRunner().invoke(main, words, env={STATE_VARIABLE: str(state)})
    assert (done.exit_code, done.output, len(signed)) == (0, "values-gone: the cluster, 1 claim\n", 1)


def test_key_that_was_written_again_is_named(tmp_path: Path) -> None:
    """A value above the claim's end is not erased: certificates keep their states and list it, and certify exits with 3."""
    state = tmp_path / "state"
    certificate = issue(outcome(signing_key(str(state)).secret), str(state))
    (path := tmp_path / "erasure.json").write_text(json.dumps(certificate))
    directory = log_directory(tmp_path / "data", [Record(90, 1_000, KEY, None), Record(95, 1_000, KEY, b"again")])
    disk = tmp_path / "disk.json"
    command = ["certify", "--erasure", str(path), "--certificate", str(disk)]
    environment = {STATE_VARIABLE: str(state)}
    told = "users-0: the key was written again since the erasure: offset 95; not erased"
    done = CliRunner().invoke(main, [*command, directory, "--key", KEY.decode()], env=environment)
    assert (done.exit_code, done.output.splitlines()) == (3, ["values-gone: broker 2, 1 claim", told])
    notes = verify_certificate(json.loads(disk.read_text()), None).notes
    assert "It is about the log directories of broker 2 only, and no other replica." in notes
    assert "The key was written again to users-0: 1 record, the first at offset 95, not erased." in notes
    written = json.loads(disk.read_text())["written_since"]
    assert [(one["topic"], one["partition"], one["offset"]) for one in written] == [("users", 0, 95)]
    done = CliRunner().invoke(main, ["certify", "--erasure", str(path), "--join", str(disk)], env=environment)
    assert (done.exit_code, done.output.splitlines()[-1]) == (3, told)


@pytest.mark.parametrize("missing", [("signing-key",), ("signing-key.secret",), ("signing-key", "signing-key.secret")])
@pytest.mark.parametrize("is_joined", [False, True])
def test_certify_without_the_signing_key_makes_none(tmp_path: Path, missing: tuple[str, ...], is_joined: bool) -> None:
    """It names the missing files with their places and where to copy them from, and leaves the state directory as it was."""
    state = tmp_path / "state"
    (path := tmp_path / "erasure.json").write_text(
        json.dumps(issue(outcome(signing_key(str(state)).secret), str(state)))
    )
    for name in missing:
        (state / name).unlink()
    before = sorted(state.iterdir())
    what = ["--join", str(path)] if is_joined else [str(tmp_path), "--key", KEY.decode()]
    done = CliRunner().invoke(main, ["certify", "--erasure", str(path), *what], env={STATE_VARIABLE: str(state)})
    assert (done.exit_code, sorted(state.iterdir())) == (2, before)
    assert all(f"{state / name}" in done.stderr for name in missing)
    assert "missing: expected the signing key of the erasure there. Copy" in done.stderr


def test_later_tombstone_names_the_key_as_well(tmp_path: Path) -> None:
    """A tombstone above the claim's end, as of a resumed erasure, leaves the disk at values-gone."""
    state = str(tmp_path / "state")
    signing = signing_key(state)
    certificate = issue(outcome(signing.secret), state)
    directory = log_directory(tmp_path / "data", [Record(95, 1_000, KEY, None)])
    disk = certify_disks(RealEnv(), [directory], certificate, KEY, signing, ReadLimit(0))
    assert (disk["state"], disk["not_certified"]) == ("values-gone", [])


def log_directory(directory: Path, records: list[Record]) -> str:
    """Return the log directory of broker 2 with one partition of the topic."""
    (directory / "users-0").mkdir(parents=True)
    (directory / "meta.properties").write_text("version=1\nnode.id=2\ncluster.id=cluster-1\n")
    (directory / "users-0" / "partition.metadata").write_text("version: 0\ntopic_id: EREREREREREREREREREREQ\n")
    base = records[0].offset
    (directory / "users-0" / f"{base:020d}.log").write_bytes(build_batch(records, base_offset=base))
    return str(directory)


def resigned(certificate: JsonObject, signing: SigningKey) -> JsonObject:
    fields = deepcopy({name: value for name, value in certificate.items() if name != "signature"})
    return sign_certificate(fields, signing)


def forged(certificate: JsonObject, signing: SigningKey, **changes: object) -> JsonObject:
    return resigned({**certificate, **changes}, signing)


def test_ends_of_live_logs_are_whole_batches(tmp_path: Path) -> None:
    """A batch that is being written is not read; directories set aside and files of other names have no end."""
    log = bytes(build_batch([Record(7, 1_000, b"k", b"v")], base_offset=7))
    for name in ("t-0", "t-1.0123456789abcdef0123456789abcdef-delete", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-0" / f"{3:020d}.log").write_bytes(log)
    (tmp_path / "t-0" / f"{7:020d}.log").write_bytes(log + log[:40])
    (tmp_path / "t-0" / f"{9:020d}.log.deleted").write_bytes(log)
    ends = log_ends(RealEnv(), str(tmp_path))
    assert set(ends) == {("t", 0)}
    end = ends["t", 0]
    assert (end.log_end_offset, end.active_base_offset, end.active_size) == (8, 7, len(log))
    assert (end.size_of(7), end.size_of(9)) == (len(log) + 40, None)


def test_reading_is_bounded() -> None:
    """At 1 MB per second, 3 MB of files take three seconds, and a rate of 0 never waits."""
    slept: list[float] = []
    limit = ReadLimit(1_000_000, clock=lambda: 100.0, sleep=slept.append)
    limit.check()
    limit.advance(1_000_000, 0)
    limit.advance(3_000_000, 0)
    limit.check()
    assert slept == [0.0, 3.0]
    ReadLimit(0, clock=lambda: 100.0, sleep=slept.append).check()
    assert len(slept) == 2


def test_command_certifies_and_joins(erased: Erased, tmp_path: Path) -> None:
    """`diamant certify` writes the certificate of a disk, and with --join that of the cluster."""
    path, disk, joined = (tmp_path / name for name in ("erasure.json", "disk.json", "joined.json"))
    path.write_text(json.dumps(erased.certificate))
    environment = {STATE_VARIABLE: str(erased.register.directory)}

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["certify", "--erasure", str(path), *words], env=environment)
        return done.exit_code, done.output

    code, told = run(erased.directory, "--key", ERASED.decode(), "--certificate", str(disk))
    assert (code, told) == (0, "values-gone: broker 1, 2 claims\n")
    assert run("--join", str(disk), "--certificate", str(joined)) == (0, "values-gone: the cluster, 2 claims\n")
    assert json.loads(joined.read_text())["state"] == "values-gone"
    assert run()[0] == 2
    assert run(erased.directory)[0] == 2
    disk.write_text(disk.read_text().replace('"values-gone"', '"key-gone"'))
    told = f"diamant: {disk}: the signature is not valid: the certificate was changed, or is damaged\n"
    assert run("--join", str(disk))[1].endswith(told)
