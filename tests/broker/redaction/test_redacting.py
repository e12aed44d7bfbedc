"""Redaction and certification in a whole broker: a scanner that shares no code with it checks the claims."""

from __future__ import annotations

import errno
import json
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.redact.redact_result import RedactFailed, Redaction
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible
from diamant.cleaner.evidence.certificates.certificate import UNTRUSTED, check_signature, parse_certificate
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.cleaner.evidence.certificates.verification import Verification
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.cleaner.redaction import locate, rewrite
from diamant.progress import Progress
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import broker_at, clock_of, data_of, env_of, move_to
from tests.broker.erasure.constants import RETRY_MS, START_MS
from tests.broker.erasure.erasing import intents_of
from tests.broker.erasure.issued import pinned
from tests.broker.erasure.obstacles import SCANNING, at_stage, damage
from tests.broker.erasure.records import Producer
from tests.cleaner.evidence.scan.naive_scanner import files_with, log_files, records_in
from tests.mutants import Mutant, put_in, returns
from tests.waiting import wait_until

FORGETS = Mutant(locate._Search, "_keep", returns(None))
"""A search that forgets what it finds."""

KEEPS = Mutant(rewrite._Cut, "changed", lambda _real: lambda _cut, record: record)
"""A rewriting that changes nothing."""

EMAIL = "ada@example.com"
WHERE = f'value.customer.email == "{EMAIL}"'
ORDER = b'{"order": 7, "customer": {"email": "ada@example.com", "city": "Bern"}}'
OTHER = b'{"order": 8, "customer": {"email": "bob@example.com", "city": "Basel"}}'


async def create(broker: Broker, name: str = "orders", partitions: int = 1, **configs: str) -> None:
    await broker.create_topic(name, partitions, **{"internal.segment.bytes": "1000", **configs})


def write(
    broker: Broker,
    *values: bytes | None,
    key: bytes | None = b"k",
    topic: str = "orders",
    partition: int = 0,
    headers: tuple[Header, ...] = (),
    **fields: Any,
) -> int:
    """Append one batch; return its base offset."""
    now_ms = broker.env.clock.now_ms()
    records = [Record(offset, now_ms, key, value, headers) for offset, value in enumerate(values)]
    log = broker.node.topics.log(topic, partition)
    appended = log.append_as_leader(memoryview(build_batch(records, **fields)))
    broker.node.log_events.changed(log)
    return appended.base_offset


def fill(broker: Broker, count: int = 10, topic: str = "orders", partition: int = 0) -> None:
    """Write other orders."""
    for number in range(count):
        write(broker, OTHER.replace(b"8", b"%d" % number, 1), topic=topic, partition=partition)


async def redact(broker: Broker, where: str = WHERE, topic: str = "orders", **options: Any) -> Redaction:
    return await broker.redact(topic, where=where, reason="GDPR Art. 17", **options)


def offsets(broker: Broker, topic: str = "orders", partition: int = 0) -> list[int]:
    """Offsets of the records in the partition's files, ascending."""
    directory = f"{topic}-{partition}"
    found = [
        one.offset
        for path in log_files(data_of(broker), topic)
        if path.parent.name == directory and path.name.endswith(".log")
        for one in records_in(path)
    ]
    return sorted(found)


async def wait_gone(broker: Broker) -> dict[str, Any]:
    """Wait until the job has ended; return the certificate for the removed records."""
    await wait_until(lambda: not broker.services.redactions().queue.unfinished())
    (path,) = data_of(broker).glob("diamant-redaction-*.records-gone.json")
    return parse_certificate(path.read_bytes())


async def verified(broker: Broker, certificate: dict[str, Any], where: str | None = WHERE) -> Verification:
    """Verify a certificate with the broker, using the certificate's own key."""
    return await check_certificate(broker, certificate, public_key=pinned(certificate), where=where)


# -- what goes, and what is said of it -----------------------------------------------------------------------------------


