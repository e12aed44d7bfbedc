"""Random schedules of a share partition, played by Kafka's own class and by ours: both must give, answer and remember the same.

    python -m tests.broker.groups.share.share_traces --seeds 0-9999         needs KAFKA_HOME (Apache Kafka 4.3.1) and a JDK
    python -m tests.broker.groups.share.share_traces --seeds 0-399 --write  writes the golden traces

Members fetch in both modes, acknowledge rightly and wrongly, leave; locks end; transactions commit and abort; the log's start
moves; the broker starts again. After each step the answer and the start offset are compared, at the end the state of each
record in flight. A schedule ends where 4.3.1 is at a loss (`isLost` in KafkaSharePartition.java).

The log's start moves to a batch's first offset: of a batch that is cut, 4.3.1 gives records below the start, or none any more.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from diamant.broker.broker import Broker
from diamant.broker.groups.delivery.share_delivery import (
    DELIVERY_COUNT_LIMIT,
    ISOLATION_LEVEL,
    LOCK_DURATION_MS,
    MAX_RECORD_LOCKS,
    MORE_TO_SKIP,
    ShareDelivery,
    WantedRecords,
)
from diamant.broker.groups.delivery.share_sessions import RequestedSession
from diamant.broker.groups.share.acknowledgement import AcknowledgementBatch
from diamant.broker.groups.share.ranges import NO_MEMBER
from diamant.broker.topics.internal_names import SHARE_GROUP_STATE_TOPIC
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import KafkaError
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from tests.broker.groups.share.share_requests import GROUP_RESOURCE, RENEW
from tests.broker.running import running
from tests.builder import make_marker
from tests.memory_env import MemoryEnv

GOLDEN = Path(__file__).parents[3] / "golden" / "groups" / "share_traces_4.3.1.json.gz"
STEPS = 30
PER_BROKER = 100
MEMBERS = "abc"
TRIES = 10
PRODUCER_ID = 5
LIMITS = [(100, 5, 15_000), (200, 2, 15_000), (100, 5, 60_000), (2_000, 10, 15_000)]
"""Records in flight, deliveries, milliseconds of a lock."""


class Schedule(NamedTuple):
    """`limits`: of `LIMITS`; `steps`: words of each, as KafkaSharePartition.java reads them."""

    is_committed: bool
    limits: int
    steps: list[list[str]]

    def line(self) -> str:
        """Return the input of KafkaSharePartition.java."""
        head = " ".join(str(one) for one in ("isolation", int(self.is_committed), *LIMITS[self.limits]))
        return "|".join([head, *(" ".join(step) for step in self.steps)])

    @classmethod
    def parse(cls, line: str) -> Schedule:
        """Return the schedule of a line."""
        (_, is_committed, *limits), *steps = (part.split(" ") for part in line.split("|"))
        return cls(is_committed == "1", LIMITS.index(tuple(map(int, limits))), steps)  # type: ignore[arg-type]


def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = random.Random(seed)
    is_committed = rng.random() < 0.5
    bases, end, start, steps = [0], 0, 0, []
    for _ in range(STEPS):
        member, kind = rng.choice(MEMBERS), rng.random()
        if kind < 0.16:
            steps.append(["produce", str(count := rng.choice((1, 2, 3, 5, 8, 20, 60)))])
            bases.append(end := end + count)
        elif kind < 0.24:
            steps.append(["transaction", str(count := rng.randrange(1, 6)), rng.choice(("commit", "abort"))])
            bases += [end + count, end + count + 1]
            end = bases[-1]
        elif kind < 0.54:
            most, size = rng.choice((1, 2, 3, 7, 10, 100)), rng.choice((1, 3, 10, 100))
            steps.append(["fetch", member, str(most), str(size), str(rng.randrange(2))])
        elif kind < 0.84:
            steps.append(["acknowledge", member, *_acknowledgements(rng, start, end)])
        elif kind < 0.92:
            steps.append(["wait", str(rng.choice((5_000, 15_000, 60_000)))])
        elif kind < 0.95:
            steps.append(["close", member])
        elif kind < 0.98:
            start = max(start, rng.choice(bases))
            steps.append(["delete", str(start)])
        elif not is_committed:
            steps.append(["restart"])
    return Schedule(is_committed, rng.randrange(len(LIMITS)), steps)


def _acknowledgements(rng: random.Random, start: int, end: int) -> Iterator[str]:
    position = rng.randrange(max(end + 1 - start, 1)) + max(start - 3, 0)
    if rng.random() < 0.1:
        yield f"{position}:{position}:{RENEW}"  # Kafka keeps what it has renewed in a request that it refuses
        return
    for _ in range(rng.randrange(1, 4)):
        last = position + rng.choice((0, 0, 1, 2, 4, 9))
        types = [rng.choice("1112230") for _ in range(rng.choice((1, last - position + 1)))]
        yield f"{position}:{last}:{','.join(types)}"
        position = last + 1 + rng.randrange(3)


class Stage:
    """A schedule's share partition: a group with the limits, and a partition of the topic `t`."""

    def __init__(self, broker: Broker, clock: SettableClock, number: int, one: Schedule) -> None:
        self._clock, self._node = clock, broker.node
        self._delivery: ShareDelivery = broker.services.groups().share.delivery
        topic = broker.node.topics.by_name["t"]
        self._key = SharePartitionKey(f"g{one.limits}{one.is_committed}", topic.topic_id, number)
        self._log: Log = topic.logs[number]
        self._delivery.state.initialize(self._key, 1, 0)
        in_flight, deliveries, lock_ms = LIMITS[one.limits]
        broker.node.topics.image.configs[GROUP_RESOURCE, self._key.group_id] = {
            MAX_RECORD_LOCKS: str(in_flight),
            DELIVERY_COUNT_LIMIT: str(deliveries),
            LOCK_DURATION_MS: str(lock_ms),
            ISOLATION_LEVEL: "read_committed" if one.is_committed else "read_uncommitted",
        }
        for member in MEMBERS:
            self._open(member)

    def _open(self, member: str) -> None:
        asked = RequestedSession(self._key.group_id, member, 0, member, 1)
        places = [(self._key.topic_id, self._key.partition)]
        self._delivery.sessions.for_fetch(asked, places, (), has_acknowledgements=False, limit=1_000)

    def first_open(self) -> int:
        """Where the window begins once the next write has moved its start: aborted records do not."""
        state = self._delivery.find(self._key).state
        offset = state.start_offset
        for run in state.runs():
            if run.first <= offset <= run.last and run.state.is_terminal:
                offset = run.last + 1
        return offset

    async def step(self, name: str, *words: str) -> str:
        """Do one step; return its answer."""
        if name == "fetch":
            return self._fetch(*words)
        if name == "acknowledge":
            return self._acknowledge(*words)
        if name == "produce":
            self._append(int(words[0]))
        elif name == "transaction":
            self._append(
                int(words[0]), producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0, is_transactional=True
            )
            self._log.append_internal(make_marker(PRODUCER_ID, is_commit=words[1] == "commit", timestamp=0))
        elif name == "wait":
            self._clock.advance_ms(int(words[0]))
            await self._node.scheduler.settled()
        elif name == "close":
            self._delivery.end_session((self._key.group_id, words[0], 1))
            self._open(words[0])
            return "0"
        elif name == "delete":
            self._log.delete_records(int(words[0]))
        else:
            self._delivery.state.use(self._node.topics.by_name[SHARE_GROUP_STATE_TOPIC])
            await self._delivery.state.loaded()
        return "-"

    def _append(self, count: int, **producer: int) -> None:
        records = [Record(offset, 0, None, b"v") for offset in range(count)]
        self._log.append_internal(build_batch(records, base_offset=0, **producer))

    def _fetch(self, member: str, most: str, size: str, mode: str) -> str:
        wanted = WantedRecords(member, int(most), 1 << 20, int(size), mode == "1")
        given = MORE_TO_SKIP
        for _ in range(TRIES):
            if given is MORE_TO_SKIP:
                given = self._delivery.give(self._delivery.find(self._key), wanted)
        if given is MORE_TO_SKIP:
            return "skips without end"
        return ",".join(f"{first}-{last}x{count}" for first, last, count in given.acquired)

    def _acknowledge(self, member: str, *texts: str) -> str:
        batches = []
        for first, last, types in (text.split(":") for text in texts):
            batches.append(AcknowledgementBatch(int(first), int(last), [int(kind) for kind in types.split(",")]))
        try:
            self._delivery.find(self._key)
            self._delivery.acknowledge(self._key, member, batches)
        except KafkaError as error:
            return str(int(error.code))
        return "0"

    def dump(self) -> str:
        """State, deliveries and member of each record in flight."""
        state, start = self._delivery.find(self._key).state, self.first_open()
        return " ".join(
            f"{offset}:{int(run.state)}:{run.delivery_count}:{NO_MEMBER if run.state != 1 else run.member_id}"
            for run in state.runs()
            for offset in range(max(run.first, start), run.last + 1)
        )


