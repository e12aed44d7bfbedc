"""Data in set-aside directories is found, also in those named by the beginning of a long topic name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.broker.topics.growth import add_partitions
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage import names
from tests.broker.erasure.brokers import broker_at, clock_of, data_of
from tests.broker.erasure.constants import KEY, PERSON, RETRY_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certified_at, pinned, verify
from tests.broker.erasure.records import create, create_with_key, fill, write
from tests.broker.redaction import test_redacting as orders
from tests.cleaner.evidence.scan.naive_scanner import files_with

LOG = "00000000000000000000.log"
BATCH = bytes(build_batch([Record(0, 1000, KEY, PERSON)]))


def set_aside(broker: Broker, topic: str, partition: int, content: bytes | bytearray, suffix: str = "-stray") -> Path:
    """Put a log into a set-aside directory."""
    directory = data_of(broker) / f"{topic}-{partition}.{'0123456789abcdef' * 2}{suffix}"
    directory.mkdir()
    (directory / LOG).write_bytes(content)
    return directory


async def test_what_the_broker_itself_sets_aside_is_told(tmp_path: Path) -> None:
    """A directory of a topic recreated with fewer partitions, as a crash may leave it."""
    async with broker_at(tmp_path) as broker:
        await create(broker)
        write(broker, (b"x", b"y"))
        (data_of(broker) / "users-2").mkdir()
        (data_of(broker) / "users-2" / LOG).write_bytes(BATCH)
    async with broker_at(tmp_path) as broker:
        (stray,) = data_of(broker).glob("users-2.*-stray")
        refused = (await erase(broker)).certificate
        assert refused["state"] == "not-certified"
        problem = refused["not_certified"][0]["problems"][0]
        assert (problem["file"], "its directory was set aside" in problem["reason"]) == (f"{stray.name}/{LOG}", True)


async def test_a_partition_that_was_added_owns_only_the_directory_in_use(broker: Broker) -> None:
    """A set-aside directory with its number belongs to an earlier topic of that name; its own records were written since."""
    await create_with_key(broker, others=30)
    first = await erase(broker)
    assert first.next_due_ms is not None
    await add_partitions(broker.node.topics, "users", 2)
    write(broker, (KEY, b"in the new partition"), partition=1)
    arguments: dict[str, Any] = {"public_key": pinned(first.certificate), "key": KEY}
    assert (await broker.services.certificates().verify(first.certificate, **arguments)).is_valid
    directory = set_aside(broker, "users", 1, BATCH)
    found = await broker.services.certificates().verify(first.certificate, **arguments)
    assert [one["verdict"] for one in found.claims] == ["cannot be told"]
    refused = await certified_at(broker, first.next_due_ms, "not-certified")
    assert refused["not_certified"][0]["problems"][0]["file"] == f"{directory.name}/{LOG}"
    (directory / LOG).unlink()
    directory.rmdir()
    done = await certified_at(broker, clock_of(broker).now_ms() + RETRY_MS, "key-gone")
    assert [one["partition"] for one in done["written_since"]] == [1]


@pytest.mark.parametrize("suffix", ["-stray", "-future", "-delete"])
async def test_directories_of_other_topics_are_no_obstacle(broker: Broker, suffix: str) -> None:
    """Kafka leaves such directories; the key in them is listed like that of any unnamed topic."""
    await create_with_key(broker, others=30)
    for topic in ("clicks", "views"):
        await create(broker, topic)
    directory = set_aside(broker, "clicks", 3, BATCH, suffix)
    set_aside(broker, "views", 0, b"damaged", suffix)
    erasure = await erase(broker, is_now=True)
    assert erasure.state == "key-gone"
    (seen,) = [one for one in erasure.certificate["elsewhere"] if one["what"] == "same-key"]
    assert seen["file"] == f"{directory.name}/{LOG}"
    found = await verify(broker, erasure.certificate)
    assert found.outcome == "valid"


async def test_directories_of_deleted_topics_are_no_obstacle(broker: Broker) -> None:
    """Directories that await deletion, of other topics and of an earlier topic of that name, which are deleted at once."""
    await create(broker, "clicks")
    write(broker, (KEY, b"something else"), topic="clicks")
    await create(broker, partitions=3)
    write(broker, (KEY, PERSON), partition=2)
    await delete_topics(broker.node.topics, ["clicks", "users"])
    await create_with_key(broker)
    assert len(list(data_of(broker).glob(f"*{names.DELETE_DIR_SUFFIX}"))) == 4
    erasure = await erase(broker, is_now=True)
    assert erasure.state == "key-gone"
    assert files_with(data_of(broker), PERSON) == []
    found = await verify(broker, erasure.certificate)
    assert found.outcome == "valid"


@pytest.mark.parametrize("partition", [0, 5])
async def test_a_redaction_is_not_certified_either(broker: Broker, partition: int) -> None:
    """For a text of any length; each refusal names the file, and an earlier certificate is not confirmed."""
    await orders.create(broker)
    orders.write(broker, orders.OTHER, b'{"id": 7}')
    done = await orders.redact(broker, "value.id == 7")
    assert done.state == "records-gone"
    arguments: dict[str, Any] = {"public_key": pinned(done.certificate), "where": "value.id == 7"}
    assert (await broker.services.certificates().verify(done.certificate, **arguments)).is_valid
    directory = set_aside(broker, "orders", partition, build_batch([Record(0, 1000, b"k", b'{"id": 7}')]))
    redaction = await orders.redact(broker, "value.id == 7")
    assert redaction.state == "not-certified"
    assert f"{directory.name}/{LOG}" in json.dumps(redaction.certificate["not_certified"])
    assert not (await broker.services.certificates().verify(done.certificate, **arguments)).is_valid


LONG = "u" * 249
TWIN = LONG[:-1] + "x"


async def test_what_waits_to_be_deleted_of_a_topic_with_a_long_name_goes_at_once(broker: Broker) -> None:
    """Even if it may belong to a topic with the same beginning: that one awaits deletion as well."""
    await create(broker, LONG)
    write(broker, (KEY, PERSON), topic=LONG, codec=4)
    fill(broker, topic=LONG)
    await delete_topics(broker.node.topics, [LONG])
    (doomed,) = data_of(broker).glob("u*-delete")
    assert len(doomed.name) == names.MAX_NAME_LENGTH
    await create(broker, TWIN)
    write(broker, (KEY, PERSON + b" again"), topic=TWIN)
    fill(broker, topic=TWIN)
    erasure = await erase(broker, topics=[TWIN])
    assert (erasure.state, files_with(data_of(broker), PERSON)) == ("values-gone", [])
    assert not doomed.exists()


async def test_a_directory_that_was_set_aside_with_a_shortened_name_may_be_of_any_topic(broker: Broker) -> None:
    """While one holds a value of the key, nothing is certified."""
    await create(broker, LONG)
    write(broker, (KEY, PERSON), topic=LONG, codec=4)
    fill(broker, topic=LONG)
    stray = data_of(broker) / names.stray_dir_name(LONG, 0)
    shutil.copytree(data_of(broker) / f"{LONG}-0", stray)
    refused = (await erase(broker, topics=[LONG])).certificate
    assert refused["state"] == "not-certified"
    assert refused["not_certified"][0]["problems"][0]["file"].startswith(stray.name)
    shutil.rmtree(stray)
    assert (await erase(broker, topics=[LONG])).state == "values-gone"


def test_whose_a_directory_that_was_set_aside_may_be() -> None:
    """Its topic is found by the whole name, or by the beginning if the name is shortened."""
    for make in (names.delete_dir_name, names.stray_dir_name):
        assert names.may_be_set_aside_of(make(LONG, 3), LONG)
        assert names.may_be_set_aside_of(make(LONG, 3), TWIN)
        assert names.may_be_set_aside_of(make("users", 3), "users")
        assert not names.may_be_set_aside_of(make("users", 3), "users-2")
        assert not names.may_be_set_aside_of(make("u", 3), LONG)
        assert not names.is_shortened(make("users", 0))
    assert not names.may_be_set_aside_of("notes-delete", "notes")
