"""Values outside record values: in headers of the key's tombstone, and in the remains of a failed write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import TimedOut
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.errors import KafkaError
from tests.broker.erasure.brokers import data_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, START_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certificates_of, verify
from tests.broker.erasure.obstacles import erase_in_vain, no_space
from tests.broker.erasure.records import Producer, create, fill, values_left, write
from tests.cleaner.evidence.scan.naive_scanner import files_with
from tests.waiting import wait_until

SEGMENT = "users-0/00000000000000000000.log"


@pytest.mark.parametrize("has_value", [False, True])
@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_tombstone_that_says_what_it_deletes_is_superseded(
    broker: Broker, *, has_value: bool, is_transactional: bool
) -> None:
    """Another tombstone supersedes it, since its headers may hold anything. A second erasure finds the new one and writes
    none.
    """
    await create(broker)
    if has_value:
        write(broker, (KEY, PERSON))
    if is_transactional:
        producer = Producer(broker, "users", 0, 5)
        producer.write((KEY, None), headers=[Header("last", PERSON)])
        producer.end(is_commit=True)
    else:
        write(broker, (KEY, None), headers=[Header("last", PERSON)])
    fill(broker)
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["elsewhere"]) == ("values-gone", [])
    assert "tombstone_offset" in erasure.certificate["done"][0]
    assert (files_with(data_of(broker), PERSON), values_left(broker)) == ([], [None])
    assert "tombstone_offset" not in (await erase(broker)).certificate["done"][0]
    move_to(broker, START_MS + DAY_MS)
    await wait_until(lambda: len(certificates_of(broker, "key-gone")) == 2)


async def test_as_long_as_its_headers_are_there_nothing_is_certified(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction keeps it."""
    await create(broker)
    producer = Producer(broker, "users", 0, 5)
    producer.write((b"another", b"one"))
    write(broker, (KEY, None), headers=[Header("last", PERSON)])
    with pytest.raises(TimedOut):
        await erase_in_vain(broker, monkeypatch)
    assert files_with(data_of(broker), PERSON) != []
    producer.end(is_commit=True)
    fill(broker)
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
    """The headers of such a tombstone may hold a value: nothing is certified, in any place, after any number without headers."""
    await create(broker)
    fill(broker)
    path = data_of(broker) / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tombstones(count, Header("last", PERSON)))
    refused = (await erase(broker)).certificate
    assert (refused["state"], refused["claims"]) == ("not-certified", [])
    assert {one["file"] for one in refused["not_certified"][0]["problems"]} == {place}
    found = await verify(broker, refused)
    assert found.outcome == "not-certified"


async def test_the_rest_of_a_failed_write_is_searched(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
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
