"""Unlinked files that remain on disk because they are being sent to a client."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.evidence import evidence
from diamant.broker.topics.deletion import delete_topics
from diamant.storage.env.open_files import removed_but_open
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.records import create, create_with_key, write

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc")


def unlinked(broker: Broker) -> list[str]:
    """The unlinked open files of this process, counted by independent code."""
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


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("is_topic_deleted", [False, True])
async def test_a_file_that_is_still_read_keeps_its_topic_from_being_certified(
    broker: Broker, *, is_topic_deleted: bool
) -> None:
    """After a replaced segment, and after a deleted or recreated topic; the certificate names the file until it is closed."""
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


@pytest.mark.usefixtures("no_patience")
async def test_so_does_one_in_a_partition_that_lies_elsewhere(broker: Broker, tmp_path: Path) -> None:
    """Its directory is a link; the file is named as it would be without one."""
    await create_with_key(broker, others=30)
    directory = data_of(broker) / "users-0"
    shutil.move(directory, tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    with (directory / "00000000000000000000.log").open("rb"):
        refused = (await erase(broker)).certificate
        assert (refused["state"], refused["claims"]) == ("not-certified", [])
        assert [one["file"] for one in refused["coverage"]["not_read"]] == ["users-0/00000000000000000000.log.deleted"]
    assert (await erase(broker)).state == "values-gone"


async def test_readers_are_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """They usually finish soon."""
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


@pytest.mark.usefixtures("no_patience")
async def test_a_deleted_topic_that_nobody_reads_is_closed_at_once(broker: Broker) -> None:
    """Its log object may live on, its files are closed; readers of other topics do not matter."""
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
