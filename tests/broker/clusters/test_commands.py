"""The commands for clusters of other brokers: what they refuse, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.broker.client import admin as admin_module
from diamant.broker.client.admin import NotDiamant
from diamant.broker.client.kafka_client import LedPartition
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.clusters import cluster_look
from diamant.broker.clusters.register import STATE_VARIABLE, Register
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster
from tests.mutants import Mutant, put_in


@pytest.fixture
def elsewhere(cluster: AnyCluster, monkeypatch: pytest.MonkeyPatch) -> AnyCluster:
    """A cluster that is not taken for a Diamant."""

    def find(*_: object) -> str:
        raise NotDiamant("it is another Kafka")

    put_in(monkeypatch, Mutant(admin_module, "_find_http_url", lambda _real: find))
    return cluster


def run(cluster: AnyCluster, tmp_path: Path, *words: str, answer: str = "") -> Result:
    """Run a command on the cluster, with an empty state directory."""
    environment = {STATE_VARIABLE: str(tmp_path / "state")}
    return CliRunner().invoke(main, [*words, "-b", cluster.bootstrap], env=environment, input=answer)


def test_a_dry_run_that_finds_nothing_says_so(elsewhere: AnyCluster, tmp_path: Path) -> None:
    """As the erasure itself does, with the same exit code."""
    name = elsewhere.create("dry")
    elsewhere.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    done = run(elsewhere, tmp_path, "erase", name, "--key", "b", "--reason", "asked", "--dry-run")
    assert (done.exit_code, "NOTHING WAS FOUND" in done.stdout, "tombstones" in done.stdout) == (4, True, False)


@pytest.mark.parametrize(("key", "told"), [("b", "NOTHING WAS FOUND"), ("a", "write 1 tombstone")])
def test_a_dry_run_names_replicas_that_cannot_be_read(
    elsewhere: AnyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, told: str
) -> None:
    """A broker that is down may hold values, so nothing is said not to be there, and the exit code is the erasure's own."""
    name = elsewhere.create(f"down-{key}")
    elsewhere.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)

    def with_another(real: Callable[[Fields], tuple[LedPartition, ...]]) -> object:
        return lambda topic: tuple(one._replace(replicas=(*one.replicas, 9)) for one in real(topic))

    put_in(monkeypatch, Mutant(cluster_look, "partitions_of", with_another))
    done = run(elsewhere, tmp_path, "erase", name, "--key", key, "--reason", "asked", "--dry-run")
    assert (done.exit_code, f"{name}-0@9: " in done.stdout) == (3, True), done.output
    assert "1 replica could not be read" in done.stdout
    assert (told in done.stdout) == (key == "a")


def test_a_dry_run_names_an_open_erasure_of_the_key(elsewhere: AnyCluster, tmp_path: Path) -> None:
    """To be continued instead of a second one; one that waits for its tombstones' horizon only is not open."""
    name = elsewhere.create("open")
    elsewhere.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    words = ["erase", name, "--key", "a", "--reason", "asked"]
    assert run(elsewhere, tmp_path, *words).exit_code == 0
    assert "is open" not in run(elsewhere, tmp_path, *words, "--dry-run").stdout
    register = Register(tmp_path / "state")
    (work,) = register.all()
    assert work.outcome is not None
    work.outcome = replace(work.outcome, reads=())
    register.save(work)
    told = run(elsewhere, tmp_path, *words, "--dry-run").stdout
    assert (
        f"An earlier erasure of this key is open: {work.id}. To continue it: diamant erase --resume {work.id}" in told
    )
    done = run(elsewhere, tmp_path, *words)
    assert (done.exit_code, "unreadable" in done.stdout) == (0, True), done.output
    assert (
        f"An earlier erasure of this key is open: {work.id}. To continue it: diamant erase --resume {work.id}"
        in done.stdout
    )
    assert "An earlier erasure" not in run(elsewhere, tmp_path, "erase", "--resume", work.id).stdout


