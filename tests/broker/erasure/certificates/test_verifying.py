"""Verification of certificates by the broker that issued them, and of forged ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.certificate import CertificateError, parse_certificate, sign_certificate
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import CheckedFiles
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import pinned, verify
from tests.broker.erasure.records import create, create_with_key, write


async def test_a_certificate_is_verified_against_the_broker(broker: Broker) -> None:
    """A pinned key makes it trusted; without one the signer is untrusted; a manual clock is reported."""
    await create_with_key(broker)
    erasure = await erase(broker)
    found = await verify(broker, erasure.certificate, None)
    assert (found.is_valid, found.signature, found.was_scanned) == (True, "trusted", True)
    assert not found.is_evidence
    assert "not evidence" in found.notes[0]
    assert [one["verdict"] for one in found.claims] == ["holds"]
    unknown = await check_certificate(broker, erasure.certificate)
    assert (unknown.is_valid, unknown.signature) == (False, "untrusted signer")
    other = await check_certificate(broker, erasure.certificate, public_key=bytes(32))
    assert (other.is_valid, "another key" in other.signature) == (False, True)


async def test_a_forged_certificate_cannot_probe_files(broker: Broker, tmp_path: Path) -> None:
    """A forged certificate cannot probe a file's bytes, nor whether a topic has a key."""
    await create_with_key(broker)
    genuine = (await erase(broker)).certificate
    write(broker, (b"customer-7", PERSON))
    name = "users-0/00000000000000000000.log"
    beginning = (data_of(broker) / name).read_bytes()[:20]
    guess = {"file": name, "size": len(beginning), "sha256": hashlib.sha256(beginning).hexdigest()}
    key = SigningKey.load(str(tmp_path / "forger.pem"))
    fields = {name: value for name, value in genuine.items() if name != "signature"}
    forged = sign_certificate({**fields, "segments": {**fields["segments"], "after": [guess]}}, key)
    for options in ({}, {"public_key": key.public_bytes}, {"key": KEY}, {"key": b"customer-7"}):
        found = await check_certificate(broker, forged, **options)
        assert (found.segments, found.was_scanned, found.is_valid) == ([], False, False)
        assert {one["verdict"] for one in found.claims} == {"cannot be told"}
        assert "not with this broker's key" in found.notes[-1]


async def test_later_writes_and_values_that_come_back_are_distinguished(broker: Broker) -> None:
    """Records written after the claim are listed; a restored old segment breaks the claim."""
    await create_with_key(broker)
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    erasure = await erase(broker)
    write(broker, (KEY, b"a customer again"))
    found = await verify(broker, erasure.certificate)
    assert (found.is_valid, found.claims[0]["written_since"]) == (True, 1)
    (data_of(broker) / "users-0" / "00000000000000000000.log.swap").write_bytes(old)
    found = await verify(broker, erasure.certificate, None)
    assert (found.is_valid, found.claims[0]["verdict"]) == (False, "broken")


