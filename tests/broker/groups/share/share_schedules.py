"""Random schedules of two members of a share group, on two brokers; what they were given and answered must be the same.

    python -m tests.broker.groups.share.share_schedules KAFKA:PORT OURS:PORT --seeds 0-199 [--restart COMMAND] [--removals]

A schedule produces, aborts and commits transactions, fetches in both modes, acknowledges rightly and wrongly, lets locks end,
deletes records, and ends sessions. With a command that starts both brokers again, and returns when they listen, all schedules
stop for it in their midst. With removals, retention by time removes records under the members of every other seed; the others
have a compacted topic, cleaned twice while no record is in flight, and accepted then: of one in flight that compaction removes,
Kafka gives the offset again, and Diamant does not. Both brokers need `log.retention.check.interval.ms=500`,
`log.initial.task.delay.ms=500` and `log.cleaner.backoff.ms=200` then, Diamant also `diamant.cleaner.mode=kafka`.

It prints the first difference of each schedule, and how many schedules differ. A schedule that was so slow that locks may have
ended within other steps says nothing, and is counted as such. Where the log's start passes all that is in flight, Kafka 4.3.1
fails when the locks end (KafkaSharePartition.java), and remembers those records: a difference after that is counted as its fault.
Without the network, share_traces.py plays thousands in a minute.

Records are deleted up to a batch: of one that is cut, Kafka 4.3.1 gives records below the log's start, or none any more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from enum import Enum
from typing import Any
from uuid import uuid4

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.share.share_cases import FIRST, SECOND
from tests.broker.groups.share.share_requests import (
    ACCEPT,
    ShareMemberClient,
    acquired_of,
    configure,
    wait_for_coordinator,
)
from tests.broker.request_fields import SET, alteration, list_offsets
from tests.broker.transactions.txn_wire import started
from tests.broker.wire import (
    DELETE_RECORDS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    WireClient,
    fetch_fields,
    produce_fields,
)

STEPS = 25
WAIT_MS = 150
TRIES = 8
"""Kafka's first fetch after DeleteRecords, or of aborted records alone, returns nothing."""
TRIES_AFTER_RESTART = 40
AT_ONCE = 8
SETTLE_S = 1.0
"""Kafka writes markers, and releases the records of a closed session, a moment after its answer."""
LOCK_S = 30
WAITS = (9, 18)
"""The steps at which all locks end."""
RESTARTS = (5, 14, 22)
"""The steps at which the brokers start again, if they do."""
LATEST_START_S = 30
HOUR_MS = 3_600_000
HOURS = 100
"""The hours before now at which a schedule with removals begins to produce; each roll is one later."""
SEGMENT_MS = str(HOUR_MS // 2)
RETENTION_S = 3
"""Several intervals in which both brokers look for segments to delete."""
LATEST_CLEAN_S = 30
KEYS = 5
TOPIC_RESOURCE = 2
EARLIEST = -2
BATCH_OPTIMIZED = 0
"""The other mode leaves the rest of a batch in flight."""
SHARE_OF_REMOVALS = 0.12
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_ms": SEGMENT_MS}
AGED = {"retention_ms": "-1", "segment_ms": SEGMENT_MS}


class Removal(Enum):
    """What removes records of a schedule, besides DeleteRecords."""

    RETENTION = 0
    COMPACTION = 1


class Verdict(Enum):
    """What a schedule says of both brokers; FAULT: they differ after what is one of Kafka."""

    SAME = "the same"
    DIFFERENT = "different"
    FAULT = "different after a fault of Kafka"
    SLOW = "too slow to tell"


class Restarts:
    """The restarts of both brokers, for which all schedules in progress wait: `count` of them on each broker."""

    def __init__(self, command: str | None, count: int) -> None:
        self.command = command
        self._all = asyncio.Barrier(2 * count)

    async def join(self) -> None:
        """Wait for all, and let one of them start the brokers."""
        if await self._all.wait() == 0 and self.command is not None:
            process = await asyncio.create_subprocess_shell(self.command)
            assert await process.wait() == 0, "the brokers could not be started again"
        await self._all.wait()

    async def abort(self) -> None:
        """End the waits of all."""
        await self._all.abort()


class Stage:
    """A schedule's topic, group and members on one broker."""

    def __init__(self, address: str, restarts: Restarts) -> None:
        self.first, self.second = WireClient(address), WireClient(address)
        self._restarts = restarts
        self._without_locks_at = time.monotonic()
        self.is_slow = False
        self.group_id = self.topic = f"s{uuid4().hex[:10]}"
        self.members: list[ShareMemberClient] = []
        self.answers: list[Any] = []
        self.passed_at: int | None = None
        """The step at which the log's start passed all that was given."""
        self._given_end = 0
        self._hour: int | None = None
        self._key_count = 0

    async def prepare(self, *, is_committed: bool, removal: Removal | None) -> None:
        """Create the topic, and let both members join."""
        configs = {None: {}, Removal.RETENTION: AGED, Removal.COMPACTION: COMPACTED}[removal]
        await self.first.create(self.topic, **configs)
        if removal is not None:
            self._hour = int(time.time()) * 1_000 - HOURS * HOUR_MS
        self._has_keys = removal is Removal.COMPACTION
        await wait_for_coordinator(self.first, self.group_id)
        isolation = {"share_isolation_level": "read_committed"} if is_committed else {}
        lock = {"share_record_lock_duration_ms": str(1_000 * LOCK_S)}
        await configure(self.first, self.group_id, share_auto_offset_reset="earliest", **isolation, **lock)
        described = await self.first.call(METADATA, 12, {"topics": [{"name": self.topic}]})
        topic_id = described.topics[0].topic_id
        for wire, member_id in ((self.first, FIRST), (self.second, SECOND)):
            member = ShareMemberClient(wire, self.group_id, self.topic, topic_id, member_id)
            await member.wait_until_assigned()
            await member.fetch(wait_ms=0)
            self.members.append(member)

    async def step(self, name: str, *fields: Any) -> None:
        """Do one step, and note its answer."""
        answer = await getattr(self, f"_{name}")(*fields)
        start = {"retain": lambda: answer[0], "delete": lambda: fields[0]}.get(name, int)()
        if self.passed_at is None and 0 < self._given_end <= start:
            self.passed_at = len(self.answers)
        self.answers.append([name, *fields, answer])
        if name in ("wait_for_locks", "restart"):
            self._without_locks_at = time.monotonic()
        self.is_slow |= time.monotonic() - self._without_locks_at > LOCK_S

    async def _produce(self, count: int) -> Any:
        # Without removals, retention must not remove any amid a schedule.
        now_ms = time.time_ns() // 1_000_000 if self._hour is None else self._hour
        batch = build_batch([Record(offset, now_ms, self._key(), b"v") for offset in range(count)], base_offset=0)
        answer = await self.first.call(PRODUCE, 12, produce_fields(self.topic, 0, bytes(batch)))
        return int(answer.responses[0].partition_responses[0].error_code)

    def _key(self) -> bytes | None:
        if not self._has_keys:
            return None
        self._key_count += 1
        return b"%d" % (self._key_count * self._key_count % KEYS)

    async def _retain(self, hours: int) -> Any:
        """Let the records before the last hours expire, then go on an hour later."""
        assert self._hour is not None
        keeps_from = self._hour - hours * HOUR_MS + HOUR_MS // 2
        for value in (str(time.time_ns() // 1_000_000 - keeps_from), "-1"):
            change = alteration(TOPIC_RESOURCE, self.topic, ("retention.ms", SET, value))
            answer = await self.first.call(INCREMENTAL_ALTER_CONFIGS, 1, change)
            assert int(answer.responses[0].error_code) == 0
            await self._wait_for_retention()
        self._hour += HOUR_MS
        answer = await self.first.call(LIST_OFFSETS, 6, list_offsets(self.topic, timestamp=EARLIEST))
        return [answer.topics[0].partitions[0].offset, await self._fetch(0, 1, 1)]

    async def _take(self, member: int, max_records: int, mode: int) -> Any:
        """Accept all that one fetch gives."""
        answer = await self._fetch(member, max_records, mode)
        acks = [(first, last, [ACCEPT]) for _, _, ranges in answer[1] for first, last, _ in ranges]
        return [answer, await self._acknowledge(member, acks)] if acks else None

    async def _drain(self) -> Any:
        """Accept all that there is, so that nothing is in flight."""
        found = []
        while (taken := await self._take(0, 100, 0)) is not None:
            found.append(taken)
        return found

    async def _compact(self, counts: list[int]) -> Any:
        """Produce batches, and wait until all but the last one are compacted; return the offsets that are left."""
        assert self._hour is not None
        for count in counts:
            await self._produce(count)
        self._hour += HOUR_MS
        await self._produce(1)
        return await self._wait_until_compacted()

    async def _wait_until_compacted(self) -> list[int]:
        async with asyncio.timeout(LATEST_CLEAN_S):
            while True:
                found = await self._records()
                if len({key for _, key in found[:-1]}) == len(found) - 1:
                    return [offset for offset, _ in found]
                await asyncio.sleep(WAIT_MS / 1_000)

    async def _records(self) -> list[tuple[int, bytes]]:
        """Return offset and key of all records of the log."""
        found: list[tuple[int, bytes]] = []
        offset = 0
        while True:
            answer = await self.first.call(FETCH, 12, fetch_fields(self.topic, offset))
            data = answer.responses[0].partitions[0].records or b""
            for at, header in iter_headers(data):
                found += [(one.offset, bytes(one.key or b"")) for one in iter_records(data, at) if one.offset >= offset]
                offset = header.last_offset + 1
            if not data:
                return found

    async def _transaction(self, count: int, commit: bool) -> Any:
        txn = await started(self.first, topic=self.topic, transactional_id=self.topic)
        for sequence in range(count):
            answer = await txn.produce(self.topic, sequence, version=12)
            assert answer == "NONE", answer
        ended = await txn.end(commit=commit, version=5)
        await self._wait_to_settle()
        return ended

    async def _fetch(self, member: int, max_records: int, mode: int, tries: int = TRIES) -> Any:
        for _ in range(tries):
            answer = await self.members[member].fetch(
                adds=False, max_records=max_records, batch_size=max_records, share_acquire_mode=mode, wait_ms=WAIT_MS
            )
            found = [self._partition(one) for topic in answer.responses for one in topic.partitions]
            if found and found[0][0] != ErrorCode.NOT_LEADER_OR_FOLLOWER:  # as Kafka soon after a start
                break
        return [int(answer.error_code), found]

    def _partition(self, one: Any) -> Any:
        ranges = acquired_of(one)
        self._given_end = max([self._given_end, *(last + 1 for _, last, _ in ranges)])
        if self._restarts.command is not None:
            ranges = joined(ranges)
        return [int(one.error_code), int(getattr(one, "acknowledge_error_code", 0)), ranges]

    async def _acknowledge(self, member: int, acks: Any) -> Any:
        one = self.members[member]
        answer = await one.acknowledge(acks)
        if int(answer.error_code) == ErrorCode.UNKNOWN_SERVER_ERROR:
            # Kafka 4.3.1 fails if nothing is in flight and the records are behind the window.
            one.session_epoch += 1
            return [0, [int(ErrorCode.INVALID_RECORD_STATE)]]
        codes = [int(one.error_code) for topic in answer.responses for one in topic.partitions]
        return [int(answer.error_code), codes]

    async def _delete(self, offset: int) -> Any:
        topics = [{"name": self.topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
        answer = await self.first.call(DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 5000})
        return [int(answer.topics[0].partitions[0].error_code), await self._fetch(0, 1, 1)]

    async def _close(self, member: int) -> Any:
        one = self.members[member]
        answer = await one.acknowledge([], -1)
        one.session_epoch = 0
        await self._wait_to_settle()
        opened = await one.fetch(0, max_records=0, wait_ms=0)
        return [int(answer.error_code), int(opened.error_code)]

    async def _wait_for_locks(self) -> Any:
        await asyncio.sleep(LOCK_S + 4 * SETTLE_S)

    async def _restart(self) -> Any:
        for wire in (self.first, self.second):
            await wire.__aexit__(None, None, None)
        await self._restarts.join()
        for wire in (self.first, self.second):
            await wire.__aenter__()
        await wait_for_coordinator(self.first, self.group_id)
        for member in self.members:
            await self._wait_to_begin_again(member)
        return await self._fetch(0, 1, 1, TRIES_AFTER_RESTART)

    @staticmethod
    async def _wait_to_begin_again(member: ShareMemberClient) -> None:
        """Open a session as soon as the broker has loaded the partition's state; the group need not know the member."""
        async with asyncio.timeout(LATEST_START_S):
            while True:
                opened = await member.fetch(0, max_records=0, wait_ms=0)
                codes = [int(one.error_code) for topic in opened.responses for one in topic.partitions]
                if not any([int(opened.error_code), *codes]):
                    return
                await asyncio.sleep(WAIT_MS / 1_000)

    async def _wait_for_retention(self) -> None:
        await asyncio.sleep(RETENTION_S)

    async def _wait_to_settle(self) -> None:
        await asyncio.sleep(SETTLE_S)


def joined(ranges: list[list[int]]) -> list[list[int]]:
    """Return acquired ranges, adjacent ones of one count as one: Kafka's state topic may name a range in two after a start.

    Its PersisterStateBatchCombiner overlooks the neighbours of what it has just merged. Of a range on a late delivery a part is
    given, so that after a start the numbers may differ, too: [0, 6] and [7, 8] give three records where [0, 8] gives four.
    """
    found: list[list[int]] = []
    for first, last, count in ranges:
        if found and found[-1][1:] == [first - 1, count]:
            found[-1][1] = last
        else:
            found.append([first, last, count])
    return found


def schedule(seed: int, *, has_restarts: bool, removal: Removal | None = None) -> tuple[bool, list[tuple[Any, ...]]]:
    """Return whether the group reads committed records only, and the steps of a seed."""
    rng = random.Random(seed)
    of_removals = random.Random(seed)
    end = 0
    steps: list[tuple[Any, ...]] = []
    bases = [0]
    for number in range(STEPS):
        if number in WAITS:
            steps.append(("wait_for_locks",))
            if removal is Removal.COMPACTION:
                counts = [of_removals.randrange(1, 6) for _ in range(of_removals.randrange(3, 8))]
                takes = [
                    ("take", of_removals.randrange(2), of_removals.choice((1, 3, 10)), BATCH_OPTIMIZED)
                    for _ in range(of_removals.randrange(4))
                ]
                steps += [("drain",), ("compact", counts), *takes, ("drain",)]
                bases.append(end := end + sum(counts) + 1)
        if removal is Removal.RETENTION and number and of_removals.random() < SHARE_OF_REMOVALS:
            steps.append(("retain", of_removals.randrange(3)))
        if has_restarts and number in RESTARTS:
            steps.append(("restart",))
        member, kind = rng.randrange(2), rng.random()
        acks = []
        position = rng.randrange(max(end, 1))
        for _ in range(rng.randrange(1, 4)):
            last = position + rng.randrange(4)
            types = [rng.choice((1, 1, 2, 2, 3, 0)) for _ in range(rng.choice((1, last - position + 1)))]
            acks.append((position, last, types))
            position = last + 1 + rng.randrange(3)
        if kind < 0.2:
            count = rng.randrange(1, 8)
            bases.append(end := end + count)
            steps.append(("produce", count))
        elif kind < 0.28 and removal is not Removal.COMPACTION:
            count = rng.randrange(1, 4)
            bases += [end + count, end + count + 1]
            end = bases[-1]
            steps.append(("transaction", count, rng.random() < 0.5))
        elif kind < 0.6:
            # Kafka gives records before it applies the acknowledgements of the same request.
            steps.append(("fetch", member, rng.choice((1, 3, 10, 100)), rng.randrange(2)))
        elif kind < 0.92:
            steps.append(("acknowledge", member, acks))
        elif kind < 0.96:
            steps.append(("delete", rng.choice(bases)))
        else:
            steps.append(("close", member))
    return rng.random() < 0.5, steps


async def played(address: str, seed: int, restarts: Restarts, removal: Removal | None) -> Stage:
    """Play a schedule on a broker; the stage has its steps with their answers."""
    is_committed, steps = schedule(seed, has_restarts=restarts.command is not None, removal=removal)
    stage = Stage(address, restarts)
    try:
        async with stage.first, stage.second:
            await stage.prepare(is_committed=is_committed, removal=removal)
            for step in steps:
                await stage.step(*step)
    except BaseException:
        await restarts.abort()
        raise
    return stage


async def compared(
    kafka: str, ours: str, seed: int, restarts: Restarts, removal: Removal | None
) -> tuple[str | None, Verdict]:
    """Return the first difference of a seed, None if there is none, and what it says."""
    theirs, own = await asyncio.gather(*(played(one, seed, restarts, removal) for one in (kafka, ours)))
    is_slow = theirs.is_slow or own.is_slow
    for number, (left, right) in enumerate(zip(theirs.answers, own.answers, strict=True)):
        if left != right:
            before = "\n".join(f"    {json.dumps(one)}" for one in theirs.answers[:number])
            difference = (
                f"seed {seed}, step {number}\n{before}\n    Kafka   {json.dumps(left)}\n    Diamant {json.dumps(right)}"
            )
            is_fault = theirs.passed_at is not None and theirs.passed_at < number
            return difference, Verdict.SLOW if is_slow else Verdict.FAULT if is_fault else Verdict.DIFFERENT
    return None, Verdict.SLOW if is_slow else Verdict.SAME


async def main(kafka: str, ours: str, seeds: range, restart: str | None, *, has_removals: bool) -> int:
    """Compare all seeds, some at once; return the number of those that differ."""
    verdicts: Counter[Verdict] = Counter()
    for some in [seeds[at : at + AT_ONCE] for at in range(0, len(seeds), AT_ONCE)]:
        restarts = Restarts(restart, len(some))
        removals = [list(Removal)[seed % 2] if has_removals else None for seed in some]
        playing = (compared(kafka, ours, seed, restarts, one) for seed, one in zip(some, removals, strict=True))
        for found, verdict in await asyncio.gather(*playing):
            verdicts[verdict] += 1
            if found is not None and verdict is not Verdict.SLOW:
                print(f"{verdict.value}: {found}", flush=True)
    print(f"{len(seeds)} schedules: {', '.join(f'{verdicts[one]} {one.value}' for one in Verdict)}")
    return verdicts[Verdict.DIFFERENT]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare random schedules of share groups")
    parser.add_argument("kafka")
    parser.add_argument("ours")
    parser.add_argument("--seeds", default="0-49")
    parser.add_argument("--restart", help="a command that starts both brokers again")
    parser.add_argument("--removals", action="store_true", help="by retention and compaction")
    options = parser.parse_args()
    low, _, high = options.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    sys.exit(
        1
        if asyncio.run(main(options.kafka, options.ours, seeds, options.restart, has_removals=options.removals))
        else 0
    )