async def test_records_that_match_are_gone_from_every_file(broker: Broker) -> None:
    """Records are gone in all partitions and codecs; others keep their offsets, and the certificate lists the removed ones."""
    await create(broker, partitions=3)
    removed = {}
    for partition, codec in ((0, 0), (1, 4), (2, 2)):
        fill(broker, partition=partition)
        first = write(broker, OTHER, ORDER, OTHER, partition=partition, codec=codec)
        fill(broker, partition=partition)
        last = write(broker, ORDER, partition=partition, codec=codec)
        removed[partition] = [first + 1, last]
    before = {partition: offsets(broker, partition=partition) for partition in removed}
    assert files_with(data_of(broker), EMAIL.encode()) != []
    redaction = await redact(broker, reference="ticket 7")
    assert (redaction.state, redaction.removed, redaction.next_due_ms) == ("records-gone", 6, None)
    assert files_with(data_of(broker), EMAIL.encode()) == []
    for partition, gone in removed.items():
        assert offsets(broker, partition=partition) == [one for one in before[partition] if one not in gone]
    certificate = redaction.certificate
    assert {one["partition"]: one["offsets"] for one in certificate["found"]} == removed
    assert {(one["partition"], one["below_offset"], one["state"]) for one in certificate["claims"]} == {
        (partition, gone[-1] + 1, "records-gone") for partition, gone in removed.items()
    }
    assert certificate["request"]["where_shape"] == "value.customer.email == ?"
    assert certificate["request"]["reference"] == "ticket 7"
    assert certificate["not_certified"] == []
    assert intents_of(broker) == []
    text = json.dumps(certificate)
    assert EMAIL not in text
    assert "Bern" not in text
    assert await broker.services.certificates().last(redaction.id) == certificate
    assert "records-gone" in {one["state"] for one in await broker.services.certificates().list_all()}


async def test_untouched_segments_stay_bit_for_bit(broker: Broker) -> None:
    """Their files are not replaced, either."""
    await create(broker)
    for _ in range(4):
        fill(broker, 8)
    write(broker, ORDER)
    fill(broker, 20)
    where_it_is = broker.node.topics.log("orders", 0)
    base = where_it_is.segments[where_it_is.floor_segment(32)].base_offset
    directory = data_of(broker) / "orders-0"
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in directory.glob("*.log")}
    await redact(broker)
    after = {path.name: (path.stat().st_ino, path.read_bytes()) for path in directory.glob("*.log")}
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == [f"{base:020d}.log"]


async def test_how_far_it_is_is_reported(broker: Broker) -> None:
    """The progress names each stage, without the condition."""
    await create(broker)
    write(broker, OTHER, ORDER)
    seen: list[tuple[str, str]] = []

    def note(progress: Progress) -> None:
        if (progress.stage, progress.unit) not in seen:
            seen.append((progress.stage, progress.unit))

    await redact(broker, progress=Progress(note))
    assert seen == [
        ("locating the records", "bytes"),
        ("rewriting segments", "bytes"),
        ("waiting for readers of removed files", ""),
        ("scanning everything", "bytes"),
    ]


async def test_a_condition_without_matches_is_certified_so(broker: Broker) -> None:
    """The certificate's state says that nothing matched, which proves no removal."""
    await create(broker)
    write(broker, b"one", b"two")
    nothing = await redact(broker, 'key == "nobody"')
    assert (nothing.state, nothing.removed, nothing.certificate["found"]) == ("nothing-matched", 0, [])
    assert [path.name for path in data_of(broker).glob("diamant-*.json")] == [
        f"diamant-redaction-{nothing.id}.nothing-matched.json"
    ]
    assert broker.services.redactions().table.done == 1
    assert "This proves no removal" in certificate_page(nothing.certificate)
    found = await verified(broker, nothing.certificate, 'key == "nobody"')
    assert (found.outcome, found.claims[0]["verdict"]) == ("nothing-matched", "holds")


