"""Erasure and certification in a whole broker: the two states, findings, digests of segments, refusals."""

from __future__ import annotations

import asyncio
import json
import logging
from hashlib import sha256
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import broker_at, clock_of, data_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, START_MS
from tests.broker.erasure.erasing import erase, intents_of, traces_of
from tests.broker.erasure.faulty_env import Held
from tests.broker.erasure.issued import certified_at, check_claims
from tests.broker.erasure.records import create, create_with_key, fill, values_left, write
from tests.cleaner.evidence.scan.naive_scanner import files_with
from tests.waiting import wait_until

# -- the two states ------------------------------------------------------------------------------------------------------


async def test_values_are_gone_at_once_and_the_key_after_the_horizon(broker: Broker) -> None:
    """Values go in every partition with the key; the second certificate follows automatically, to the millisecond."""
    await create(broker, partitions=3)
    for partition, codec in ((0, 4), (2, 0)):
        for version in range(3):
            write(broker, (KEY, b"%d " % version + PERSON), partition=partition, codec=codec)
            fill(broker, partition=partition)
    erasure = await erase(broker, reference="ticket 7")
    assert erasure.state == "values-gone"
    assert {(one["partition"], one["values"]) for one in erasure.certificate["found"]} == {(0, 3), (2, 3)}
    assert files_with(data_of(broker), PERSON) == []
    check_claims(data_of(broker), erasure.certificate, KEY)
    assert erasure.next_due_ms == erasure.certificate["next"]["due_ms"] == START_MS + DAY_MS
    assert values_left(broker) == [None, None]

    move_to(broker, START_MS + DAY_MS - 1)
    assert (await broker.services.certificates().last(erasure.id))["state"] == "values-gone"
    assert values_left(broker) == [None, None]

    await certified_at(broker, START_MS + DAY_MS, "key-gone")
    final = await broker.services.certificates().last(erasure.id)
    assert (final["state"], final["request"]["reference"]) == ("key-gone", "ticket 7")
    assert values_left(broker) == []
    assert files_with(data_of(broker), KEY) == []
    assert intents_of(broker) == []
    check_claims(data_of(broker), final, KEY)


async def test_a_key_that_is_nowhere_is_certified_so(broker: Broker) -> None:
    """Nothing is written; the certificate states that nothing was found."""
    await create(broker, partitions=2)
    fill(broker)
    ends = [broker.node.topics.log("users", index).log_end_offset for index in (0, 1)]
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["found"], erasure.next_due_ms) == ("nothing-matched", [], None)
    assert [broker.node.topics.log("users", index).log_end_offset for index in (0, 1)] == ends
    assert ([one["state"] for one in await broker.services.certificates().list_all()], intents_of(broker)) == (
        ["nothing-matched"],
        [],
    )
    assert (broker.services.erasures().table.done, (await broker.erase_now(erasure.id)).state) == (1, "nothing-matched")
    page = certificate_page(erasure.certificate)
    assert "Nothing was found, and nothing was removed" in page
    assert "This proves no removal" in page


async def test_a_certificate_of_mode_kafka_names_its_version(tmp_path: Path) -> None:
    """The certificate names mode kafka, and beside it the version of Kafka whose rules it follows."""
    properties = {"diamant.cleaner.mode": "kafka", "diamant.cleaner.kafka.version": "4.3"}
    async with broker_at(tmp_path, **properties) as broker:
        await create(broker)
        settings = (await erase(broker)).certificate["configuration"]["users"]
    assert (settings["diamant.cleaner.mode"], settings["diamant.cleaner.kafka.version"]) == ("kafka", "4.3")


async def test_a_certificate_that_found_nothing_is_not_valid_but_said_to_have_found_nothing(broker: Broker) -> None:
    """The certificate has a state of its own; a later value below the claim breaks it all the same. One of an earlier version
    with `key-gone` stays valid.
    """
    await create(broker)
    fill(broker)
    erasure = await erase(broker)
    pinned = bytes.fromhex(erasure.certificate["signature"]["public_key"])
    verified = await check_certificate(broker, erasure.certificate, public_key=pinned, key=KEY)
    assert (verified.outcome, verified.is_valid, verified.claims[0]["verdict"]) == ("nothing-matched", False, "holds")
    assert verified.notes[1:] == [
        "Nothing was found when it was issued, and nothing was removed, so it proves no removal.",
        "Values outside of records, as in files beside the logs, are not looked for: a certificate does not contain them. "
        "Neither is the key: it was not given, or has fewer than 12 bytes.",
    ]
    assert verify_certificate(erasure.certificate, pinned).outcome == "nothing-matched"
    key = SigningKey.load(str(broker.config["diamant.certificate.key.file"]))
    fields = {name: one for name, one in erasure.certificate.items() if name != "signature"}
    older = sign_certificate({**fields, "state": "key-gone"}, key)
    assert (await check_certificate(broker, older, public_key=pinned, key=KEY)).outcome == "valid"
    claims = [{**one, "below_offset": 1000} for one in erasure.certificate["claims"]]
    wider = sign_certificate({**fields, "claims": claims}, key)
    write(broker, (KEY, PERSON))
    assert (await check_certificate(broker, wider, public_key=pinned, key=KEY)).outcome == "broken"


async def test_a_key_of_which_there_was_only_a_tombstone_was_found(broker: Broker) -> None:
    """The tombstone names the key and is removed: that counts as found."""
    await create(broker)
    write(broker, (KEY, None))
    fill(broker)
    assert (await erase(broker)).state == "values-gone"
    await certified_at(broker, START_MS + DAY_MS, "key-gone")


