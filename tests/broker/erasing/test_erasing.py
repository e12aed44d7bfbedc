"""Erase and certify in a whole broker: the two states, what is found on the way, what is refused."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.verbs import erasing
from diamant.broker.verbs.errors import BadArgument, NotFound, NotPossible, TimedOut
from diamant.cleaner.evidence.signing_key import SigningKey
from diamant.protocol.records import Header, Record, build_batch
from tests.broker.erasing.cases import (
    DAY_MS,
    KEY,
    PERSON,
    START_MS,
    Producer,
    check_claims,
    clock_of,
    config,
    create,
    data_of,
    env_at,
    erase,
    fill,
    write,
)
from tests.cleaner.evidence.naive_scanner import files_with, log_files, records_in, records_of_key
from tests.waiting import wait_until

# -- the two states ------------------------------------------------------------------------------------------------------


async def test_values_are_gone_at_once_and_the_key_after_the_horizon(broker: Broker) -> None:
    """In every partition that has the key; the second certificate comes by itself, to the millisecond."""
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
    assert len(records_of_key(data_of(broker), "users", KEY)) == 2

    clock_of(broker).set_ms(START_MS + DAY_MS - 1)
    broker.scheduler.poke()
    assert (await broker.erasures.certificate(erasure.id))["state"] == "values-gone"
    assert len(records_of_key(data_of(broker), "users", KEY)) == 2

    clock_of(broker).set_ms(START_MS + DAY_MS)
    broker.scheduler.poke()
    await wait_until(lambda: list(data_of(broker).glob("*.key-gone.json")) != [])
    final = await broker.erasures.certificate(erasure.id)
    assert (final["state"], final["request"]["reference"]) == ("key-gone", "ticket 7")
    assert records_of_key(data_of(broker), "users", KEY) == []
    assert files_with(data_of(broker), KEY) == []
    assert list(data_of(broker).glob("*.intent")) == []
    check_claims(data_of(broker), final, KEY)


async def test_the_horizon_can_be_overridden(broker: Broker) -> None:
    """All other records keep their offsets; the groups that were behind stand in the certificate."""
    await create(broker)
    write(broker, (KEY, PERSON), (b"other", b"stays"))
    fill(broker)
    erasure = await erase(broker, is_now=True)
    assert (erasure.state, erasure.next_due_ms) == ("key-gone", None)
    assert erasure.certificate["overrides"][0]["groups_that_had_not_passed_it"] == []
    assert records_of_key(data_of(broker), "users", KEY) == []
    kept = [one for path in log_files(data_of(broker), "users") for one in records_in(path)]
    assert (1, b"other", b"stays") in [one[1:] for one in kept]
    assert len(kept) == 11


async def test_a_key_that_is_nowhere_is_certified_so(broker: Broker) -> None:
    """Nothing is written; the certificate says that nothing was found."""
    await create(broker, partitions=2)
    fill(broker)
    ends = [broker.topics.log("users", index).log_end_offset for index in (0, 1)]
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["found"], erasure.next_due_ms) == ("key-gone", [], None)
    assert [broker.topics.log("users", index).log_end_offset for index in (0, 1)] == ends


async def test_a_second_erase_writes_no_second_tombstone(broker: Broker) -> None:
    """The first one's horizon stays as it is."""
    await create(broker)
    write(broker, (KEY, PERSON))
    first = await erase(broker)
    clock_of(broker).advance_ms(1000)
    second = await erase(broker)
    assert (second.state, second.next_due_ms) == ("values-gone", first.next_due_ms)
    assert len(records_of_key(data_of(broker), "users", KEY)) == 1


