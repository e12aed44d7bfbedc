"""Keys and values whose bytes occur in the broker's own files anyway: zeros, small numbers, topic names, ids.

Those files cannot be removed, so they must not refuse claims.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage import names
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, START_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certified_at, check_claims, pinned, verify
from tests.broker.erasure.records import create, fill, write
from tests.broker.redaction import test_redacting as redacting

TOPIC = "customer-events"
"""Also a key, or a value."""
NAMED = "customer-000042"


async def started_again(tmp_path: Path, key: bytes, value: Callable[[Broker], bytes]) -> Broker:
    """Return a broker with files as after a clean stop: a value of a key in `users`, and a topic with a name."""
    async with broker_at(tmp_path) as broker:
        await create(broker)
        await create(broker, TOPIC)
        # In a snapshot this producer is a row of zeros.
        first = build_batch([Record(0, START_MS, b"k", b"v")], producer_id=0, producer_epoch=0, base_sequence=0)
        broker.node.topics.log("users", 0).append_as_leader(memoryview(first))
        write(broker, (key, value(broker)))
        write(broker, (b"k", b"v"), topic=TOPIC)
        fill(broker)
    return broker_at(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        lambda _: b"\xff" * 14,
        lambda _: bytes(16),
        lambda _: (0).to_bytes(8, "big") + (1).to_bytes(8, "big"),
        lambda _: TOPIC.encode(),
        lambda broker: broker.cluster_id.encode(),
    ],
    ids=["ones", "zeros", "two numbers", "a topic", "the cluster's id"],
)
async def test_a_value_that_is_there_in_any_case_can_be_erased(
    tmp_path: Path, value: Callable[[Broker], bytes]
) -> None:
    """Batch headers, snapshots, checkpoints and meta.properties hold such bytes. The records are found and removed."""
    async with await started_again(tmp_path, KEY, value) as broker:
        first = (await erase(broker)).certificate
        assert first["state"] == "values-gone"
        is_id = value(broker) == broker.cluster_id.encode()
        assert (names.META_PROPERTIES in {one["file"] for one in first["elsewhere"]}) == is_id
        certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
        check_claims(data_of(broker), certificate, KEY)
        assert (await verify(broker, certificate)).outcome == "valid"


@pytest.mark.parametrize("key", [b"\xff" * 12, bytes(16), TOPIC.encode()])
async def test_a_key_that_is_there_in_any_case_can_be_erased(tmp_path: Path, key: bytes) -> None:
    """The certificate lists the name that stays; it is confirmed later."""
    async with await started_again(tmp_path, key, lambda _: PERSON) as broker:
        certificate = (await erase(broker, key, now=True)).certificate
        assert certificate["state"] == "key-gone"
        check_claims(data_of(broker), certificate, key)
        listed = {one["file"] for one in certificate["elsewhere"] if "topic" not in one}
        is_name = key == TOPIC.encode()
        assert (names.RECOVERY_POINT_CHECKPOINT in listed) == is_name
        assert any(text.startswith("Names of topics") for text in certificate["not_covered"]) == is_name
        found = await verify(broker, certificate, key)
        assert (found.outcome, any(note.startswith("Names of topics") for note in found.notes)) == ("valid", is_name)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (names.LOG_START_OFFSET_CHECKPOINT, f"0\n1\n{TOPIC}/{TOPIC} 0 5\n"),
        (names.LOG_START_OFFSET_CHECKPOINT, f"0\n1\n{TOPIC} 0 5 {TOPIC}\n"),
        (names.META_PROPERTIES, f"version=1\n#{TOPIC}\n"),
        (names.META_PROPERTIES, f"cluster.id=e\n#{TOPIC}\n"),
        (names.META_PROPERTIES, f"cluster.id={TOPIC}\ncluster.id=e\n"),
        ("other-checkpoint", f"0\n1\n{TOPIC} 0 5\n"),
    ],
)
async def test_a_file_of_another_form_prevents_a_claim(broker: Broker, file: str, text: str) -> None:
    """A file of another form, or with extra bytes, is treated as any file. The tombstone, which stays for now, is no reason."""
    await create(broker)
    write(broker, (KEY, TOPIC.encode()))
    path = data_of(broker) / file
    path.write_text((path.read_text() if file == names.META_PROPERTIES else "") + text)
    certificate = (await erase(broker)).certificate
    assert certificate["state"] == "not-certified"
    assert {one["file"] for one in certificate["not_certified"][0]["problems"]} == {file}


async def test_a_redacted_value_may_be_a_topics_name(tmp_path: Path) -> None:
    """A redacted value may be a topic's name, as an erased key may."""
    async with broker_at(tmp_path) as broker:
        await redacting.create(broker)
        await create(broker, TOPIC)
        redacting.write(broker, TOPIC.encode(), redacting.OTHER)
        write(broker, (b"k", b"v"), topic=TOPIC)
    async with broker_at(tmp_path) as broker:
        where = f'value == "{TOPIC}"'
        redaction = await broker.redact("orders", where=where, reason="ticket 4711")
        assert (redaction.state, redaction.removed) == ("records-gone", 1)
        assert any(text.startswith("Names of topics") for text in redaction.certificate["not_covered"])
        certificate = redaction.certificate
        found = await check_certificate(broker, certificate, public_key=pinned(certificate), where=where)
        assert (found.outcome, any(note.startswith("Names of topics") for note in found.notes)) == ("valid", True)


