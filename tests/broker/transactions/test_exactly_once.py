"""Exactly once under SIGKILL: applications read, write and commit in transactions while the broker is killed and restarted."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from tests.broker.request_fields import list_offsets
from tests.broker.restarted_broker import RestartedBroker
from tests.broker.transactions.read_process_write import (
    OUTPUT_PARTITIONS,
    Application,
    ConfluentApplication,
    WireApplication,
    partition_of,
)
from tests.broker.transactions.txn_wire import TxnProducer, wait_for_committed_offset
from tests.broker.wire import LIST_OFFSETS, WireClient

COORDINATOR_PARTITIONS = 3
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    f"offsets.topic.num.partitions={COORDINATOR_PARTITIONS}",
    f"transaction.state.log.num.partitions={COORDINATOR_PARTITIONS}",
    # Rounds of the cleaner are killed, too.
    "log.cleaner.backoff.ms=200",
    "log.cleaner.min.cleanable.ratio=0.01",
)
SEGMENT_BYTES = 8192
RECORDS_PER_RUN = 60
"""Input for each application and partition, in each run of the broker."""
PROGRESS_TIMEOUT_S = 90
"""Longer than a transaction may take (60 s): a member that librdkafka leaves hanging does so until then, with Kafka, too."""


class Load:
    """The applications and their input."""

    def __init__(self, applications: list[Application]) -> None:
        self.applications = applications
        self.inputs: dict[tuple[str, int], list[bytes]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._serial = 0

    async def prepare(self, wire: WireClient) -> None:
        """Create the topics; outputs have many small segments, half of them are compacted (every key is unique)."""
        for number, application in enumerate(self.applications):
            await wire.create(application.input, application.input_partitions)
            policy = {"cleanup_policy": "compact"} if number % 2 else {}
            await wire.create(
                application.output, OUTPUT_PARTITIONS, internal_segment_bytes=str(SEGMENT_BYTES), **policy
            )

    async def feed(self, wire: WireClient) -> None:
        """Write the input of one run."""
        for application in self.applications:
            for partition in range(application.input_partitions):
                values = [b"%d" % (self._serial + number) for number in range(RECORDS_PER_RUN)]
                self._serial += RECORDS_PER_RUN
                result = await wire.produce(application.input, values, partition=partition)
                assert result.error_code == 0, result
                written = self.inputs.setdefault((application.name, partition), [])
                written += values
                application.input_ends[partition] = len(written)

    def start(self) -> None:
        """Start all applications."""
        self.tasks = [asyncio.create_task(application.run()) for application in self.applications]

    @property
    def commits(self) -> int:
        """The number of commits of all applications so far."""
        return sum(application.commits for application in self.applications)

    async def wait_for_commits(self, count: int) -> None:
        """Return when this many more transactions were committed."""
        goal = self.commits + count
        deadline_s = time.monotonic() + PROGRESS_TIMEOUT_S
        while self.commits < goal:
            for task in self.tasks:
                assert not task.done(), task.exception()
            assert time.monotonic() < deadline_s, [application.describe() for application in self.applications]
            await asyncio.sleep(0.002)

    async def wait_for_end(self) -> None:
        """Return when all input is processed; its amount depends on the progress between the kills."""
        for application in self.applications:
            application.finish()
        pending = set(self.tasks)
        while pending:
            commits = self.commits
            done, pending = await asyncio.wait(pending, timeout=PROGRESS_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            is_going_on = done or self.commits > commits
            assert is_going_on, [application.describe() for application in self.applications]

    async def check(self, wire: WireClient) -> None:
        """Check that each input is there once, in order, that committed offsets are at the end, and that nothing is open."""
        for application in self.applications:
            stored = await asyncio.to_thread(read_committed, application.address, application.output)
            for index, values in enumerate(stored):
                assert all(partition_of(value) == index for value in values)
            for partition in range(application.input_partitions):
                want = self.inputs[application.name, partition]
                for index, values in enumerate(stored):
                    mine = set(want)
                    got = [value for value in values if value in mine]
                    expected = [value for value in want if partition_of(value) == index]
                    twice = {value for value, count in Counter(got).items() if count > 1}
                    assert not twice, f"{application.name}: {twice} are in the output twice"
                    assert got == expected, (
                        f"{application.name}: {set(expected) - set(got)} are missing, or out of order"
                    )
                committed = await wait_for_committed_offset(wire, application.group, application.input, partition)
                assert committed == ("NONE", len(want)), application.name
            for index in range(OUTPUT_PARTITIONS):
                assert await ends(wire, application.output, index)
        for index in range(COORDINATOR_PARTITIONS):
            assert await ends(wire, GROUP_OFFSETS_TOPIC, index)
        listed = await TxnProducer(wire, "any").list()
        assert {state for state in listed.values()} <= {"CompleteCommit", "CompleteAbort", "Empty"}, listed


def read_committed(address: str, topic: str) -> list[list[bytes]]:
    """Return the values of each partition as delivered to a real client."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(OUTPUT_PARTITIONS)])
    values: list[list[bytes]] = [[] for _ in range(OUTPUT_PARTITIONS)]
    ended: set[int] = set()
    while len(ended) < OUTPUT_PARTITIONS:
        message = consumer.poll(PROGRESS_TIMEOUT_S)
        assert message is not None, f"only the partitions {ended} were read to their end"
        if message.error() is None:
            values[message.partition()].append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    consumer.close()
    return values


