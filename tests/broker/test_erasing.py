"""Erase and certify in a whole broker: what is claimed is looked for again by a scanner that shares no code with it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import random
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config import BrokerConfig
from diamant.broker.verbs import erasing
from diamant.broker.verbs.erasing import Erasure
from diamant.broker.verbs.errors import BadArgument, NotFound, NotPossible, TimedOut, VerbError
from diamant.cleaner import policy
from diamant.cleaner.evidence import certificate as certificates
from diamant.cleaner.evidence import locate, places, record_search
from diamant.cleaner.evidence.signing_key import SigningKey
from diamant.protocol.records import Header, Record, build_batch
from diamant.storage.clock import SettableClock
from diamant.storage.env import RealEnv
from tests import effort
from tests.cleaner.evidence.naive_scanner import files_with, log_files, records_in, records_of_key

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
KEY = b"customer-42"
PERSON = b'{"name": "Anna Schmidt", "city": "Bern"}'


def config(tmp_path: Path, **properties: str) -> BrokerConfig:
    names = {"diamant.certificate.key.file": str(tmp_path / "keys" / "certificate.key"), **properties}
    return BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", properties=names)


def env_at(now_ms: int = START_MS) -> RealEnv:
    return RealEnv(SettableClock(now_ms))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose clock stands still."""
    async with Broker(config(tmp_path), env=env_at()) as running:
        yield running


def clock_of(broker: Broker) -> SettableClock:
    assert isinstance(broker.env.clock, SettableClock)
    return broker.env.clock


async def create(broker: Broker, name: str = "users", partitions: int = 1, **configs: str) -> None:
    # The cleaner does nothing by itself: what is there when an erasure begins is what the test has written.
    own = {"cleanup.policy": "compact", "internal.segment.bytes": "1000", "min.cleanable.dirty.ratio": "1.0"}
    values = {**own, **configs}
    await broker.topics.create([broker.topics.check_new(name, partitions, 1, None, values)])


def write(
    broker: Broker, *pairs: tuple[bytes, bytes | None], topic: str = "users", partition: int = 0, codec: int = 0
) -> int:
    """Append one batch; its base offset."""
    now_ms = broker.env.clock.now_ms()
    records = [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(pairs)]
    log = broker.topics.log(topic, partition)
    return log.append_as_leader(memoryview(build_batch(records, codec=codec))).base_offset


def fill(broker: Broker, count: int = 30, topic: str = "users", partition: int = 0) -> None:
    """Write other customers."""
    for number in range(count):
        write(
            broker,
            (b"customer-%d" % (100 + number % 10), b"someone else, %d" % number),
            topic=topic,
            partition=partition,
        )


async def erase(broker: Broker, key: bytes = KEY, topics: Sequence[str] = ("users",), **options: Any) -> Erasure:
    return await broker.erase(key, list(topics), reason="GDPR Art. 17", **options)


def data_of(broker: Broker) -> Path:
    return Path(broker.config.data_dir)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def check_claims(directory: Path, certificate: dict[str, Any], key: bytes) -> None:
    """What a certificate calls gone is not found by the scanner of the tests."""
    for claim in certificate["claims"]:
        partition = f"{claim['topic']}-{claim['partition']}"
        for one in records_of_key(directory, claim["topic"], key):
            if one.path.parent.name == partition and one.offset < claim["below_offset"]:
                assert one.value is None, f"a value at offset {one.offset} in {one.path.name}"
                assert claim["state"] == "values-gone"


# -- the two states ------------------------------------------------------------------------------------------------------


async def test_values_are_gone_at_once_and_the_key_after_the_horizon(broker: Broker) -> None:
    """In every partition that has the key; the second certificate comes by itself, to the millisecond."""
    await create(broker, partitions=3)
    for partition, codec in ((0, 4), (2, 0)):
        for version in range(3):
            write(broker, (KEY, b"%d " % version + PERSON), partition=partition, codec=codec)
            fill(broker, partition=partition)
    erasure = await erase(broker, reference="ticket 7")
    assert erasure.state == "values-gone"
    assert {(one["partition"], one["values"]) for one in erasure.certificate["found"]} == {(0, 3), (2, 3)}
    assert files_with(data_of(broker), PERSON) == []
    check_claims(data_of(broker), erasure.certificate, KEY)
    assert erasure.next_due_ms == erasure.certificate["next"]["due_ms"] == START_MS + DAY_MS
    assert len(records_of_key(data_of(broker), "users", KEY)) == 2

    clock_of(broker).set_ms(START_MS + DAY_MS - 1)
    broker.scheduler.poke()
    assert (await broker.erasures.certificate(erasure.id))["state"] == "values-gone"
    assert len(records_of_key(data_of(broker), "users", KEY)) == 2

    clock_of(broker).set_ms(START_MS + DAY_MS)
    broker.scheduler.poke()
    await wait_until(lambda: list(data_of(broker).glob("*.key-gone.json")) != [])
    final = await broker.erasures.certificate(erasure.id)
    assert (final["state"], final["request"]["reference"]) == ("key-gone", "ticket 7")
    assert records_of_key(data_of(broker), "users", KEY) == []
    assert files_with(data_of(broker), KEY) == []
    assert list(data_of(broker).glob("*.intent")) == []
    check_claims(data_of(broker), final, KEY)