async def test_a_changed_certificate_is_refused(broker: Broker) -> None:
    """A certificate with any field changed, or truncated, is not valid."""
    await create_with_key(broker)
    erasure = await erase(broker)
    changes: tuple[dict[str, Any], ...] = ({"state": "key-gone"}, {"claims": []}, {"is_evidence": True}, {"extra": 1})
    for change in changes:
        found = await check_certificate(
            broker, {**erasure.certificate, **change}, public_key=pinned(erasure.certificate)
        )
        assert (found.is_valid, "not valid" in found.signature) == (False, True)
    text = json.dumps(erasure.certificate).encode()
    for cut in (0, 10, len(text) // 2, len(text) - 1):
        with pytest.raises(CertificateError):
            parse_certificate(text[:cut])
    with pytest.raises(BadArgument):
        await check_certificate(broker, {"type": "something"})


async def test_a_missing_partition_confirms_nothing(broker: Broker, tmp_path: Path) -> None:
    """An empty directory, or one without the partition, confirms nothing, without a secret or a scan, too."""
    await create(broker)
    await create(broker, "others")
    write(broker, (KEY, PERSON))
    write(broker, (KEY, PERSON), topic="others")
    certificate = (await erase(broker, topics=("users", "others"))).certificate
    secret = SigningKey.load(str(tmp_path / "keys" / "certificate.key")).secret
    (tmp_path / "empty").mkdir()
    for options in ({"key": KEY, "secret": secret}, {"secret": secret}, {}):
        found = verify_certificate(
            certificate, pinned(certificate), CheckedFiles(RealEnv(), str(tmp_path / "empty")), **options
        )  # type: ignore[arg-type]
        assert (found.is_valid, {one["verdict"] for one in found.claims}) == (False, {"cannot be told"})
        assert any(one.startswith("others-0, users-0: not there.") for one in found.notes)
    await delete_topics(broker.node.topics, ["others"])
    broker.services.evidence().remove_doomed(["others"], [])
    found = await verify(broker, certificate, None)
    verdicts = {one["topic"]: (one["verdict"], one["state_now"]) for one in found.claims}
    assert verdicts == {"users": ("holds", "values-gone"), "others": ("cannot be told", "not-there")}
    assert not found.is_valid


async def test_the_directory_stays_locked(broker: Broker) -> None:
    """A scan reads all files, including the lock's; no other broker can take the directory during it."""
    await create_with_key(broker)
    certificate = (await erase(broker)).certificate
    assert (await verify(broker, certificate, None)).was_scanned
    code = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-S", "-c", code, str(data_of(broker) / names.LOCK)]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    assert b"BlockingIOError" in (await process.communicate())[1]


async def test_a_topic_that_waits_to_be_deleted_is_not_confirmed(broker: Broker) -> None:
    """Its files remain for a minute but no longer belong to the topic; a value in them still counts."""
    await create_with_key(broker)
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    certificate = (await erase(broker)).certificate
    await delete_topics(broker.node.topics, ["users"])
    (directory,) = data_of(broker).glob("users-0.*-delete")
    found = await verify(broker, certificate)
    assert (found.outcome, [one["state_now"] for one in found.claims]) == ("not-confirmed", ["not-there"])
    assert any(one.startswith("users-0: not there. The topic was deleted since") for one in found.notes)
    (directory / "00000000000000000000.log.swap").write_bytes(old)
    found = await verify(broker, certificate)
    assert (found.outcome, [one["verdict"] for one in found.claims]) == ("broken", ["broken"])


async def test_topics_are_compared_without_a_secret(broker: Broker) -> None:
    """Without a secret, verification reports a topic as deleted, recreated, or of unknown identity, from the files alone."""
    await create_with_key(broker)
    certificate = (await erase(broker)).certificate

    def look() -> tuple[str, list[Any], bool]:
        found = verify_certificate(certificate, pinned(certificate), CheckedFiles(RealEnv(), str(data_of(broker))))
        return found.outcome, [one.get("state_now") for one in found.claims], found.was_scanned

    assert look() == ("not-confirmed", [None], False)
    (data_of(broker) / "users-0" / names.PARTITION_METADATA).write_text("nonsense")
    assert look() == ("not-confirmed", ["unknown"], False)
    await delete_topics(broker.node.topics, ["users"])
    assert look() == ("not-confirmed", ["not-there"], False)
    await create(broker)
    assert look() == ("not-confirmed", ["topic-recreated"], False)


async def test_the_outcome_is_a_word(broker: Broker) -> None:
    """The gravest outcome wins: not evidence, no pinned key, a value is back, nothing certified, undecided."""
    await create_with_key(broker)
    certificate = (await erase(broker)).certificate
    found = verify_certificate(certificate, pinned(certificate))
    assert (found.outcome, "no file was read" in found.notes[-1]) == ("valid", True)
    claims = [{"verdict": verdict} for verdict in ("holds", "cannot be told", "broken")]
    for changes, outcome in (
        ({"claims": claims[:2]}, "not-confirmed"),
        ({"state": "not-certified"}, "not-certified"),
        ({"claims": claims}, "broken"),
        ({"signature": "untrusted signer"}, "untrusted"),
        ({"coverage_adds_up": False}, "not-valid"),
    ):
        found = replace(found, **changes)
        assert (found.outcome, found.is_valid, found.to_fields()["outcome"]) == (outcome, False, outcome)


async def test_the_condition_must_suit_the_kind_of_certificate(broker: Broker) -> None:
    """A redaction's condition does not apply to the certificate of an erasure."""
    await create(broker)
    certificate = (await erase(broker)).certificate
    with pytest.raises(BadArgument, match="certificate of an erasure: verify it with a key"):
        await check_certificate(broker, certificate, public_key=pinned(certificate), where='key == "k"')


async def test_without_the_secret_no_claim_is_confirmed(broker: Broker) -> None:
    """Any other key would not be found either, and one that is found proves nothing about the certificate."""
    await create(broker)
    write(broker, (KEY, PERSON), (b"customer-7", PERSON))
    certificate = (await erase(broker)).certificate
    for key, below in ((KEY, 0), (b"customer-8", 0), (b"customer-7", 1)):
        found = verify_certificate(
            certificate, pinned(certificate), CheckedFiles(RealEnv(), str(data_of(broker))), key=key
        )
        assert (found.is_valid, {one["verdict"] for one in found.claims}) == (False, {"cannot be told"})
        assert any(f"it is in {below} of 1 partitions" in one for one in found.notes)


async def test_the_key_in_a_file_of_nobody_leaves_the_claim_open(broker: Broker) -> None:
    """`key-gone` is not confirmed while stray bytes of the key, or an unreadable file, exist."""
    key = b"customer-number-42"
    await create(broker)
    write(broker, (key, PERSON))
    certificate = (await erase(broker, key, now=True)).certificate
    assert certificate["state"] == "key-gone"
    arguments: dict[str, Any] = {"public_key": pinned(certificate), "key": key}
    (data_of(broker) / "dump.csv").write_bytes(PERSON)
    found = await check_certificate(broker, certificate, **arguments)
    assert found.is_valid
    assert any(one.startswith("Values outside of records, as in files beside the logs, are") for one in found.notes)
    (data_of(broker) / "notes.txt").write_bytes(b"remember " + key)
    found = await check_certificate(broker, certificate, **arguments)
    assert (found.is_valid, found.claims[0]["verdict"]) == (False, "cannot be told")
    assert "Files outside all partitions that contain the key: notes.txt." in found.notes
    (data_of(broker) / "notes.txt").unlink()
    (data_of(broker) / "copies" / "users").mkdir(parents=True)
    copy = build_batch([Record(0, 1000, key, PERSON)], codec=4)
    (data_of(broker) / "copies" / "users" / "00000000000000000000.log").write_bytes(copy)
    assert (await verify(broker, certificate, key)).claims[0]["verdict"] == "cannot be told"
