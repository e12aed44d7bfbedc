"""The staging location of Spark jobs is scanned like the data directory; if it cannot be read, nothing is certified."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.certificates.verification import CheckedFiles
from diamant.cleaner.evidence.scan.staging_files import StagingPlace
from diamant.cleaner.evidence.search import known_positives
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.cleaner.spark.clean import staging
from diamant.cleaner.spark.clean.staging import forget, write_note
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.runner import staging_sweep
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import config, data_of, env_at, env_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import pinned
from tests.broker.erasure.records import create, create_with_key, write
from tests.mutants import Mutant, put_in, returns

RUN = "0123456789abcdef"
ANOTHER = "diamant-staging-aaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-" + RUN
SEGMENT = "00000000000000000000.log"


@pytest.fixture(autouse=True)
def _without_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the sweep of a starting broker, so that the planted leftovers stay."""
    monkeypatch.setattr(staging_sweep.StagingSweep, "run", lambda _: False)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a staging location for jobs on the same machine."""
    (tmp_path / "staging").mkdir()
    properties = {"diamant.cleaner.spark.staging": (tmp_path / "staging").as_uri()}
    async with Broker(config(tmp_path, **properties), env=env_at()) as running:
        yield running


def root_of(broker: Broker) -> Path:
    """Return the broker's staging location."""
    return data_of(broker).parent / "staging"


def name_of(broker: Broker, partition: str) -> str:
    """Return the name of a place as a job of an earlier run would have chosen it."""
    owner = staging.owner_of(broker.env, broker.node.directory.path)
    return f"{owner}{staging.partition_part(partition)}-{RUN}"


def put(broker: Broker, place: str, data: bytes | bytearray, file: str = f"segments/{SEGMENT}") -> Path:
    """Create a file at the staging location."""
    path = root_of(broker) / place / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


async def test_a_copied_segment_with_the_value_lets_nothing_be_certified(broker: Broker) -> None:
    """It counts like one in the partition's own directory; once it is removed, the claim is certified, and the scan names the
    place.
    """
    await create(broker, partitions=2)
    write(broker, (KEY, PERSON))
    segment = (data_of(broker) / "users-0" / SEGMENT).read_bytes()
    copies = [
        put(broker, name_of(broker, "users-0"), segment),
        put(broker, name_of(broker, "users-0"), segment, f"00000000-1/{SEGMENT}.cleaned"),
    ]
    certificate = (await erase(broker)).certificate
    assert (certificate["state"], [one["partition"] for one in certificate["claims"]]) == ("not-certified", [1])
    (refused,) = certificate["not_certified"]
    assert refused["state"] == "values-present"
    assert {one["file"] for one in refused["problems"]} >= {str(path) for path in copies}
    assert certificate["coverage"]["staging"] == {
        "place": str(root_of(broker)),
        "is_listed": True,
        "is_read": True,
        "places": 1,
        "places_of_others": 0,
    }
    assert {str(path) for path in copies} <= {one["file"] for one in certificate["coverage"]["ledger"]}
    for path in copies:
        path.unlink()
    certificate = (await erase(broker)).certificate
    assert certificate["state"] == "values-gone"
    copies[0].write_bytes(segment)
    arguments: dict[str, Any] = {"public_key": pinned(certificate), "key": KEY}
    found = await check_certificate(broker, certificate, **arguments)
    assert [one["verdict"] for one in found.claims] == ["broken", "holds"]


@pytest.mark.parametrize(
    ("data", "file"),
    [
        (build_batch([Record(0, 1000, KEY, b"short")]), f"segments/{SEGMENT}"),
        (b"leftover " + PERSON + b" leftover", "manifest"),
    ],
    ids=["record", "bytes"],
)
async def test_leftovers_of_a_deleted_topic_prevent_a_claim(broker: Broker, data: bytes, file: str) -> None:
    """The owner of leftovers is unknown, so no partition is certified."""
    await create_with_key(broker)
    path = put(broker, name_of(broker, "deleted-0"), data, file)
    certificate = (await erase(broker)).certificate
    assert (certificate["state"], certificate["claims"]) == ("not-certified", [])
    assert certificate["not_certified"][0]["state"] == "inconclusive"
    assert certificate["not_certified"][0]["problems"][0]["file"] == str(path)