async def test_the_horizon_can_be_overridden(broker: Broker) -> None:
    """All other records keep their offsets; the groups that were behind stand in the certificate."""
    await create(broker)
    write(broker, (KEY, PERSON), (b"other", b"stays"))
    fill(broker)
    erasure = await erase(broker, is_now=True)
    assert (erasure.state, erasure.next_due_ms) == ("key-gone", None)
    assert erasure.certificate["overrides"][0]["groups_that_had_not_passed_it"] == []
    assert records_of_key(data_of(broker), "users", KEY) == []
    kept = [one for path in log_files(data_of(broker), "users") for one in records_in(path)]
    assert (1, b"other", b"stays") in [one[1:] for one in kept]
    assert len(kept) == 11


async def test_a_key_that_is_nowhere_is_certified_so(broker: Broker) -> None:
    """Nothing is written; the certificate says that nothing was found."""
    await create(broker, partitions=2)
    fill(broker)
    ends = [broker.topics.log("users", index).log_end_offset for index in (0, 1)]
    erasure = await erase(broker)
    assert (erasure.state, erasure.certificate["found"], erasure.next_due_ms) == ("key-gone", [], None)
    assert [broker.topics.log("users", index).log_end_offset for index in (0, 1)] == ends


async def test_a_second_erase_writes_no_second_tombstone(broker: Broker) -> None:
    """The first one's horizon stays as it is."""
    await create(broker)
    write(broker, (KEY, PERSON))
    first = await erase(broker)
    clock_of(broker).advance_ms(1000)
    second = await erase(broker)
    assert (second.state, second.next_due_ms) == ("values-gone", first.next_due_ms)
    assert len(records_of_key(data_of(broker), "users", KEY)) == 1


