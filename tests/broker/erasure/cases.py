"""A broker with a key to erase, and checks of its certificates by a scanner that shares no code with the broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.erasure.erase.erase_result import Erasure
from diamant.broker.groups.store.group import Group
from diamant.cleaner.evidence.certificates.certificate import parse_certificate
from diamant.protocol.batches.control import build_marker
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.internal_topics.group_records import encode_offset_commit_value
from diamant.storage.env.clock import SettableClock
from tests.broker.erasure.faulty_env import FaultyEnv
from tests.cleaner.evidence.scan.naive_scanner import records_of_key
from tests.waiting import wait_until

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
RETRY_MS = 60_000
KEY = b"customer-42"
PERSON = b'{"name": "Anna Schmidt", "city": "Bern"}'
HTTP = {"diamant.http.listen": "127.0.0.1:0"}


def config(tmp_path: Path, **properties: str) -> BrokerConfig:
    """Data and keys below a directory."""
    names = {"diamant.certificate.key.file": str(tmp_path / "keys" / "certificate.key"), **properties}
    return BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", properties=names)


def env_at(now_ms: int = START_MS) -> FaultyEnv:
    """Real files, and a frozen clock."""
    return FaultyEnv(SettableClock(now_ms))


def env_of(broker: Broker) -> FaultyEnv:
    """The broker's files."""
    assert isinstance(broker.env, FaultyEnv)
    return broker.env


def broker_at(tmp_path: Path, now_ms: int = START_MS, **properties: str) -> Broker:
    """A broker with data and keys below a directory, and a frozen clock."""
    return Broker(config(tmp_path, **properties), env=env_at(now_ms))


def clock_of(broker: Broker) -> SettableClock:
    """The broker's clock."""
    assert isinstance(broker.env.clock, SettableClock)
    return broker.env.clock


def move_to(broker: Broker, now_ms: int) -> None:
    """Move the broker's clock, so that due work begins."""
    clock_of(broker).set_ms(now_ms)
    broker.node.scheduler.poke()


async def create(
    broker: Broker, name: str = "users", partitions: int = 1, policy: str = "compact", segment_bytes: int = 1000
) -> None:
    """Create a compacted topic with small segments that the cleaner ignores: it holds exactly the test's records."""
    configs = {"internal_segment_bytes": segment_bytes, "min_cleanable_dirty_ratio": 1.0}
    await broker.create_topic(name, partitions, cleanup_policy=policy, **configs)


def write(
    broker: Broker,
    *pairs: tuple[bytes, bytes | None],
    topic: str = "users",
    partition: int = 0,
    codec: int = 0,
    headers: Sequence[Header] = (),
) -> int:
    """Append one batch; return its base offset."""
    now_ms = broker.env.clock.now_ms()
    records = [Record(offset, now_ms, key, value, tuple(headers)) for offset, (key, value) in enumerate(pairs)]
    log = broker.node.topics.log(topic, partition)
    return log.append_as_leader(memoryview(build_batch(records, codec=codec))).base_offset


def write_often(broker: Broker, count: int, value: bytes | None = b"again", topic: str = "users") -> None:
    """Append `count` records of the key, in batches that fit small segments."""
    for first in range(0, count, 20):
        write(broker, *[(KEY, value)] * min(20, count - first), topic=topic)


def commit(broker: Broker, *commits: tuple[int, str]) -> None:
    """Set the only groups: the offset that each has committed in each partition of `users`."""
    groups = broker.services.groups().groups
    groups.clear()
    for offset, name in commits:
        group = groups[name] = Group(name)
        value = encode_offset_commit_value(offset, -1, "", broker.env.clock.now_ms())
        group.offsets.committed["users"] = dict.fromkeys(range(10), (value, 0))