async def test_a_description_of_everything_needs_yes_all(broker: Broker) -> None:
    """A topic without records needs no confirmation."""
    await create(broker, partitions=2)
    assert (await redact(broker, "value exists")).removed == 0
    write(broker, ORDER, ORDER)
    write(broker, OTHER, partition=1)
    with pytest.raises(NotPossible, match="all 3 records of orders match"):
        await redact(broker, "value exists")
    assert (offsets(broker), offsets(broker, partition=1)) == ([0, 1], [0])
    assert intents_of(broker) == []
    assert (await redact(broker)).removed == 2
    assert (await redact(broker, "value exists", yes_all=True)).removed == 1
    assert (offsets(broker), offsets(broker, partition=1)) == ([], [])
    assert write(broker, OTHER) == 2


async def test_on_a_compacted_topic_no_older_value_comes_back(broker: Broker) -> None:
    """Older values of the matched key are removed, too; a newer one that does not match stays."""
    await create(broker, "orders", 1, **{"cleanup.policy": "compact"})
    write(broker, b"an older value", key=b"a")
    write(broker, ORDER, key=b"a")
    write(broker, ORDER, key=b"b")
    write(broker, OTHER, key=b"b")
    redaction = await redact(broker)
    assert (redaction.state, redaction.removed) == ("records-gone", 3), redaction.certificate["not_certified"]
    assert redaction.certificate["found"][0]["superseded"] == 1
    assert offsets(broker) == [3]
    await broker.compact("orders")
    assert offsets(broker) == [3]


async def test_values_that_are_no_json_are_reported_and_stay(broker: Broker) -> None:
    """Such values are undecided; the same bytes in other topics are listed, too."""
    await create(broker)
    await create(broker, "mails")
    write(broker, ORDER)
    odd = write(broker, b"no json: customer, email, ada@example.com")
    write(broker, b"to: ada@example.com", topic="mails")
    redaction = await redact(broker)
    assert (redaction.state, redaction.removed, redaction.next_due_ms) == ("not-certified", 1, None)
    found = redaction.certificate["found"][0]
    assert (found["undecided"], found["undecided_offsets"]) == (1, [odd])
    (refused,) = redaction.certificate["not_certified"]
    assert refused["state"] == "inconclusive"
    assert [(one["offset"], "cannot be decided" in one["reason"]) for one in refused["problems"]] == [(odd, True)]
    assert redaction.certificate["ended"]["what"] == "undecided-records"
    assert "they may or may not match" in certificate_page(redaction.certificate)
    assert broker.services.redactions().queue.unfinished() == []
    seen = {(one["topic"], one["offset"], one["what"]) for one in redaction.certificate["elsewhere"]}
    assert seen == {("orders", odd, "same-bytes"), ("mails", 0, "same-bytes")}


async def test_undecided_records_go_or_stay_as_is_asked(broker: Broker) -> None:
    """Both are certified and verified: removed records may not come back, kept ones are listed and refuse nothing."""
    await create(broker)
    write(broker, ORDER, OTHER)
    odd = write(broker, ORDER + b" and something else")
    kept = await redact(broker, undecided="keep")
    certificate = kept.certificate
    assert (kept.state, kept.removed, certificate["request"]["undecided"]) == ("records-gone", 1, "keep")
    assert [one["offsets"] for one in certificate["overrides"]] == [[odd]]
    assert f"Offsets: {odd}." in certificate_page(certificate)
    found = await verified(broker, certificate)
    assert (found.is_valid, [one["verdict"] for one in found.claims]) == (True, ["holds"])
    gone = await redact(broker, undecided="remove")
    assert (gone.state, gone.removed, gone.certificate["request"]["undecided"]) == ("records-gone", 1, "remove")
    assert gone.certificate["overrides"] == []
    assert offsets(broker) == [1]
    assert (await verified(broker, gone.certificate)).is_valid
    with pytest.raises(BadArgument, match="expected one of hold, remove, keep"):
        await redact(broker, undecided="perhaps")


# -- transactions ----------------------------------------------------------------------------------------------------------