async def test_a_write_during_the_erase_is_named_and_not_erased(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim ends behind the tombstone."""
    await create(broker)
    write(broker, (KEY, PERSON))
    fill(broker)
    real, offsets = erasing.Erasures._scan, []

    async def scan(self: Any, *arguments: Any) -> Any:
        offsets.append(write(broker, (KEY, b"written during the erase")))
        return await real(self, *arguments)

    monkeypatch.setattr(erasing.Erasures, "_scan", scan)
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    assert [one["offset"] for one in erasure.written_since] == offsets
    assert erasure.certificate["claims"][0]["below_offset"] <= offsets[0]
    assert files_with(data_of(broker), PERSON) == []


async def test_the_same_bytes_elsewhere_are_listed(broker: Broker) -> None:
    """Under another key, in a header of another topic, as the same key of another topic."""
    await create(broker)
    await create(broker, "orders", **{"cleanup.policy": "delete"})
    write(broker, (KEY, PERSON), (b"twin", PERSON))
    log = broker.topics.log("orders", 0)
    log.append_as_leader(memoryview(build_batch([Record(0, START_MS, KEY, b"-", (Header("by", PERSON),))], codec=3)))
    erasure = await erase(broker)
    found = sorted((one["topic"], one["what"]) for one in erasure.certificate["elsewhere"])
    assert erasure.state == "values-gone"
    assert found == [("orders", "same-bytes"), ("orders", "same-key"), ("users", "same-bytes")]


@pytest.mark.parametrize("key", [b"", b"42", b"\x00\xff\xfe", "Zürich".encode()])
async def test_keys_are_bytes(broker: Broker, key: bytes) -> None:
    """Empty, short, binary and UTF-8."""
    await create(broker)
    write(broker, (key, b"{}"), (b"4", b"{}"), (b"", b"{}") if key else (b"x", b"{}"))
    erasure = await erase(broker, key)
    assert erasure.state == "values-gone"
    assert [one.value for one in records_of_key(data_of(broker), "users", key)] == [None]
    check_claims(data_of(broker), erasure.certificate, key)


# -- what is refused or not certified ------------------------------------------------------------------------------------


async def test_mistakes_are_refused_before_anything_is_written(broker: Broker) -> None:
    """Unknown, internal and delete-only topics, no topic, no reason."""
    await create(broker)
    await create(broker, "events", **{"cleanup.policy": "delete"})
    for topics, error in ((["nothing"], NotFound), (["events"], NotPossible), ([], BadArgument)):
        with pytest.raises(error):
            await erase(broker, topics=topics)
    with pytest.raises(BadArgument):
        await broker.erase(KEY, ["users"], reason=" ")
    assert list(data_of(broker).glob("diamant-erasure-*")) == []


async def test_a_partition_that_cannot_be_read_gets_no_claim(broker: Broker) -> None:
    """The others do; the certificate as a whole certifies nothing."""
    await create(broker, partitions=2)
    for partition in (0, 1):
        write(broker, (KEY, PERSON), partition=partition)
        fill(broker, partition=partition)
    segment = sorted(data_of(broker).glob("users-1/*.log"))[0]
    damaged = bytearray(segment.read_bytes())
    damaged[80] ^= 1
    segment.write_bytes(damaged)
    erasure = await erase(broker)
    assert erasure.state == "not-certified"
    assert [one["partition"] for one in erasure.certificate["claims"]] == [0]
    assert [(one["partition"], one["state"]) for one in erasure.certificate["not_certified"]] == [(1, "inconclusive")]
    check_claims(data_of(broker), erasure.certificate, KEY)


async def test_an_open_transaction_ends_in_a_timeout_that_says_so(broker: Broker) -> None:
    """No certificate; the intent stays, and the erasure goes on."""
    await create(broker)
    write(broker, (KEY, PERSON))
    batch = build_batch(
        [Record(0, START_MS, KEY, PERSON)], producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    broker.topics.log("users", 0).append_as_leader(memoryview(batch))
    with pytest.raises(TimedOut, match="goes on"):
        await erase(broker, timeout_ms=400)
    assert list(data_of(broker).glob("*.json")) == []
    assert len(list(data_of(broker).glob("*.intent"))) == 1
    assert len(broker.erasures.unfinished()) == 1


async def test_a_full_disk_gives_an_error_and_no_certificate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the intent cannot be written nothing else is."""
    await create(broker)
    write(broker, (KEY, PERSON))

    def write_intent(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "intent")

    monkeypatch.setattr(erasing, "write_intent", write_intent)
    with pytest.raises(VerbError, match="No space left"):
        await erase(broker)
    assert list(data_of(broker).glob("diamant-erasure-*")) == []
    assert len(records_of_key(data_of(broker), "users", KEY)) == 1


async def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Before anything is changed."""
    async with Broker(config(tmp_path), env=env_at()) as broker:
        await create(broker)
        path = tmp_path / "keys" / "certificate.key"
        SigningKey.load(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        with pytest.raises(NotPossible, match="chmod 600"):
            await erase(broker)


# -- restarts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["_write_tombstones", "_remove_values", "_certify_values"])
async def test_an_erasure_that_was_interrupted_goes_on_at_the_next_start(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever phase it was. The intent is for its owner only, and tells nothing without the secret."""

    async def interrupted(*_arguments: Any) -> None:
        raise erasing.EraseFailed("stopped here")

    async with Broker(config(tmp_path), env=env_at()) as broker:
        await create(broker)
        write(broker, (KEY, PERSON))
        fill(broker)
        with monkeypatch.context() as patched:
            patched.setattr(erasing.Erasures, where, interrupted)
            with pytest.raises(erasing.EraseFailed):
                await erase(broker)
        (intent,) = data_of(broker).glob("*.intent")
        assert stat.S_IMODE(intent.stat().st_mode) == 0o600
        assert KEY not in intent.read_bytes()
    async with Broker(config(tmp_path), env=env_at(START_MS + 1)) as broker:
        await wait_until(lambda: list(data_of(broker).glob("*.values-gone.json")) != [])
        (path,) = data_of(broker).glob("*.values-gone.json")
        certificate = certificates.parse(path.read_bytes())
        assert certificate["found"][0]["values"] == 1
        assert files_with(data_of(broker), PERSON) == []
        check_claims(data_of(broker), certificate, KEY)


async def test_an_intent_that_cannot_be_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker starts, and says that an erasure is unfinished."""
    async with Broker(config(tmp_path), env=env_at()) as broker:
        (data_of(broker) / "diamant-erasure-abc.intent").write_bytes(b"x" * 50)
    with caplog.at_level(logging.ERROR):
        async with Broker(config(tmp_path), env=env_at()):
            pass
    assert "erasure abc is unfinished" in caplog.text


async def test_no_key_and_no_value_is_in_logs_or_certificates(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """They are told by digests only."""
    with caplog.at_level(logging.DEBUG):
        await create(broker)
        write(broker, (KEY, PERSON))
        erasure = await erase(broker)
    for secret in (KEY.decode(), "Anna"):
        assert secret not in caplog.text
        assert secret not in json.dumps(erasure.to_fields())


# -- verification ------------------------------------------------------------------------------------------------------------


def pinned(erasure: Erasure) -> bytes:
    return bytes.fromhex(erasure.certificate["signature"]["public_key"])


async def test_a_certificate_is_verified_against_the_broker(broker: Broker) -> None:
    """With the pinned key it is trusted; without one the signer is not; a manual clock is stated."""
    await create(broker)
    write(broker, (KEY, PERSON))
    erasure = await erase(broker)
    found = await broker.erasures.verify(erasure.certificate, public_key=pinned(erasure))
    assert (found.is_valid, found.signature, found.was_scanned) == (True, "trusted", True)
    assert not found.is_evidence
    assert "no evidence" in found.notes[0]
    assert [one["verdict"] for one in found.claims] == ["holds"]
    unknown = await broker.erasures.verify(erasure.certificate)
    assert (unknown.is_valid, unknown.signature) == (False, "untrusted signer")
    other = await broker.erasures.verify(erasure.certificate, public_key=bytes(32))
    assert (other.is_valid, "another key" in other.signature) == (False, True)


async def test_later_writes_and_values_that_come_back_are_told_apart(broker: Broker) -> None:
    """What was written behind the claim is named; a restored old segment breaks the claim."""
    await create(broker)
    write(broker, (KEY, PERSON))
    old = (data_of(broker) / "users-0" / "00000000000000000000.log").read_bytes()
    erasure = await erase(broker)
    write(broker, (KEY, b"a customer again"))
    found = await broker.erasures.verify(erasure.certificate, public_key=pinned(erasure), key=KEY)
    assert (found.is_valid, found.claims[0]["written_since"]) == (True, 1)
    (data_of(broker) / "users-0" / "00000000000000000000.log.swap").write_bytes(old)
    found = await broker.erasures.verify(erasure.certificate, public_key=pinned(erasure))
    assert (found.is_valid, found.claims[0]["verdict"]) == (False, "broken")


async def test_a_changed_certificate_is_refused(broker: Broker) -> None:
    """Whatever was changed in it, and if it is cut off."""
    await create(broker)
    write(broker, (KEY, PERSON))
    erasure = await erase(broker)
    for change in ({"state": "key-gone"}, {"claims": []}, {"is_evidence": True}, {"extra": 1}):
        found = await broker.erasures.verify({**erasure.certificate, **change}, public_key=pinned(erasure))
        assert (found.is_valid, "not valid" in found.signature) == (False, True)
    text = json.dumps(erasure.certificate).encode()
    for cut in (0, 10, len(text) // 2, len(text) - 1):
        with pytest.raises(certificates.CertificateError):
            certificates.parse(text[:cut])
    with pytest.raises(BadArgument):
        await broker.erasures.verify({"type": "something"})


# -- sabotage ----------------------------------------------------------------------------------------------------------------


def values_on_disk(broker: Broker) -> bool:
    """What the independent scanner says."""
    return any(one.value is not None for one in records_of_key(data_of(broker), "users", KEY))


async def test_a_scan_that_skips_deleted_files_is_caught(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scanner of the tests finds the value in a file that the erasure did not remove and the scan did not read."""
    await create(broker)
    write(broker, (KEY, PERSON))
    monkeypatch.setattr(erasing.Erasures, "_remove_doomed", lambda *_: {})
    real = places.list_places
    monkeypatch.setattr(
        "diamant.cleaner.evidence.scan.list_places",
        lambda *arguments: (one for one in real(*arguments) if not one.name.endswith(".deleted")),
    )
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    assert values_on_disk(broker), "the sabotage must show"
    with pytest.raises(AssertionError, match="a value at offset"):
        check_claims(data_of(broker), erasure.certificate, KEY)


async def test_deleted_files_that_stay_keep_the_certificate_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real scan reads them: the values are said to be there."""
    await create(broker)
    write(broker, (KEY, PERSON))
    monkeypatch.setattr(erasing.Erasures, "_remove_doomed", lambda *_: {})
    erasure = await erase(broker)
    assert erasure.state == "not-certified"
    assert [one["state"] for one in erasure.certificate["not_certified"]] == ["values-present"]


async def test_a_scan_that_skips_a_codec_is_caught(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scanner of the tests reads what the other passed over."""
    await create(broker)
    write(broker, (KEY, PERSON), codec=4)
    monkeypatch.setattr(erasing.Erasures, "_write_tombstone", lambda *_: 0)
    real = record_search.FileSearch.look_at
    monkeypatch.setattr(
        record_search.FileSearch, "look_at", lambda self, batch: batch.header.codec != 4 and real(self, batch)
    )
    erasure = await erase(broker)
    assert erasure.state == "key-gone"
    with pytest.raises(AssertionError, match="a value at offset"):
        check_claims(data_of(broker), erasure.certificate, KEY)


async def test_a_stale_filter_that_hides_a_segment_is_caught_by_the_scan(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locating trusts filters; the scan does not, so there is no claim."""
    await create(broker)
    write(broker, (KEY, PERSON))
    fill(broker)
    (data_of(broker) / "diamant-hash-key").write_bytes(b"k" * 16)
    monkeypatch.setattr(locate._Filters, "can_skip", lambda self, place: True)
    erasure = await erase(broker)
    assert erasure.certificate["found"] == []
    assert erasure.state == "not-certified"


async def test_a_cleaner_that_keeps_a_record_is_caught_by_the_scan(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superseded value that stays keeps the certificate back."""
    await create(broker)
    write(broker, (KEY, PERSON))
    fill(broker)
    monkeypatch.setattr(policy, "record_fate", lambda **_: policy.KEEP)
    erasure = await erase(broker)
    assert erasure.state == "not-certified"
    assert values_on_disk(broker)


async def test_a_cleaner_that_loses_the_tombstone_is_seen(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are gone, and so is the tombstone before its time: the certificate says key-gone without a horizon's round."""
    await create(broker)
    write(broker, (KEY, PERSON))
    fill(broker)
    real = policy.record_fate
    monkeypatch.setattr(
        policy,
        "record_fate",
        lambda **facts: real(**{**facts, "is_expired": True}) if not facts["has_value"] else real(**facts),
    )
    erasure = await erase(broker)
    assert not values_on_disk(broker)
    assert records_of_key(data_of(broker), "users", KEY) == []
    assert (erasure.state, erasure.next_due_ms) == ("key-gone", None)
    # The step that wrote it, and no step that removed it, stand side by side.
    assert "tombstone_offset" in erasure.certificate["done"][0]
    assert erasure.certificate["lost_tombstones"] == [{"topic": "users", "partition": 0}]


# -- random histories --------------------------------------------------------------------------------------------------------


async def one_history(broker: Broker, rng: random.Random, name: str) -> None:
    """Write at random, erase one key, and look for it independently."""
    partitions = rng.randrange(1, 4)
    await create(broker, name, partitions, **{"internal.segment.bytes": str(rng.choice([300, 1000, 100_000]))})
    keys = [b"k%d" % index for index in range(rng.randrange(1, 6))]
    for number in range(rng.randrange(1, 40)):
        pairs = [
            (rng.choice(keys), rng.choice([None, b"", b"v", b"personal data %d of %s" % (number, name.encode())]))
            for _ in range(rng.randrange(1, 5))
        ]
        partition = rng.randrange(partitions)
        write(broker, *pairs, topic=name, partition=partition, codec=rng.randrange(5))
        if rng.random() < 0.1:
            broker.topics.log(name, partition).roll()
        if rng.random() < 0.05:
            await broker.compact(name)
    key = rng.choice([*keys, b"nobody"])
    erasure = await erase(broker, key, [name], is_now=rng.random() < 0.3)
    assert erasure.state in ("values-gone", "key-gone")
    assert len(erasure.certificate["claims"]) == partitions
    check_claims(data_of(broker), erasure.certificate, key)
    if erasure.state == "key-gone":
        assert records_of_key(data_of(broker), name, key) == []
    await broker.topics.delete([name])
    broker.directory.remove_paths([str(path) for path in data_of(broker).glob("*-delete")])


async def histories(broker: Broker, count: int, seed: int) -> None:
    for index in range(count):
        print(f"seed {seed}, history {index}")
        await one_history(broker, random.Random(f"{seed}-{index}"), f"h{index}")
        for path in data_of(broker).glob("diamant-erasure-*"):
            path.unlink()
        broker.erasures._due.clear()


async def test_random_histories_hold_no_value_that_a_certificate_calls_gone(broker: Broker) -> None:
    """A hundred of them, in every codec, with rounds in between."""
    await histories(broker, effort.examples(100), 6)


@pytest.mark.long
async def test_a_thousand_random_histories(broker: Broker) -> None:
    """The same, longer, from another seed each time."""
    await histories(broker, 1000, random.randrange(1 << 30))