async def test_a_second_erase_writes_no_second_tombstone(broker: Broker) -> None:
    """The horizon of the first one stays."""
    await create_with_key(broker)
    first = await erase(broker)
    clock_of(broker).advance_ms(1000)
    second = await erase(broker)
    assert (second.state, second.next_due_ms) == ("values-gone", first.next_due_ms)
    assert values_left(broker) == [None]


async def test_the_same_bytes_elsewhere_are_listed(broker: Broker) -> None:
    """The certificate lists the same bytes under another key, in a header of another topic, and as the same key of another
    topic.
    """
    await create(broker)
    await create(broker, "orders", policy="delete")
    write(broker, (KEY, PERSON), (b"twin", PERSON))
    log = broker.node.topics.log("orders", 0)
    log.append_as_leader(memoryview(build_batch([Record(0, START_MS, KEY, b"-", (Header("by", PERSON),))], codec=3)))
    erasure = await erase(broker)
    found = sorted((one["topic"], one["what"]) for one in erasure.certificate["elsewhere"])
    assert erasure.state == "values-gone"
    assert found == [("orders", "same-bytes"), ("orders", "same-key"), ("users", "same-bytes")]


@pytest.mark.parametrize("key", [b"", b"\x00\xff\xfe", "Zürich".encode()])
async def test_keys_are_bytes(broker: Broker, key: bytes) -> None:
    """Keys that are empty, binary or UTF-8 are erased alike."""
    await create(broker)
    write(broker, (key, b"{}"), (b"4", b"{}"), (b"", b"{}") if key else (b"x", b"{}"))
    erasure = await erase(broker, key)
    assert erasure.state == "values-gone"
    assert values_left(broker, key) == [None]
    check_claims(data_of(broker), erasure.certificate, key)


# -- what is refused or not certified ------------------------------------------------------------------------------------


async def test_mistakes_are_refused_before_anything_is_written(broker: Broker) -> None:
    """Unknown, internal and delete-only topics are refused, and requests without a topic or a reason."""
    await create(broker)
    await create(broker, "events", policy="delete")
    for topics, error in ((["nothing"], NotFound), (["events"], NotPossible), ([], BadArgument)):
        with pytest.raises(error):
            await erase(broker, topics=topics)
    with pytest.raises(BadArgument):
        await broker.erase(KEY, ["users"], reason=" ")
    assert traces_of(broker) == []


async def test_no_key_and_no_value_is_in_logs_or_certificates(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Logs and certificates have only digests of the key and the values."""
    with caplog.at_level(logging.DEBUG):
        await create_with_key(broker)
        erasure = await erase(broker)
    for secret in (KEY.decode(), "Anna"):
        assert secret not in caplog.text
        assert secret not in json.dumps(erasure.to_fields())


def digests_of(directory: Path) -> dict[str, str]:
    """Return the digests of the segments of `users`."""
    return {
        f"{path.parent.name}/{path.name}": sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("users-*/*.log")
    }


async def test_no_segment_is_replaced_before_its_digest_is_on_the_disk(broker: Broker) -> None:
    """The round has written its outputs by then, so a certificate has the digests after any stop."""
    await create_with_key(broker, others=30)
    before = digests_of(data_of(broker))
    # That of the request comes first, then what was found.
    held = Held(broker.env, "rename", "*.intent.tmp", after=2)
    erasing = asyncio.create_task(erase(broker))
    await wait_until(held.begun.is_set)
    await wait_until(lambda: [*data_of(broker).glob("users-0/*.log.cleaned")] != [])
    assert digests_of(data_of(broker)).items() >= before.items() - {(max(before), before[max(before)])}
    assert PERSON in values_left(broker)
    holds = (await broker.services.cleaning.service()).rounds.swap_holds
    released = asyncio.create_task(holds.released(("users", 0)))
    await asyncio.sleep(0)
    assert not released.done()
    held.go_on.set()
    erasure = await erasing
    await released
    assert erasure.state == "values-gone"
    assert values_left(broker) == [None]
    (found,), (digest,) = erasure.certificate["found"], erasure.certificate["segments"]["before"]
    assert [digest["file"]] == found["files"]
    assert digest["sha256"] == before[digest["file"]]


async def test_many_segments_are_hashed_before_anything_is_compacted(broker: Broker) -> None:
    """Hashing takes long, and a held round would delay those of other logs."""
    await create_with_key(broker, partitions=3, others=30)
    before = digests_of(data_of(broker))
    held = Held(broker.env, "rename", "*.intent.tmp", after=2)
    erasing = asyncio.create_task(erase(broker))
    await wait_until(held.begun.is_set)
    assert erasing.done() is False
    assert broker.services.erasures().table.busy
    assert [*data_of(broker).glob("users-*/*.cleaned")] == []
    held.go_on.set()
    erasure = await erasing
    after = {one["file"]: one["sha256"] for one in erasure.certificate["segments"]["before"]}
    assert len(after) == 3
    assert after.items() <= before.items()


@pytest.mark.slow
async def test_the_worker_of_the_round_starts_while_the_key_is_located(tmp_path: Path) -> None:
    """In a broker without traffic, the worker starts during the search if the log is too large for a thread."""
    async with broker_at(tmp_path) as broker:
        await create(broker, segment_bytes=10_000_000)
        write(broker, (KEY, PERSON))
        for number in range(5):
            write(broker, (b"large-%d" % number, bytes(1_000_000)))
    async with broker_at(tmp_path) as broker:
        held = Held(broker.env, "rename", "*.intent.tmp", after=1)
        erasing = asyncio.create_task(erase(broker))
        await wait_until(held.begun.is_set)
        slots = (await broker.services.cleaning.service()).slots
        await wait_until(lambda: any(one.worker_pid for one in slots.process_runners))
        held.go_on.set()
        erasure = await erasing
    assert erasure.state == "values-gone"
    assert erasure.certificate["done"][0]["runners"] == ["process"]
