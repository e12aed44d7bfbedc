"""Symbolic links, deep directories, and unlinked files that are still being sent to a client."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.certification import evidence
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.scan.file_listing import MAX_DEPTH
from diamant.storage.env.linux import removed_but_open
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.records import create, create_with_key, write


async def test_links_to_directories_and_nowhere_are_named_and_not_followed(broker: Broker) -> None:
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
    assert coverage["links_not_followed"] == ["everything", "itself", "nowhere", "up", "users-0/loop"]
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


shows_open_files = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc")


def unlinked(broker: Broker) -> list[str]:
    """Return the unlinked open files of this process, counted by independent code."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(one))
        except FileNotFoundError:
            continue
    return [one for one in links if one.startswith(str(data_of(broker))) and "(deleted)" in one]


@pytest.fixture
def no_patience(broker: Broker) -> None:
    """Do not wait for readers."""
    broker.services.evidence.made = evidence.Evidence(broker.node, readers_wait_s=0.0)


@shows_open_files
@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("is_topic_deleted", [False, True])
async def test_a_file_that_is_still_read_keeps_its_topic_from_being_certified(
    broker: Broker, *, is_topic_deleted: bool
) -> None:
    """An open file of a replaced segment, or of a deleted or recreated topic, counts; the certificate names the file until it
    is closed.
    """
    await create_with_key(broker, others=30)
    slices = broker.node.topics.log("users", 0).read(0, 100, isolation_level=0, min_one_message=True).slices
    assert slices[0].file.pread(100, 0)
    if is_topic_deleted:
        await delete_topics(broker.node.topics, ["users"])
        await create_with_key(broker, others=30)
    refused = (await erase(broker)).certificate
    assert (refused["state"], refused["claims"]) == ("not-certified", [])
    (place,) = refused["coverage"]["not_read"]
    assert (place["file"].startswith("users-0"), place["reason"]) == (True, evidence.STILL_READ)
    assert removed_but_open(str(data_of(broker))) == [place["file"]]
    assert len(unlinked(broker)) == 1
    del slices
    assert ((await erase(broker)).state, unlinked(broker)) == ("values-gone", [])


@shows_open_files
@pytest.mark.usefixtures("no_patience")
async def test_an_open_file_of_a_linked_partition_prevents_the_claim(broker: Broker, tmp_path: Path) -> None:
    """The partition's directory is a link; the file is named as it would be without one."""
    await create_with_key(broker, others=30)
    directory = data_of(broker) / "users-0"
    shutil.move(directory, tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    with (directory / "00000000000000000000.log").open("rb"):
        refused = (await erase(broker)).certificate
        assert (refused["state"], refused["claims"]) == ("not-certified", [])
        assert [one["file"] for one in refused["coverage"]["not_read"]] == ["users-0/00000000000000000000.log.deleted"]
    assert (await erase(broker)).state == "values-gone"


@shows_open_files
async def test_readers_are_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The erasure waits for readers, since they usually finish soon."""
    await create_with_key(broker, others=30)
    slices = [broker.node.topics.log("users", 0).read(0, 100, isolation_level=0, min_one_message=True).slices]
    real, looks = evidence.removed_but_open, []

    def look(directory: str) -> list[str]:
        looks.append(real(directory))
        if len(looks) == 2:
            slices.clear()
        return looks[-1]

    monkeypatch.setattr(evidence, "removed_but_open", look)
    assert (await erase(broker)).state == "values-gone"
    assert [len(one) for one in looks] == [1, 1, 0]


@shows_open_files
@pytest.mark.usefixtures("no_patience")
async def test_a_deleted_topic_that_nobody_reads_is_closed_at_once(broker: Broker) -> None:
    """The topic's log object may live on, but its files are closed; readers of other topics do not matter."""
    await create(broker, "another")
    write(broker, (KEY, PERSON), topic="another")
    slices = broker.node.topics.log("another", 0).read(0, 100, isolation_level=0, min_one_message=True).slices
    await create_with_key(broker, others=30)
    log = broker.node.topics.log("users", 0)
    assert all(segment.file.size() for segment in log.segments)
    await delete_topics(broker.node.topics, ["users", "another"])
    broker.node.directory.deletions.remove([str(path) for path in data_of(broker).glob("*-delete")])
    await create_with_key(broker, others=30)
    assert (await erase(broker)).state == "values-gone"
    assert [one.rpartition("/data/")[2].split("-")[0] for one in unlinked(broker)] == ["another"]
    assert slices
    assert log.is_deleted