async def test_records_above_the_last_stable_offset_are_not_certified(broker: Broker) -> None:
    """Such a record is removed automatically once the transaction has ended, and then certified."""
    await create(broker)
    write(broker, ORDER, OTHER)
    producer = Producer(broker, "orders", 0, 5)
    producer.write((b"k", ORDER))
    write(broker, ORDER)
    redaction = await redact(broker)
    assert (redaction.state, redaction.removed) == ("not-certified", 1)
    assert offsets(broker) == [1, 2, 3]
    certificate = redaction.certificate
    assert [(one["below_offset"], one["state"]) for one in certificate["claims"]] == [(2, "records-gone")]
    assert [one["state"] for one in certificate["not_certified"]] == ["not-stable-yet"]
    assert "2 of them match" in certificate["not_certified"][0]["problems"][0]["reason"]
    (listed,) = broker.services.redactions().queue.unfinished()
    assert (listed["id"], listed["due_ms"]) == (redaction.id, redaction.next_due_ms)
    assert "a transaction of producer 5, open since offset 2" in listed["waits_for"]

    producer.end(is_commit=False)
    write(broker, OTHER)
    assert redaction.next_due_ms is not None
    move_to(broker, redaction.next_due_ms)
    await wait_gone(broker)
    final = await broker.services.certificates().last(redaction.id)
    assert (final["state"], final["runs"], final["found"][0]["offsets"]) == ("records-gone", 2, [0, 2, 3])
    assert offsets(broker) == [1, 5]
    assert intents_of(broker) == []


async def test_an_open_transaction_without_a_match_is_no_obstacle(broker: Broker) -> None:
    """Everything up to the log end was judged."""
    await create(broker)
    write(broker, ORDER, OTHER)
    Producer(broker, "orders", 0, 5).write((b"k", OTHER))
    redaction = await redact(broker)
    assert redaction.state == "records-gone"
    assert [one["below_offset"] for one in redaction.certificate["claims"]] == [3]


# -- interrupted -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("create_new", "*.cleaned"),
        ("remove", "*.facts"),
        ("remove", "*.log.deleted"),
        ("write_atomically", "*.pending"),
    ],
)
async def test_a_redaction_that_was_interrupted_continues_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, operation: str, path: str
) -> None:
    """A redaction continues at any point; the intent is encrypted with mode 0600 and finally removed. No log line contains
    data.
    """
    caplog.set_level(logging.DEBUG, "diamant")
    async with broker_at(tmp_path) as broker:
        await create(broker, partitions=2)
        for partition in range(2):
            fill(broker, partition=partition)
            write(broker, OTHER, ORDER, partition=partition)
        env_of(broker).fail(operation, path, errno.EIO)
        with pytest.raises(RedactFailed):
            await redact(broker)
        env_of(broker).faults = ()
        (intent,) = intents_of(broker)
        assert stat.S_IMODE(intent.stat().st_mode) == 0o600
        assert EMAIL.encode() not in intent.read_bytes()
        assert len(broker.services.redactions().queue.unfinished()) == 1
    async with broker_at(tmp_path) as broker:
        certificate = await wait_gone(broker)
        assert [one["offsets"] for one in certificate["found"]] == [[11], [11]]
        assert certificate["runs"] == 2
        assert files_with(data_of(broker), EMAIL.encode()) == []
        assert intents_of(broker) == []
    assert "is unfinished" in caplog.text
    assert EMAIL not in caplog.text
    assert "Bern" not in caplog.text


@pytest.mark.parametrize("when", ["before it is located", "when its segment is closed"])
async def test_records_removed_after_a_failed_write_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """After a failed write and an early end, the next run's certificate counts all removed records."""
    failure = OSError(errno.EIO, "mended later")

    def interrupted(*_: object) -> None:
        raise failure

    async with broker_at(tmp_path) as broker:
        await create(broker, partitions=2)
        for partition in range(2):
            write(broker, OTHER, ORDER, partition=partition)
        log = broker.node.topics.log("orders", 0)
        if when == "before it is located":
            log.write_failure = failure
        with pytest.raises(RedactFailed):
            await redact(broker, progress=at_stage("rewriting segments", interrupted))
        if when != "before it is located":
            log.write_failure = failure
            await go_on(broker, lambda: [*data_of(broker).glob("diamant-redaction-*.not-certified.json")] != [])
    async with broker_at(tmp_path) as broker:
        await go_on(broker, lambda: not broker.services.redactions().queue.unfinished())
        certificate = await wait_gone(broker)
        found = sorted((one["partition"], one["offsets"], one["records"]) for one in certificate["found"])
        assert found == [(0, [1], 1), (1, [1], 1)]
        assert {one["file"].partition("/")[0] for one in certificate["segments"]["before"]} == {"orders-0", "orders-1"}
        assert files_with(data_of(broker), EMAIL.encode()) == []