async def ends(wire: WireClient, topic: str, partition: int) -> bool:
    """Whether a partition's last stable offset is its end."""
    found = []
    for isolation_level in (0, 1):
        request = list_offsets(topic, partition, isolation_level=isolation_level)
        answer = (await wire.call(LIST_OFFSETS, 6, request)).topics[0].partitions[0]
        assert not answer.error_code
        found.append(answer.offset)
    return bool(found[0] == found[1])


async def run(directory: Path, applications: str, kills: int, rng: random.Random) -> None:
    """Kill the broker this number of times during the applications' work, and check the outcome."""
    started_s = time.monotonic()
    with RestartedBroker(directory, *SETTINGS) as broker:
        load = Load(make_applications(applications, broker.address, rng))
        await broker.start()
        async with WireClient(broker.address) as wire:
            await load.prepare(wire)
            await load.feed(wire)
        load.start()
        try:
            for _ in range(kills):
                await load.wait_for_commits(rng.randint(1, 4 * len(load.applications)))
                await asyncio.wait(load.tasks, timeout=rng.uniform(0, 0.05))
                broker.kill()
                await broker.start(rng)
                async with WireClient(broker.address) as wire:
                    await load.feed(wire)
            await load.wait_for_end()
        finally:
            for task in load.tasks:
                task.cancel()
            for application in load.applications:
                application.finish()
        async with WireClient(broker.address) as wire:
            await load.check(wire)
        broker.check_log()
        for application in load.applications:
            print(
                f"{application.name}: {sum(application.input_ends.values())} records, {application.commits} commits, "
                f"{application.aborts} aborts, {application.restarts} starts"
            )
        print(f"{broker.kills} kills, {time.monotonic() - started_s:.1f} s")


def make_applications(kinds: str, address: str, rng: random.Random) -> list[Application]:
    """Return the applications of one run."""
    if kinds == "wire":
        return [
            WireApplication(address, "tv1", rng, is_tv2=False),
            WireApplication(address, "tv2-a", rng, is_tv2=True),
            WireApplication(address, "tv2-b", rng, is_tv2=True),
        ]
    return [
        ConfluentApplication(address, "classic", rng, members=2),
        ConfluentApplication(address, "consumer", rng, members=2, protocol="consumer"),
        WireApplication(address, "tv2", rng, is_tv2=True),
    ]


@pytest.mark.parametrize(
    ("kinds", "kills"),
    [
        ("wire", 3),
        pytest.param("wire", 30, marks=pytest.mark.long),
        pytest.param("clients", 30, marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
async def test_each_input_is_processed_once(tmp_path: Path, kinds: str, kills: int) -> None:
    """After any number of kills: each input is in the output once, offsets are at the end, nothing stays open."""
    seed = int(os.environ.get("DIAMANT_SIGKILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"DIAMANT_SIGKILL_SEED={seed}")
    await run(tmp_path, kinds, kills, random.Random(seed))
