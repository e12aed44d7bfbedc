"""Copies of segments, also outside partitions and in directories set aside, refuse claims about their data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.deletion import delete_topics
from diamant.broker.topics.growth import add_partitions
from diamant.cleaner.evidence.certificates.verification import CheckedFiles
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import broker_at, clock_of, data_of, env_of
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certificates_of, certified_at, key_of, pinned, signed, verify
from tests.broker.erasure.obstacles import at_stage
from tests.broker.erasure.records import create, create_with_key, fill, write
from tests.broker.redaction import test_redacting as orders
from tests.cleaner.evidence.scan.naive_scanner import files_with

ROOT = Path(__file__).resolve().parents[4]
SEGMENT = "users-0/00000000000000000000.log"
STRAY = f"users-0.{'0' * 32}-stray"
NOBODYS = [
    "users-copy-0",
    "backup-2024",
    "backup-0",
    "clicks-2024",
    "__cluster_metadata-1",
    *(f"users-copy-0.{'0' * 32}-{one}" for one in ("stray", "future")),
]
"""Called like directories of partitions that do not exist; of these topics there is `clicks`, with one partition."""


PLACES = ["users-0/00000000000000099999.log", "users-0/0.log", "users-0/copy.log", "copy", f"{STRAY}/copy"]


@pytest.mark.parametrize("place", [*PLACES, *(f"{directory}/{0:020d}.log" for directory in NOBODYS)])
async def test_a_copy_lets_nothing_be_certified(broker: Broker, place: str) -> None:
    """For erasures and redactions alike, a copy lets nothing be certified; the certificate names the file."""
    await create_with_key(broker, others=30, codec=1)
    await create(broker, "clicks")
    path = data_of(broker) / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((data_of(broker) / SEGMENT).read_bytes())
    assert PERSON not in b"".join(path.read_bytes() for path in data_of(broker).rglob("*") if path.is_file())
    redaction = await broker.redact("users", where=f"value == '{PERSON.decode()}'", reason="GDPR Art. 17")
    assert (redaction.state, redaction.certificate["claims"]) == ("not-certified", [])
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    for certificate in (redaction.certificate, erasure.certificate):
        assert place in [one["file"] for one in certificate["not_certified"][0]["problems"]]


async def test_a_directory_with_zeros_before_the_partitions_number_is_none_in_use(broker: Broker) -> None:
    """The files of such a directory may change at any time, so one that changed during the scan is read again."""
    await create_with_key(broker)
    path = data_of(broker) / "users-00" / Path(SEGMENT).name
    path.parent.mkdir()
    path.write_bytes(build_batch([Record(0, START_MS, b"another", None)]))
    found: list[bool] = []

    def change() -> None:
        found.append(PERSON in path.read_bytes())
        # It was listed for the census and to be read, and was read.
        if len(found) == 3:
            path.write_bytes(build_batch([Record(0, START_MS, b"another", PERSON)]))

    watch = at_stage("scanning everything", lambda: env_of(broker).before("list_dir", str(path.parent), change))
    erasure = await erase(broker, progress=watch)
    assert found[:4] == [False, False, False, True]
    assert [one["file"] for one in erasure.certificate["elsewhere"]] == [f"users-00/{path.name}"]


async def test_limits_of_a_certificate_are_worded_as_in_the_documentation(broker: Broker) -> None:
    """Each sentence about limits in a certificate is in the documentation word for word, and each field is documented."""
    await create_with_key(broker)
    page = (ROOT / "docs" / "explanation" / "erasure.md").read_text()
    section = page.partition("## What is not covered")[2].partition("\n##")[0]
    items = [" ".join(one.split()) for one in section.partition("\n\n* ")[2].partition("\n\n")[0].split("\n* ")]
    certificate = (await erase(broker)).certificate
    assert certificate["not_covered"] == items
    fields = (ROOT / "docs" / "reference" / "certificates.md").read_text()
    assert [name for name in certificate if f"`{name}`" not in fields] == []
    redaction = await broker.redact("users", where='key == "nobody"', reason="GDPR Art. 17")
    for promised in (
        "Compressed data other than record batches",
        "values that were not in the topic when this was asked for",
        "copied into the directories of other topics",
    ):
        assert any(promised in one for one in redaction.certificate["not_covered"])


@pytest.mark.parametrize("place", ["backup/00000000000000000000.log", f"users-5.{'0' * 32}-stray/{0:020d}.log"])
async def test_a_copied_tombstone_keeps_the_key_from_being_gone(broker: Broker, place: str) -> None:
    """The values are gone; `key-gone` is refused, with the file that names the key."""
    await create_with_key(broker, others=30)
    path = data_of(broker) / place
    path.parent.mkdir()
    path.write_bytes(build_batch([Record(0, 1000, KEY, None)]))
    erasure = await erase(broker, now=True)
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    (refused,) = erasure.certificate["not_certified"]
    assert (refused["state"], refused["problems"][0]["file"]) == ("inconclusive", place)
    assert len(certificates_of(broker, "values-gone")) == 1
    path.unlink()
    await certified_at(broker, broker.env.clock.now_ms() + DAY_MS + RETRY_MS, "key-gone")


def without_ids(broker: Broker, certificate: dict[str, Any]) -> dict[str, Any]:
    """Return the certificate in the form of an earlier version, without topic ids."""
    request = {name: value for name, value in certificate["request"].items() if name != "topic_ids"}
    return signed(certificate, key_of(broker), request=request)


async def test_another_topic_of_the_same_name_is_none_that_was_certified(broker: Broker) -> None:
    """Another topic of the same name confirms nothing, with or without the key in it. Certificates without ids use names."""
    await create_with_key(broker, others=30)
    certificate = (await erase(broker)).certificate
    assert list(certificate["request"]["topic_ids"]) == ["users"]
    arguments: dict[str, Any] = {"public_key": pinned(certificate), "key": KEY}
    assert (await check_certificate(broker, certificate, **arguments)).is_valid
    await delete_topics(broker.node.topics, ["users"])
    broker.services.evidence().remove_doomed(["users"], [])
    await create(broker)
    for values in ((), ((b"a", b"b"), (KEY, b"another customer"))):
        write(broker, (b"a", b"b"), *values)
        found = await check_certificate(broker, certificate, **arguments)
        assert (found.is_valid, [one["verdict"] for one in found.claims]) == (False, ["cannot be told"])
        assert [one["state_now"] for one in found.claims] == ["topic-recreated"]
        assert any(one.startswith("users-0: of another topic now.") for one in found.notes)
    old = await check_certificate(broker, without_ids(broker, certificate), **arguments)
    assert [one["verdict"] for one in old.claims] == ["broken"]


async def test_a_partition_that_does_not_say_whose_it_is_confirms_nothing(broker: Broker) -> None:
    """The log of such a partition may be any log; a value that is back there counts all the same."""
    await create_with_key(broker)
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    certificate = (await erase(broker)).certificate
    (data_of(broker) / "users-0" / names.PARTITION_METADATA).unlink()
    arguments: dict[str, Any] = {"key": KEY, "secret": key_of(broker).secret}
    found = verify_certificate(
        certificate, pinned(certificate), CheckedFiles(RealEnv(), str(data_of(broker))), **arguments
    )
    assert (found.is_valid, [one["verdict"] for one in found.claims]) == (False, ["cannot be told"])
    assert f"{names.PARTITION_METADATA} is missing" in " ".join(found.notes)
    before = without_ids(broker, certificate)
    assert verify_certificate(
        before, pinned(before), CheckedFiles(RealEnv(), str(data_of(broker))), **arguments
    ).is_valid
    (data_of(broker) / "users-0" / "00000000000000000000.log.swap").write_bytes(old)
    found = verify_certificate(
        certificate, pinned(certificate), CheckedFiles(RealEnv(), str(data_of(broker))), **arguments
    )
    assert [one["verdict"] for one in found.claims] == ["broken"]


LOG = "00000000000000000000.log"
BATCH = bytes(build_batch([Record(0, 1000, KEY, PERSON)]))


def set_aside(broker: Broker, topic: str, partition: int, content: bytes | bytearray, suffix: str = "-stray") -> Path:
    """Put a log into a set-aside directory."""
    directory = data_of(broker) / f"{topic}-{partition}.{'0123456789abcdef' * 2}{suffix}"
    directory.mkdir()
    (directory / LOG).write_bytes(content)
    return directory


async def test_a_directory_that_the_broker_set_aside_is_listed(tmp_path: Path) -> None:
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
    assert (await check_certificate(broker, first.certificate, **arguments)).is_valid
    directory = set_aside(broker, "users", 1, BATCH)
    found = await check_certificate(broker, first.certificate, **arguments)
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
    erasure = await erase(broker, now=True)
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
    erasure = await erase(broker, now=True)
    assert erasure.state == "key-gone"
    assert files_with(data_of(broker), PERSON) == []
    found = await verify(broker, erasure.certificate)
    assert found.outcome == "valid"


@pytest.mark.parametrize("partition", [0, 5])
async def test_a_redaction_is_not_certified_either(broker: Broker, partition: int) -> None:
    """A redaction for a text of any length is refused; the refusal names the file, and an earlier certificate is not
    confirmed.
    """
    await orders.create(broker)
    orders.write(broker, orders.OTHER, b'{"id": 7}')
    done = await orders.redact(broker, "value.id == 7")
    assert done.state == "records-gone"
    arguments: dict[str, Any] = {"public_key": pinned(done.certificate), "where": "value.id == 7"}
    assert (await check_certificate(broker, done.certificate, **arguments)).is_valid
    directory = set_aside(broker, "orders", partition, build_batch([Record(0, 1000, b"k", b'{"id": 7}')]))
    redaction = await orders.redact(broker, "value.id == 7")
    assert redaction.state == "not-certified"
    assert f"{directory.name}/{LOG}" in json.dumps(redaction.certificate["not_certified"])
    assert not (await check_certificate(broker, done.certificate, **arguments)).is_valid


LONG = "u" * 249
TWIN = LONG[:-1] + "x"


async def test_doomed_directories_of_a_topic_with_a_long_name_go_at_once(broker: Broker) -> None:
    """The directory goes even if it may belong to a topic with the same beginning: that one awaits deletion as well."""
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


def test_the_topic_of_a_directory_that_was_set_aside_is_found() -> None:
    """Its topic is found by the whole name, or by the beginning if the name is shortened."""
    for make in (names.delete_dir_name, names.stray_dir_name):
        assert names.may_be_set_aside_of(make(LONG, 3), LONG)
        assert names.may_be_set_aside_of(make(LONG, 3), TWIN)
        assert names.may_be_set_aside_of(make("users", 3), "users")
        assert not names.may_be_set_aside_of(make("users", 3), "users-2")
        assert not names.may_be_set_aside_of(make("u", 3), LONG)
        assert not names.is_shortened(make("users", 0))
    assert not names.may_be_set_aside_of("notes-delete", "notes")