async def go_on(broker: Broker, is_so: Callable[[], bool]) -> None:
    """Move the clock until a condition holds."""

    def is_so_later() -> bool:
        move_to(broker, clock_of(broker).now_ms() + RETRY_MS)
        return is_so()

    await wait_until(is_so_later)


async def test_a_full_disk_changes_nothing_and_is_tried_again(broker: Broker) -> None:
    """The segments stay as they were, no file is left over, and the error names the failure."""
    await create(broker)
    write(broker, OTHER, ORDER)
    fill(broker, 10)

    env_of(broker).fail("create_new", "*.index.cleaned", errno.ENOSPC)
    with pytest.raises(RedactFailed, match="No space left on device"):
        await redact(broker)
    env_of(broker).faults = ()
    assert 1 in offsets(broker)
    assert not list((data_of(broker) / "orders-0").glob("*.cleaned"))
    move_to(broker, START_MS + RETRY_MS)
    await wait_gone(broker)
    assert 1 not in offsets(broker)


async def test_records_written_meanwhile_are_named_and_not_removed(broker: Broker) -> None:
    """The claim ends at the log end at the time of the request."""
    await create(broker)
    write(broker, OTHER, ORDER)
    redaction = await redact(broker, progress=at_stage("rewriting segments", lambda: write(broker, ORDER)))
    assert redaction.state == "records-gone"
    assert [one["offset"] for one in redaction.certificate["written_since"]] == [2]
    assert offsets(broker) == [0, 2]