async def ours(schedules: Sequence[Schedule]) -> list[str]:
    """Our answers to schedules, in the form of KafkaSharePartition.java."""
    found = []
    for at in range(0, len(schedules), PER_BROKER):
        clock = SettableClock(0)
        setting = {"share_coordinator_state_topic_num_partitions": 1}
        async with running(MemoryEnv(clock), **setting) as (broker, wire):
            await wire.create("t", min(PER_BROKER, len(schedules)))
            await broker.services.groups().share.delivery.state.topic.ensure()
            for number, one in enumerate(schedules[at : at + PER_BROKER]):
                found.append(await _played(Stage(broker, clock, number, one), one))
    return found


async def _played(stage: Stage, one: Schedule) -> str:
    answers = [f"{await stage.step(*step)} {stage.first_open()}" for step in one.steps]
    return "|".join([*answers, stage.dump()])


def kafkas(schedules: Sequence[Schedule]) -> list[str]:
    """Return the answers of Kafka's class. Needs KAFKA_HOME and a JDK."""
    class_path = f"{os.environ['KAFKA_HOME']}/libs/*"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(__file__).with_name("KafkaSharePartition.java")
        subprocess.run(["javac", "-nowarn", "-cp", class_path, "-d", directory, source], check=True)
        lines = "".join(f"{one.line()}\n" for one in schedules)
        command = [
            "java",
            "-Dlog4j2.level=OFF",
            "-cp",
            f"{directory}:{class_path}",
            "kafka.server.share.KafkaSharePartition",
        ]
        played = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return played.stdout.splitlines()