KEYS = {
    "avro": (["--key-hex", "00000000070a6b6579"], b"\0\0\0\0\x07\nkey"),
    "json": (["--key-json", '{"id": 42}'], b'{"id":42}'),
    "no bytes": (["--key-hex", ""], b""),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_serializers_are_given_as_options(elsewhere: AnyCluster, tmp_path: Path, kind: str) -> None:
    """Avro in hexadecimal, JSON without blanks, a key of no bytes: the values of this key go, others stay."""
    words, key = KEYS[kind]
    name = elsewhere.create(f"given-{kind.replace(' ', '-')}")
    elsewhere.produce(name, [(key, b"1"), (b"other", b"2")], timestamp_ms=OLD_MS)
    done = run(elsewhere, tmp_path, "erase", name, *words, "--reason", "asked")
    assert (done.exit_code, "unreadable" in done.stdout) == (0, True), done.output
    assert [one.value for one in elsewhere.held(name) if one.value is not None] == [b"2"]


def test_tombstones_that_could_not_go_at_once_are_not_a_success(elsewhere: AnyCluster, tmp_path: Path) -> None:
    """Exit code 3: without the right to a transaction nothing brings the cleaner once more. No time is named that has passed."""
    name = elsewhere.create("could-not")
    elsewhere.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    words = ["erase", name, "--key", "a", "--reason", "asked", "--tombstones", "now", "--confirm-groups-behind"]
    done = run(elsewhere, tmp_path, *words)
    assert (done.exit_code, "unreadable" in done.stdout) == (3, True), done.output
    assert "The tombstones name the key; to remove them: " in done.stdout


def test_declined_tombstones_are_explained(elsewhere: AnyCluster, tmp_path: Path) -> None:
    """Exit code 3 comes with the reason, and with what removes them at once."""
    name = elsewhere.create("declined")
    elsewhere.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    words = ["erase", name, "--key", "a", "--reason", "asked", "--tombstones", "now"]
    done = run(elsewhere, tmp_path, *words, answer="n\n")
    assert (done.exit_code, "diamant: declined, so the tombstones stay" in done.stderr) == (3, True), done.output
    assert "--confirm-groups-behind" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["erase", "users", "--resume", "e1"], "expected no TOPICS"),
        (["erase", "--resume", "e1", "--key", "a", "--force"], "expected no --key, --force"),
        (
            ["erase", "--resume", "e1", "--confirm-groups-behind"],
            "expected no --confirm-groups-behind",
        ),
        (["erase", "--resume", "e1", "--dry-run", "--reason", "r"], "expected no --reason, --dry-run"),
        (["restore", "--forget"], "--forget needs the ID"),
    ],
    ids=["topics", "key", "confirmation", "dry run", "forget"],
)
def test_what_would_be_ignored_is_refused(words: list[str], said: str) -> None:
    """Before any broker is asked."""
    done = CliRunner().invoke(main, [*words, "-b", "127.0.0.1:1"])
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_a_damaged_file_hides_no_other_work(elsewhere: AnyCluster, tmp_path: Path) -> None:
    """The list has the rest and names the file, with exit code 1; an erasure is refused: the topics of the file are not known."""
    name = elsewhere.create("beside-damage")
    elsewhere.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    words = ["erase", name, "--key", "a", "--reason", "asked"]
    assert run(elsewhere, tmp_path, *words).exit_code == 0
    damaged = tmp_path / "state" / "erasures" / "aa.json"
    damaged.write_text("{")
    listed = run(elsewhere, tmp_path, "restore")
    assert (listed.exit_code, name in listed.stdout, f"{damaged} is damaged" in listed.stderr) == (1, True, True)
    refused = run(elsewhere, tmp_path, *words)
    assert (refused.exit_code, f"{damaged} is damaged" in refused.stderr) == (2, True), refused.output
    damaged.unlink()
    assert run(elsewhere, tmp_path, "restore").exit_code == 0


def test_another_kafka_is_not_said_to_be_silent(
    cluster: AnyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Kafka does answer, so the error suggests no other address: it says that the command is for Diamant."""
    put_in(monkeypatch, Mutant(admin_module, "HTTP_ADDRESS_CONFIG", lambda _real: "no.such.config"))
    done = run(cluster, tmp_path, "certificates")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert (
        "a Kafka broker answers, but it reports no diamant.http.address, so it is not a Diamant broker" in done.stderr
    )
    assert "listens elsewhere" not in done.stderr
