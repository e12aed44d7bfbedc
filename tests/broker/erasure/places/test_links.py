"""Symbolic links and deep directories in the data directory: erasures work, and list the links that were not followed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.scan.file_listing import MAX_DEPTH
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.records import create_with_key


async def test_links_to_directories_are_named_and_not_followed(broker: Broker, tmp_path: Path) -> None:
    """Including loops, and a link to the whole file system: their targets have another name or are outside."""
    await create_with_key(broker, others=3)
    data = data_of(broker)
    (data / "users-0/loop").symlink_to(".")
    (data / "up").symlink_to("..")
    (data / "everything").symlink_to("/")
    (data / "itself").symlink_to("itself")
    (data / "nowhere").symlink_to("nothing-there")
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    coverage = erasure.certificate["coverage"]
    assert coverage["links_not_followed"] == ["everything", "itself", "up", "users-0/loop"]
    assert coverage["not_read"] == []


async def test_a_linked_partition_directory_is_read(broker: Broker, tmp_path: Path) -> None:
    """The broker follows such a link, too."""
    await create_with_key(broker, others=3)
    directory = data_of(broker) / "users-0"
    shutil.move(directory, tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    (directory / "note").write_bytes(PERSON)
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["coverage"]["links_not_followed"]) == ("not-certified", [])
    (directory / "note").unlink()
    assert (await erase(broker)).state == "values-gone"


async def test_the_partition_of_a_topic_that_was_deleted_goes_where_its_link_leads(
    broker: Broker, tmp_path: Path
) -> None:
    """Other files there are not touched, and a later topic of that name can be erased from."""
    await create_with_key(broker, others=3)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(data_of(broker) / "users-0", elsewhere)
    (data_of(broker) / "users-0").symlink_to(elsewhere)
    (elsewhere / "note").write_bytes(b"of somebody")
    (elsewhere / "more").mkdir()
    await delete_topics(broker.node.topics, ["users"])
    await create_with_key(broker, others=3)
    assert (await erase(broker)).state == "values-gone"
    assert sorted(os.listdir(elsewhere)) == ["more", "note"]
    assert [path for path in data_of(broker).iterdir() if path.is_symlink()] == []


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH + 30])
async def test_deep_directories_are_read_or_named(broker: Broker, depth: int) -> None:
    """Nothing is certified while a directory is too deep to be read, and the certificate names it."""
    await create_with_key(broker, others=3)
    deep = data_of(broker) / "/".join(["d"] * depth)
    os.makedirs(deep)
    erasure = await erase(broker)
    assert erasure.state == ("values-gone" if depth < MAX_DEPTH else "not-certified")
    reasons = [one["reason"] for one in erasure.certificate["coverage"]["unreadable"]]
    assert [f"{MAX_DEPTH} nested directories" in one for one in reasons] == [True] * (depth > MAX_DEPTH)