class Producer:
    """A transactional producer in one partition."""

    def __init__(self, broker: Broker, topic: str, partition: int, producer_id: int) -> None:
        self._broker = broker
        self._log = broker.node.topics.log(topic, partition)
        self._id = producer_id
        self._sequence = 0

    def write(self, *pairs: tuple[bytes, bytes | None], codec: int = 0, headers: Sequence[Header] = ()) -> None:
        """Append a batch to the producer's transaction."""
        now_ms = self._broker.env.clock.now_ms()
        records = [Record(offset, now_ms, key, value, tuple(headers)) for offset, (key, value) in enumerate(pairs)]
        batch = build_batch(
            records,
            codec=codec,
            producer_id=self._id,
            producer_epoch=0,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        self._log.append_as_leader(memoryview(batch))
        self._sequence += len(pairs)

    def end(self, *, is_commit: bool) -> None:
        """Append the marker."""
        marker = build_marker(
            is_commit=is_commit,
            producer_id=self._id,
            producer_epoch=0,
            coordinator_epoch=0,
            base_offset=0,
            leader_epoch=self._log.leader_epoch,
            timestamp=self._broker.env.clock.now_ms(),
        )
        self._log.append_internal(marker)
        self._broker.node.log_events.changed(self._log)


def fill(broker: Broker, count: int = 30, topic: str = "users", partition: int = 0) -> None:
    """Write other customers."""
    for number in range(count):
        write(
            broker,
            (b"customer-%d" % (100 + number % 10), b"someone else, %d" % number),
            topic=topic,
            partition=partition,
        )


async def create_with_key(broker: Broker, partitions: int = 1, *, others: int = 0, codec: int = 0) -> None:
    """Create `users` with one value of the key in each partition, followed by records of other customers."""
    await create(broker, partitions=partitions)
    for partition in range(partitions):
        write(broker, (KEY, PERSON), partition=partition, codec=codec)
        fill(broker, others, partition=partition)


async def erase(broker: Broker, key: bytes = KEY, topics: Sequence[str] = ("users",), **options: Any) -> Erasure:
    """Erase."""
    return await broker.erase(key, list(topics), reason="GDPR Art. 17", **options)


def data_of(broker: Broker) -> Path:
    """The broker's data directory."""
    return Path(broker.config.data_dir)


def certificates_in(directory: Path, state: str) -> list[Path]:
    """The certificates with a state."""
    return sorted(directory.glob(f"diamant-erasure-*.{state}.json"))


def certificates_of(broker: Broker, state: str) -> list[Path]:
    """The certificates with a state that a broker has issued."""
    return certificates_in(data_of(broker), state)


def only_certificate(broker: Broker, state: str) -> dict[str, Any]:
    """The content of the single certificate with a state."""
    (path,) = certificates_of(broker, state)
    return parse_certificate(path.read_bytes())


def intents_of(broker: Broker) -> list[Path]:
    """The intent files of unfinished jobs."""
    return list(data_of(broker).glob("*.intent"))


def traces_of(broker: Broker) -> list[Path]:
    """All files that erasures have in the data directory."""
    return list(data_of(broker).glob("diamant-erasure-*"))


def values_left(broker: Broker, key: bytes = KEY) -> list[bytes | None]:
    """The values of a key in the files of `users`, None for a tombstone, as found by the tests' scanner."""
    return [one.value for one in records_of_key(data_of(broker), "users", key)]


async def wait_certified(broker: Broker, state: str) -> None:
    """Wait until a certificate with a state exists."""
    await wait_until(lambda: certificates_of(broker, state) != [])


async def wait_idle(broker: Broker) -> None:
    """Wait until the due work is done."""
    await wait_until(
        lambda: not broker.node.scheduler.is_due and not broker.services.erasures().queue.attempts.is_at_work
    )


async def certified_at(broker: Broker, now_ms: int, state: str) -> dict[str, Any]:
    """Move the clock to the next step of an erasure, and wait; return the content of its certificate with that state."""
    move_to(broker, now_ms)
    await wait_certified(broker, state)
    return only_certificate(broker, state)


def pinned(certificate: dict[str, Any]) -> bytes:
    """The public key, as if pinned before."""
    return bytes.fromhex(certificate["signature"]["public_key"])


def check_claims(directory: Path, certificate: dict[str, Any], key: bytes) -> None:
    """Check that the tests' scanner finds no data that a certificate claims to be gone."""
    for claim in certificate["claims"]:
        partition = f"{claim['topic']}-{claim['partition']}"
        for one in records_of_key(directory, claim["topic"], key):
            if one.path.parent.name == partition and one.offset < claim["below_offset"]:
                assert one.value is None, f"a value at offset {one.offset} in {one.path.name}"
                assert claim["state"] == "values-gone"