@pytest.mark.parametrize("key", ["000000000000", "leader-epoch-checkpoint", "partition.metadata", "diamant-erasure"])
async def test_names_of_the_brokers_own_files_prevent_no_claim(tmp_path: Path, key: str) -> None:
    """A key may be part of such a file name."""
    async with broker_at(tmp_path) as broker:
        await create(broker)
        write(broker, (key.encode(), PERSON))
        fill(broker)
        assert (await erase(broker, key.encode(), now=True)).state == "key-gone"


async def test_a_certificate_does_not_repeat_a_name_with_the_key(broker: Broker) -> None:
    """`key-gone` needs every such file name gone, including a copied segment and a link to a directory."""
    await create(broker)
    write(broker, (NAMED.encode(), PERSON))
    fill(broker)
    path = data_of(broker) / f"exports/{NAMED}.csv"
    path.parent.mkdir()
    path.touch()
    copy = data_of(broker) / f"users-0/{NAMED}.bak"
    copy.write_bytes((data_of(broker) / "users-0/00000000000000000000.log").read_bytes())
    link = path.parent / NAMED
    link.symlink_to(data_of(broker))
    erasure = await erase(broker, NAMED.encode(), now=True, confirm_groups_behind=True)
    assert (erasure.state, NAMED in json.dumps(erasure.certificate)) == ("not-certified", False)
    label = f"[key {erasure.certificate['request']['key_hmac'][:8]}]"
    assert erasure.certificate["coverage"]["links_not_followed"] == [f"exports/{label}"]
    names = {one["file"] for one in erasure.certificate["segments"]["before"]}
    assert f"users-0/{label}.bak" in names.intersection(erasure.certificate["found"][0]["files"])
    for one in (path, copy, link):
        one.unlink()
    erasure = await broker.erase_now(erasure.id, confirm_groups_behind=True)
    assert (erasure.state, NAMED in json.dumps(erasure.certificate)) == ("key-gone", False)
    found = await verify(broker, erasure.certificate, NAMED.encode())
    assert found.outcome == "valid"
    assert not any(NAMED.encode() in one.read_bytes() for one in data_of(broker).rglob("*") if one.is_file())


async def test_an_empty_directory_and_a_link_to_nowhere_count_by_their_names(broker: Broker) -> None:
    """Nothing is certified while the name of one holds a value or the key, and the certificate names it masked."""
    await create(broker)
    write(broker, (NAMED.encode(), PERSON))
    fill(broker)
    directory = data_of(broker) / "users-0/exports" / PERSON.decode()
    directory.mkdir(parents=True)
    link = data_of(broker) / NAMED
    link.symlink_to("nowhere")
    for one, leave in (("users-0/exports/[value ", directory.rmdir), ("[key ", link.unlink)):
        erasure = await erase(broker, NAMED.encode(), now=True, confirm_groups_behind=True)
        problems = [found["file"] for found in erasure.certificate["not_certified"][0]["problems"]]
        assert (erasure.state, [found.startswith(one) for found in problems]) == ("not-certified", [True])
        leave()
    assert (await broker.erase_now(erasure.id, confirm_groups_behind=True)).state == "key-gone"
