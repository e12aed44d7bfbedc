"""Values outside record values: in headers of the key's tombstone, and in the remains of a failed write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.errors import TimedOut
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.errors import KafkaError
from tests.broker.erasure.cases import (
    DAY_MS,
    KEY,
    PERSON,
    START_MS,
    Producer,
    certified_at,
    create,
    create_with_key,
    data_of,
    erase,
    fill,
    pinned,
    values_left,
    write,
)
from tests.broker.erasure.obstacles import erase_in_vain, no_space
from tests.cleaner.evidence.scan.naive_scanner import files_with

SEGMENT = "users-0/00000000000000000000.log"


async def test_a_tombstone_that_says_what_it_deletes_is_superseded(broker: Broker) -> None:
    """By another one, since the values in its headers must be removed, too."""
    await create_with_key(broker)
    write(broker, (KEY, None), headers=[Header("last", PERSON)])
    fill(broker)
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["elsewhere"]) == ("values-gone", [])
    assert "tombstone_offset" in erasure.certificate["done"][0]
    assert (files_with(data_of(broker), PERSON), values_left(broker)) == ([], [None])


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_so_is_one_beside_which_there_is_no_value_any_more(broker: Broker, *, is_transactional: bool) -> None:
    """Its headers may hold anything; a second erasure finds the new tombstone and writes no other."""
    await create(broker)
    if is_transactional:
        producer = Producer(broker, "users", 0, 5)
        producer.write((KEY, None), headers=[Header("last", PERSON)])
        producer.end(is_commit=True)
    else:
        write(broker, (KEY, None), headers=[Header("last", PERSON)])
    fill(broker)
    erasure = await erase(broker)
    offset = erasure.certificate["done"][0]["tombstone_offset"]
    assert (erasure.state, files_with(data_of(broker), PERSON)) == ("values-gone", [])
    assert "tombstone_offset" not in (await erase(broker)).certificate["done"][0]
    await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert offset < broker.node.topics.log("users", 0).log_end_offset


async def test_as_long_as_its_headers_are_there_nothing_is_certified(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction or a copy in a set-aside directory keeps it; the certificate names the place."""
    await create(broker)
    producer = Producer(broker, "users", 0, 5)
    producer.write((b"another", b"one"))
    write(broker, (KEY, None), headers=[Header("last", PERSON)])
    with pytest.raises(TimedOut):
        await erase_in_vain(broker, monkeypatch)
    assert files_with(data_of(broker), PERSON) != []
    producer.end(is_commit=True)
    fill(broker)
    stray = data_of(broker) / f"users-0.{'0' * 32}-stray"
    stray.mkdir()
    batch = build_batch([Record(0, START_MS, KEY, None, (Header("last", PERSON),))], codec=4)
    (stray / "00000000000000000000.log").write_bytes(batch)
    refused = (await erase(broker)).certificate
    assert (refused["state"], refused["not_certified"][0]["state"]) == ("not-certified", "values-present")
    assert refused["not_certified"][0]["problems"][0]["file"].startswith(stray.name)
    shutil.rmtree(stray)
    assert (await erase(broker)).state == "values-gone"
    assert files_with(data_of(broker), PERSON) == []


def tombstones(count: int, header: Header) -> bytes:
    """This number of tombstones without headers, then one with a header."""
    batches = [build_batch([Record(offset, START_MS, KEY, None)]) for offset in range(count)]
    return b"".join([*batches, build_batch([Record(count, START_MS, KEY, None, (header,))])])


@pytest.mark.parametrize("count", [0, MAX_LISTED + 1])
@pytest.mark.parametrize(
    "place",
    [
        "users-0/copy.log",
        f"users-0.{'0' * 32}-stray/{0:020d}.log",
        "copy.log",
        f"users-9.{'0' * 32}-stray/{0:020d}.log",
    ],
)
async def test_a_copy_of_a_tombstone_with_headers_lets_nothing_be_certified(
    broker: Broker, place: str, count: int
) -> None:
    """In any place, after any number without headers: its headers may hold a value."""
    await create(broker)
    fill(broker)
    path = data_of(broker) / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tombstones(count, Header("last", PERSON)))
    refused = (await erase(broker)).certificate
    assert (refused["state"], refused["claims"]) == ("not-certified", [])
    assert {one["file"] for one in refused["not_certified"][0]["problems"]} == {place}
    found = await broker.services.certificates().verify(refused, public_key=pinned(refused), key=KEY)
    assert found.outcome == "not-certified"


async def test_one_that_comes_back_breaks_the_claim(broker: Broker) -> None:
    """As after a restored backup."""
    await create_with_key(broker, others=8)
    certificate = (await erase(broker)).certificate
    (data_of(broker) / "users-0" / "copy.log").write_bytes(tombstones(0, Header("last", b"something else")))
    found = await broker.services.certificates().verify(certificate, public_key=pinned(certificate), key=KEY)
    assert (found.outcome, found.claims[0]["state_now"]) == ("broken", "values-present")


async def test_what_a_failed_write_has_left_is_searched(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk filled up in the middle of a batch, and the partial batch could not be truncated."""
    await create(broker)
    write(broker, (b"somebody", b"else"))
    log = broker.node.topics.log("users", 0)
    kind = type(log.active.file)
    real = kind.append

    def append(self: Any, *buffers: Any) -> None:
        if self is log.active.file:
            with Path(log.active.path).open("r+b") as file:
                os.pwrite(file.fileno(), b"".join(bytes(one) for one in buffers)[:-1], log.active.size)
            no_space()
        real(self, *buffers)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "append", append)
        patched.setattr(kind, "truncate", no_space)
        with pytest.raises((KafkaError, OSError)):
            write(broker, (KEY, PERSON))
    assert log.write_failure is not None
    assert PERSON in (data_of(broker) / SEGMENT).read_bytes()
    refused = (await erase(broker)).certificate
    assert (refused["state"], refused["not_certified"][0]["state"]) == ("not-certified", "inconclusive")
    assert refused["not_certified"][0]["problems"][0]["file"] == SEGMENT