def difference(one: Schedule, kafka: str, own: str) -> str | None:
    """The first step whose answers differ, after all before it; None if there is none."""
    for number, (left, right) in enumerate(zip(kafka.split("|"), own.split("|"), strict=False)):
        if left != right:
            steps = [*one.steps, ["the records in flight"]]
            before = [
                f"    {' '.join(step)} -> {answer}"
                for step, answer in zip(steps[:number], kafka.split("|"), strict=False)
            ]
            return "\n".join([*before, f"    {' '.join(steps[number])}", f"    Kafka   {left}", f"    Diamant {right}"])
    return None


def main() -> int:
    """Compare the seeds, or write their answers by Kafka."""
    parser = argparse.ArgumentParser(description="Compare random schedules of share partitions with Kafka's class")
    parser.add_argument("--seeds", default="0-999")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    low, _, high = options.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    schedules = [schedule(seed) for seed in seeds]
    theirs = kafkas(schedules)
    if options.write:
        data = json.dumps([[one.line(), answers] for one, answers in zip(schedules, theirs, strict=True)])
        GOLDEN.write_bytes(gzip.compress(data.encode(), mtime=0))
        return 0
    different = 0
    for seed, one, kafka, own in zip(seeds, schedules, theirs, asyncio.run(ours(schedules)), strict=True):
        found = difference(one, kafka, own)
        different += found is not None
        if found is not None:
            print(f"seed {seed}: {one.line().partition('|')[0]}\n{found}", flush=True)
    print(f"{len(seeds)} schedules, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