async def test_places_of_other_topics_and_other_owners(broker: Broker) -> None:
    """The key in a copy of another topic is listed; another broker's files are counted and not read."""
    await create(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON))
    copy = build_batch([Record(0, 1000, KEY, b"an order")])
    path = put(broker, name_of(broker, "orders-0"), copy)
    put(broker, ANOTHER, build_batch([Record(0, 1000, KEY, PERSON)]))
    certificate = (await erase(broker)).certificate
    assert certificate["state"] == "values-gone"
    assert [one["file"] for one in certificate["elsewhere"]] == [str(path)]
    staged = certificate["coverage"]["staging"]
    assert (staged["places"], staged["places_of_others"]) == (1, 1)
    assert not any(ANOTHER in one["file"] for one in certificate["coverage"]["ledger"])


async def test_a_staging_place_that_is_not_there_has_nothing_in_it(broker: Broker) -> None:
    """The first job creates it. Offline it is not read, which is stated."""
    root_of(broker).rmdir()
    await create_with_key(broker, others=30)
    certificate = (await erase(broker)).certificate
    assert certificate["state"] == "values-gone"
    assert certificate["coverage"]["staging"]["places"] == 0
    assert f"its data directory and the staging location {root_of(broker)} holds" in certificate_page(certificate)
    found = verify_certificate(certificate, pinned(certificate), CheckedFiles(RealEnv(), str(data_of(broker))), key=KEY)
    assert f"The staging location {root_of(broker)} was not searched." in found.notes


@pytest.mark.parametrize("is_empty_there", [False, True], ids=["no directory", "an empty mount point"])
async def test_a_disk_that_is_not_mounted_keeps_its_partition_from_being_certified(
    broker: Broker, *, is_empty_there: bool
) -> None:
    """A killed job left a copy there, known from a note in the data directory; once mounted again, it is read."""
    await create(broker, partitions=2)
    write(broker, (KEY, PERSON))
    segment = (data_of(broker) / "users-0" / SEGMENT).read_bytes()
    place = Location(str(root_of(broker))).child(name_of(broker, "users-0"))
    write_note(broker.env, str(data_of(broker)), place)
    put(broker, place.name, segment)
    root_of(broker).rename(data_of(broker).parent / "unmounted")
    if is_empty_there:
        root_of(broker).mkdir()
    certificate = (await erase(broker)).certificate
    assert (certificate["state"], [one["partition"] for one in certificate["claims"]]) == ("not-certified", [1])
    (refused,) = certificate["not_certified"]
    assert refused["state"] == "inconclusive"
    assert refused["problems"][0]["file"] == place.path
    assert f"remove the note, {data_of(broker)}/{place.name}.note" in refused["problems"][0]["reason"]
    if is_empty_there:
        root_of(broker).rmdir()
    (data_of(broker).parent / "unmounted").rename(root_of(broker))
    certificate = (await erase(broker)).certificate
    assert certificate["not_certified"][0]["state"] == "values-present"
    broker.env.remove(f"{place.path}/segments/{SEGMENT}")
    assert (await erase(broker)).certificate["state"] == "values-gone"


async def test_a_staging_place_that_is_configured_no_more_is_remembered(tmp_path: Path) -> None:
    """The place is remembered only while a copy may exist there: without killed jobs, the data directory has no note of it."""
    old = Location(str(tmp_path / "old"))
    old.make_directory()
    async with Broker(config(tmp_path), env=env_at()) as broker:
        await create_with_key(broker)
        place = old.child(name_of(broker, "users-0"))
        write_note(broker.env, str(data_of(broker)), place)
        certificate = (await erase(broker)).certificate
        assert certificate["not_certified"][0]["problems"][0]["file"] == place.path
        assert certificate["coverage"]["staging"]["is_read"] is False
        forget(broker.env, str(data_of(broker)), place)
        certificate = (await erase(broker)).certificate
        assert (certificate["state"], certificate["coverage"]["staging"]) == ("values-gone", None)


async def test_a_place_of_before_the_data_directory_was_moved_is_not_certified_beside(broker: Broker) -> None:
    """The place has another owner's name, but its note moved with the directory, so nothing is certified."""
    await create_with_key(broker)
    moved = f"{ANOTHER[:33]}{staging.partition_part('users-0')}-{RUN}"
    write_note(broker.env, str(data_of(broker)), Location(str(root_of(broker))).child(moved))
    path = put(broker, moved, b"anything")
    certificate = (await erase(broker)).certificate
    assert certificate["not_certified"][0]["problems"][0]["file"] == str(path.parent.parent)
    shutil.rmtree(root_of(broker) / moved)
    assert (await erase(broker)).certificate["state"] == "values-gone"