@pytest.mark.slow
async def test_very_many_records_written_meanwhile_are_no_obstacle(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate lists only some of the records written meanwhile and counts the rest; any below the claim would be among
    those listed.
    """
    await create(broker, **{"internal.segment.bytes": "1000000"})
    write(broker, OTHER, ORDER)
    count = MAX_LISTED + 10
    redaction = await redact(broker, progress=at_stage(SCANNING, lambda: write(broker, *[ORDER] * count)))
    assert redaction.state == "records-gone"
    certificate = redaction.certificate
    unlisted = certificate["written_since_not_listed"]
    assert unlisted > 0
    assert len(certificate["written_since"]) + unlisted == count
    found = await verified(broker, certificate)
    assert (found.is_valid, found.claims[0]["written_since"]) == (True, count)
    put_in(monkeypatch, FORGETS)
    redaction = await redact(broker)
    assert redaction.state == "not-certified"


async def test_a_damaged_segment_gets_no_certificate(broker: Broker) -> None:
    """Other segments of a topic that is not compacted are rewritten nevertheless."""
    await create(broker)
    write(broker, OTHER, ORDER)
    fill(broker, 12)
    write(broker, OTHER, ORDER)
    log = broker.node.topics.log("orders", 0)
    assert log.segments[1].base_offset < 14
    damage(broker, "orders", segment=1)
    redaction = await redact(broker)
    assert redaction.state == "not-certified"
    assert redaction.removed == 2
    reasons = " ".join(one["reason"] for one in redaction.certificate["not_certified"][0]["problems"])
    assert "checksum is wrong" in reasons or "CRC is wrong" in reasons


@pytest.mark.parametrize(
    ("topic", "where", "options", "error", "message"),
    [
        ("nothing", WHERE, {}, NotFound, "no topic 'nothing'"),
        ("__consumer_offsets", WHERE, {}, NotFound, "no topic"),
        ("orders", "secret", {}, BadArgument, "where: at character 1"),
        ("orders", WHERE, {"reason": " "}, BadArgument, "reason is missing"),
        ("orders", WHERE, {"reason": "r\x1b[2J"}, BadArgument, "control characters"),
        ("orders", WHERE, {"reference": "1\n2"}, BadArgument, "without line breaks"),
        ("orders", WHERE, {"reference": "1\u20282"}, BadArgument, "without line breaks"),
    ],
)
async def test_mistakes_change_nothing(
    broker: Broker, topic: str, where: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The error says what to do, without the condition."""
    await create(broker)
    with pytest.raises(error, match=message) as found:
        await broker.redact(topic, where=where, **({"reason": "r"} | options))
    assert "secret" not in str(found.value)
    assert EMAIL not in str(found.value)


# -- verified later --------------------------------------------------------------------------------------------------------


async def test_a_certificate_is_verified_against_the_broker_and_its_files(broker: Broker, tmp_path: Path) -> None:
    """Verification with the condition checks the records again, and reports another one, an altered certificate or a backup."""
    await create(broker)
    write(broker, OTHER, ORDER)
    backup = (data_of(broker) / "orders-0" / f"{0:020d}.log").read_bytes()
    fill(broker)
    certificate = (await redact(broker)).certificate
    found = await verified(broker, certificate, "value.customer.email=='ada@example.com'")
    assert (found.is_valid, found.was_scanned) == (True, True)
    assert {one["verdict"] for one in found.claims} == {"holds"}
    assert found.coverage_adds_up
    other = await verified(broker, certificate, 'key == "k"')
    assert (other.is_valid, {one["verdict"] for one in other.claims}) == (False, {"cannot be told"})
    without = await verified(broker, certificate, None)
    assert (without.outcome, without.was_scanned) == ("not-confirmed", False)
    with pytest.raises(BadArgument, match="where: "):
        await verified(broker, certificate, "nonsense")
    write(broker, ORDER)
    later = await verified(broker, certificate)
    assert (later.is_valid, later.claims[0]["written_since"]) == (True, 1)
    forged = {**certificate, "found": []}
    assert not (await verified(broker, forged)).is_valid
    page = certificate_page(certificate)
    assert EMAIL not in page
    assert "Certificate of redaction" in page
    (data_of(broker) / "orders-0" / f"{0:020d}.log.swap").write_bytes(backup)
    assert {one["verdict"] for one in (await verified(broker, certificate)).claims} == {"broken"}


async def test_bytes_that_may_be_of_the_topic_are_searched(broker: Broker) -> None:
    """Bytes in files that are no segments, in any directory or in the topic's own."""
    await create(broker)
    write(broker, OTHER, ORDER)
    fill(broker)
    copy = data_of(broker) / "copy"
    copy.write_bytes(b"before" + ORDER + b"after")
    assert (await redact(broker)).state == "not-certified"
    copy.unlink()
    write(broker, ORDER)
    snapshot = data_of(broker) / "orders-0" / "00000000000000000000.snapshot"
    snapshot.write_bytes(b"\0" * 9 + ORDER)
    redaction = await redact(broker)
    assert [one["state"] for one in redaction.certificate["not_certified"]] == ["inconclusive"]
    assert "outside of records" in redaction.certificate["not_certified"][0]["problems"][0]["reason"]
    snapshot.unlink()
    assert (await redact(broker)).state == "nothing-matched"


async def test_a_half_written_intent_is_removed(tmp_path: Path) -> None:
    """A half-written intent is removed, as one of an erasure: nothing had changed by then."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "diamant-redaction-abc.intent.tmp").write_bytes(b"x")
    async with broker_at(tmp_path) as broker:
        assert not list(data_of(broker).glob("diamant-redaction-*"))


async def test_sabotage_is_caught(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan finds a record that the search missed or the rewrite kept, and nothing is certified."""
    await create(broker)
    write(broker, OTHER, ORDER)
    for sabotage in (FORGETS, KEEPS):
        with monkeypatch.context() as patched:
            put_in(patched, sabotage)
            redaction = await redact(broker)
        assert redaction.state == "not-certified"
        assert [one["state"] for one in redaction.certificate["not_certified"]] == ["records-present"]
    with monkeypatch.context() as patched:
        put_in(patched, Mutant(Evidence, "remove_doomed", returns({})))
        redaction = await redact(broker)
    assert redaction.state == "not-certified"
    assert check_signature(redaction.certificate, None) == UNTRUSTED
