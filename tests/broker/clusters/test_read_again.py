"""`diamant verify` of an erasure on a cluster of other brokers, which reads its replicas again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.clusters.operations import erase
from diamant.broker.clusters.register import Register
from diamant.broker.commands.admin.verify import verify
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster
from tests.broker.clusters.test_erasing_oddities import DELETE_TOPICS

KEY = b"customer-42"


@pytest.fixture
def erased(cluster: AnyCluster, register: Register, tmp_path: Path) -> Path:
    """The certificate of an erasure, with the public key of its signer beside it."""
    name = f"read-{register.new_id()}"
    cluster.create(name)
    cluster.produce(name, [(KEY, b"a value"), (b"other", b"2")], timestamp_ms=OLD_MS)
    found = erase(cluster.client, KEY, [name], reason="asked", timeout_s=120.0, register=register)
    assert found["state"] == "unreadable"
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(found["certificate"]))
    (tmp_path / "public").write_text(found["certificate"]["signature"]["public_key"])
    return path


def run(cluster: AnyCluster, path: Path, register: Register, *more: str, is_signer: bool = True) -> Result:
    """Verify with the signer's state directory, or with an empty one."""
    state = register.directory if is_signer else path.parent / "nobody"
    words = [str(path), "--public-key", str(path.parent / "public"), "-b", cluster.bootstrap, *more]
    return CliRunner().invoke(verify, words, env={"DIAMANT_STATE_DIR": str(state)})


def topic_of(path: Path) -> str:
    """Return the erased topic."""
    (name,) = json.loads(path.read_text())["request"]["topics"]
    return str(name)


def test_claims_hold_until_a_value_is_there_again(cluster: AnyCluster, register: Register, erased: Path) -> None:
    """A record that was written since does not count; one below the claim's end, as from a replica that was down, does."""
    found = run(cluster, erased, register, "--key", "customer-42", "--json")
    told = json.loads(found.output)
    assert "outcome" in told, told
    assert (found.exit_code, told["outcome"], told["was_scanned"]) == (0, "valid", True)
    assert [(claim["verdict"], claim["written_since"]) for claim in told["claims"]] == [("holds", 0)]
    assert not any("nothing was read again" in note for note in told["notes"])
    cluster.produce(topic_of(erased), [(KEY, b"again")])
    told = json.loads(run(cluster, erased, register, "--key", "customer-42", "--json").output)
    assert [(claim["verdict"], claim["written_since"]) for claim in told["claims"]] == [("holds", 1)]
    fields = json.loads(erased.read_text())
    with_later_end(fields, cluster, register)
    erased.write_text(json.dumps(fields))
    found = run(cluster, erased, register, "--key", "customer-42")
    assert (found.exit_code, "BROKEN" in found.output) == (3, True), found.output


def with_later_end(fields: dict[str, object], cluster: AnyCluster, register: Register) -> None:
    """Sign the certificate with claims that end behind all records: the later value is then one that was certified as gone."""
    from diamant.broker.clusters.certificate import signing_key
    from diamant.cleaner.evidence.certificates.certificate import sign_certificate

    (claim,) = fields["claims"]  # type: ignore[misc]
    claim["below_offset"] = end = 1 + max(one.offset for one in cluster.held(claim["topic"]))
    for row in claim["replicas"]:
        row["to_offset"] = end
    del fields["signature"]
    fields.update(sign_certificate(fields, signing_key(str(register.directory))))


def test_without_the_secret_no_claim_is_confirmed(cluster: AnyCluster, register: Register, erased: Path) -> None:
    """The certificate has only a digest of its key: another machine needs the secret to tell whether it is this key."""
    found = run(cluster, erased, register, "--key", "customer-42", is_signer=False)
    assert (found.exit_code, "Without the secret" in found.output) == (3, True)
    secret = str(register.directory / "signing-key.secret")
    found = run(cluster, erased, register, "--key", "customer-42", "--secret", secret, is_signer=False)
    assert found.exit_code == 0, found.output
    found = run(cluster, erased, register, "--key", "another", "--secret", secret, is_signer=False)
    assert (found.exit_code, "another key" in found.output) == (2, True)
    found = run(cluster, erased, register, "--key", "another")
    assert (found.exit_code, "the certificate is not about this key" in found.output) == (2, True), found.output
    assert "partition" not in found.output


def test_a_topic_that_was_created_again_confirms_nothing(cluster: AnyCluster, register: Register, erased: Path) -> None:
    """Nor does one that is gone. Without the key, nothing is read."""
    name = topic_of(erased)
    fields = {"topic_names": [name], "topics": [{"name": name, "topic_id": None}], "timeout_ms": 30_000}
    assert not cluster.client.controller().ask(DELETE_TOPICS, fields)["responses"][0]["error_code"]
    cluster.wait_gone(name)
    told = json.loads(run(cluster, erased, register, "--key", "customer-42", "--json").output)
    assert [claim["state_now"] for claim in told["claims"]] == ["not-there"]
    cluster.create(name)
    told = json.loads(run(cluster, erased, register, "--key", "customer-42", "--json").output)
    assert (told["outcome"], [claim["state_now"] for claim in told["claims"]]) == ("not-confirmed", ["topic-recreated"])
    told = json.loads(run(cluster, erased, register, "--json").output)
    assert (told["outcome"], told["was_scanned"]) == ("valid", False)


@pytest.mark.parametrize(
    ("issuer", "exit_code", "told"),
    [({"cluster_id": "another"}, 2, "is about cluster another"), ({}, 3, "not in the expected form")],
)
def test_another_cluster_is_refused(
    cluster: AnyCluster, register: Register, erased: Path, issuer: dict[str, str], exit_code: int, told: str
) -> None:
    """Its replicas say nothing about the erasure; nor do any if the certificate names no cluster."""
    fields = json.loads(erased.read_text())
    fields["issuer"] = issuer
    from diamant.broker.clusters.certificate import signing_key
    from diamant.cleaner.evidence.certificates.certificate import sign_certificate

    del fields["signature"]
    erased.write_text(json.dumps(sign_certificate(fields, signing_key(str(register.directory)))))
    found = run(cluster, erased, register, "--key", "customer-42")
    assert (found.exit_code, told in found.output) == (exit_code, True), found.output