async def test_a_staging_place_that_cannot_be_listed_lets_nothing_be_certified(broker: Broker) -> None:
    """Such a staging location may hold anything: every partition states that."""
    await create_with_key(broker)
    env_of(broker).fail("list_dir", str(root_of(broker)), errno.EACCES)
    certificate = (await erase(broker)).certificate
    assert (certificate["state"], certificate["claims"]) == ("not-certified", [])
    problem = certificate["not_certified"][0]["problems"][0]
    assert problem["file"] == str(root_of(broker))
    assert "cannot be listed" in problem["reason"]
    assert "Permission denied" in problem["reason"]
    assert not certificate["coverage"]["staging"]["is_listed"]


async def test_a_scan_that_passes_over_the_staging_place_is_caught(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The census counts its files independently."""
    await create_with_key(broker)
    path = put(broker, name_of(broker, "users-0"), (data_of(broker) / "users-0" / SEGMENT).read_bytes())
    put_in(monkeypatch, Mutant(StagingPlace, "files", returns(())))
    certificate = (await erase(broker)).certificate
    assert certificate["state"] == "not-certified"
    not_read = [one["file"] for one in certificate["coverage"]["not_read"]]
    assert [one for one in not_read if not one.startswith(known_positives.TOPIC)] == [str(path)]


# -- elsewhere -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a staging location for jobs in an object store."""
    uri = "s3://somebody:secret@bucket/staging?region=eu-central-1"
    async with Broker(config(tmp_path, **{"diamant.cleaner.spark.staging": uri}), env=env_at()) as running:
        yield running


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places in the object store; while there are none, it does not answer."""
    names: list[str] = []

    def list_elsewhere(_staging: str, check: Callable[[], object]) -> list[str]:
        check()
        if not names:
            raise StorageError("it does not answer within 60 s")
        return names

    monkeypatch.setattr(staging_sweep, "list_elsewhere", list_elsewhere)
    return names


@pytest.mark.parametrize(("partition", "refused"), [("users-0", [0]), ("deleted-0", [0, 1])])
async def test_places_elsewhere_are_not_read_and_nothing_is_claimed_beside_them(
    remote: Broker, there: list[str], partition: str, refused: list[int]
) -> None:
    """The owner's partition gets no claim, or none does if the owner is unknown; without a place there are claims."""
    there += [ANOTHER, name_of(remote, partition)]
    await create(remote, partitions=2)
    write(remote, (KEY, PERSON))
    certificate = (await erase(remote)).certificate
    assert certificate["state"] == "not-certified"
    assert [one["partition"] for one in certificate["not_certified"]] == refused
    for one in certificate["not_certified"]:
        assert one["problems"][0]["file"] == f"s3://bucket/staging/{there[1]}"
        assert "removed when the job ends" in one["problems"][0]["reason"]
    there.pop()
    certificate = (await erase(remote)).certificate
    assert certificate["state"] == "values-gone"
    assert certificate["coverage"]["staging"] == {
        "place": "s3://bucket/staging",
        "is_listed": True,
        "is_read": False,
        "places": 0,
        "places_of_others": 1,
    }
    assert "secret" not in str(certificate["coverage"])


@pytest.mark.usefixtures("there")
async def test_an_object_store_that_does_not_answer_lets_nothing_be_certified(remote: Broker) -> None:
    """The certificate states the reason."""
    await create_with_key(remote)
    certificate = (await erase(remote)).certificate
    assert certificate["state"] == "not-certified"
    assert certificate["not_certified"][0]["problems"][0]["reason"].endswith("it does not answer within 60 s")


@pytest.mark.slow
def test_listing_is_done_by_a_child_process(tmp_path: Path) -> None:
    """The child process lists the places or states its error, and ends when no caller waits any more, or after a timeout."""
    (tmp_path / "one").mkdir()
    assert staging_sweep.list_elsewhere(tmp_path.as_uri(), bool) == ["one"]
    assert staging_sweep.list_elsewhere((tmp_path / "missing").as_uri(), bool) == []
    with pytest.raises(StorageError, match="expected a path"):
        staging_sweep.list_elsewhere("ftp://somewhere", bool)

    program = f"import os, time; open({str(tmp_path / 'children')!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(60)"
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        staging_sweep.list_elsewhere("", check, program=program)
    with pytest.raises(StorageError, match=r"does not answer within 0.3 s"):
        staging_sweep.list_elsewhere("", bool, program=program, timeout_s=0.3)
    children = (tmp_path / "children").read_text().split()
    assert not any(Path(f"/proc/{child}").exists() for child in children)
