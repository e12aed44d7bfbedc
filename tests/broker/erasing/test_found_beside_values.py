"""What a value of the key is besides a record's value: in the headers of its tombstone, and in what a failed write has left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import KafkaError
from diamant.protocol.records import Header
from tests.broker.erasing.cases import KEY, PERSON, create, create_with_key, data_of, erase, fill, values_left, write
from tests.broker.erasing.obstacles import no_space
from tests.cleaner.evidence.naive_scanner import files_with

SEGMENT = "users-0/00000000000000000000.log"


async def test_a_tombstone_that_says_what_it_deletes_is_superseded(broker: Broker) -> None:
    """By another one, since the values in its headers are to be gone, too."""
    await create_with_key(broker)
    write(broker, (KEY, None), headers=[Header("last", PERSON)])
    fill(broker)
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["elsewhere"]) == ("values-gone", [])
    assert "tombstone_offset" in erasure.certificate["done"][0]
    assert (files_with(data_of(broker), PERSON), values_left(broker)) == ([], [None])


async def test_what_a_failed_write_has_left_is_searched(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full in the middle of a batch, and what was there of it could not be cut off again."""
    await create(broker)
    write(broker, (b"somebody", b"else"))
    log = broker.topics.log("users", 0)
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