async def test_a_write_during_the_erase_is_named_and_not_erased(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim ends behind the tombstone."""
    await create(broker)
    write(broker, (KEY, PERSON))
    fill(broker)
    real, offsets = erasing.Erasures._scan, []

    async def scan(self: Any, *arguments: Any) -> Any:
        offsets.append(write(broker, (KEY, b"written during the erase")))
        return await real(self, *arguments)

    monkeypatch.setattr(erasing.Erasures, "_scan", scan)
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    assert [one["offset"] for one in erasure.written_since] == offsets
    assert erasure.certificate["claims"][0]["below_offset"] <= offsets[0]
    assert files_with(data_of(broker), PERSON) == []


async def test_the_same_bytes_elsewhere_are_listed(broker: Broker) -> None:
    """Under another key, in a header of another topic, as the same key of another topic."""
    await create(broker)
    await create(broker, "orders", policy="delete")
    write(broker, (KEY, PERSON), (b"twin", PERSON))
    log = broker.topics.log("orders", 0)
    log.append_as_leader(memoryview(build_batch([Record(0, START_MS, KEY, b"-", (Header("by", PERSON),))], codec=3)))
    erasure = await erase(broker)
    found = sorted((one["topic"], one["what"]) for one in erasure.certificate["elsewhere"])
    assert erasure.state == "values-gone"
    assert found == [("orders", "same-bytes"), ("orders", "same-key"), ("users", "same-bytes")]


@pytest.mark.parametrize("key", [b"", b"42", b"\x00\xff\xfe", "Zürich".encode()])
async def test_keys_are_bytes(broker: Broker, key: bytes) -> None:
    """Empty, short, binary and UTF-8."""
    await create(broker)
    write(broker, (key, b"{}"), (b"4", b"{}"), (b"", b"{}") if key else (b"x", b"{}"))
    erasure = await erase(broker, key)
    assert erasure.state == "values-gone"
    assert [one.value for one in records_of_key(data_of(broker), "users", key)] == [None]
    check_claims(data_of(broker), erasure.certificate, key)


# -- what is refused or not certified ------------------------------------------------------------------------------------


async def test_mistakes_are_refused_before_anything_is_written(broker: Broker) -> None:
    """Unknown, internal and delete-only topics, no topic, no reason."""
    await create(broker)
    await create(broker, "events", policy="delete")
    for topics, error in ((["nothing"], NotFound), (["events"], NotPossible), ([], BadArgument)):
        with pytest.raises(error):
            await erase(broker, topics=topics)
    with pytest.raises(BadArgument):
        await broker.erase(KEY, ["users"], reason=" ")
    assert list(data_of(broker).glob("diamant-erasure-*")) == []


async def test_a_partition_that_cannot_be_read_gets_no_claim(broker: Broker) -> None:
    """The others do; the certificate as a whole certifies nothing."""
    await create(broker, partitions=2)
    for partition in (0, 1):
        write(broker, (KEY, PERSON), partition=partition)
        fill(broker, partition=partition)
    segment = sorted(data_of(broker).glob("users-1/*.log"))[0]
    damaged = bytearray(segment.read_bytes())
    damaged[80] ^= 1
    segment.write_bytes(damaged)
    erasure = await erase(broker)
    assert erasure.state == "not-certified"
    assert [one["partition"] for one in erasure.certificate["claims"]] == [0]
    assert [(one["partition"], one["state"]) for one in erasure.certificate["not_certified"]] == [(1, "inconclusive")]
    check_claims(data_of(broker), erasure.certificate, KEY)


async def test_an_open_transaction_ends_in_a_timeout_that_says_so(broker: Broker) -> None:
    """No certificate; the intent stays, and the erasure goes on."""
    await create(broker)
    write(broker, (KEY, PERSON))
    Producer(broker, "users", 0, 5).write((KEY, PERSON))
    with pytest.raises(TimedOut, match="goes on"):
        await erase(broker, timeout_ms=400)
    assert list(data_of(broker).glob("*.json")) == []
    assert len(list(data_of(broker).glob("*.intent"))) == 1
    assert len(broker.erasures.unfinished()) == 1


async def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Before anything is changed."""
    async with Broker(config(tmp_path), env=env_at()) as broker:
        await create(broker)
        path = tmp_path / "keys" / "certificate.key"
        SigningKey.load(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        with pytest.raises(NotPossible, match="chmod 600"):
            await erase(broker)


async def test_no_key_and_no_value_is_in_logs_or_certificates(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """They are told by digests only."""
    with caplog.at_level(logging.DEBUG):
        await create(broker)
        write(broker, (KEY, PERSON))
        erasure = await erase(broker)
    for secret in (KEY.decode(), "Anna"):
        assert secret not in caplog.text
        assert secret not in json.dumps(erasure.to_fields())
