"""Clients that produce, alone and in transactions, and commit offsets. They take one step at a time, so a seed repeats it.

A step raises ConnectionError if the broker is gone and Refused if it answered an error after which clients try again; nothing is
known then but what was answered before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.offsets.offset_requests import OFFSET_FETCH, commit
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import (
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    WireClient,
    fetch_fields,
    produce_fields,
)
from tests.torture.history import Finding, History, Offsets, Partition, Transaction

PRODUCE_VERSION, TRANSACTION_VERSION, END_VERSION = 9, 12, 5
RETRIABLE = frozenset(
    {
        "KAFKA_STORAGE_ERROR", "NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "REQUEST_TIMED_OUT", "CONCURRENT_TRANSACTIONS",
        "UNKNOWN_TOPIC_OR_PARTITION", "NOT_ENOUGH_REPLICAS", "UNSTABLE_OFFSET_COMMIT",
    }
)  # fmt: skip
FORBIDDEN = "forbidden"
PADDED = 10_000
"""Records that are to be large are not compressed."""
TWICE = 0.1
"""How often a batch is sent again although it was answered."""
TRIES = 300
POLL_S = 0.02
Answer = TypeVar("Answer")


TIMED_OUT = frozenset({"INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE", "TRANSACTION_ABORTABLE"})
"""Errors of a transaction that the broker has aborted, as its clock was moved."""


class Refused(Exception):
    """An error after which clients try again."""


def expect(code: Any, what: str, may_also: frozenset[str] = frozenset()) -> None:
    """Refused, or Finding if no client could go on after this error."""
    name = ErrorCode(int(code)).name
    if name == "NONE":
        return
    raise Refused(f"{what}: {name}") if name in RETRIABLE | may_also else Finding(f"{what}: {name}")


class Clock:
    """The time by which clients stamp their records: the system's, and what the broker's clock was moved by."""

    ahead_ms = 0

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class IdempotentProducer:
    """One producer of one partition, with one batch in flight, sent until it is acknowledged, or said not to be stored."""

    def __init__(self, history: History, partition: Partition, name: str, *, keys: int, pad: int = 400) -> None:
        self.partition = partition
        self.keys = keys
        self.history = history
        self._pad = pad
        self._name = name
        self._id = -1
        self._sequence = 0
        self._serial = 0
        self._pending: list[tuple[bytes | None, bytes]] = []
        self._codec = 0
        self._is_sent = False
        """True if the batch may be in the log."""
        self._retired: set[bytes] = set()

    @property
    def is_pending(self) -> bool:
        """True if a batch was sent and not acknowledged."""
        return bool(self._pending)

    def live_keys(self) -> list[bytes]:
        """Return the keys that it sends."""
        keys = [b"%s-key-%03d." % (self._name.encode(), number) for number in range(self.keys)]
        return [key for key in keys if key not in self._retired]

    def retire(self, key: bytes) -> None:
        """Never send a key again."""
        self._retired.add(key)

    async def send(self, wire: WireClient, rng: random.Random, clock: Clock) -> None:
        """Send a batch, or the last one again."""
        if self._id < 0:
            answer = await wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout_ms": 1000})
            expect(answer.error_code, "InitProducerId")
            self._id = int(answer.producer_id)
        if not self._pending:
            self._codec = rng.choice((0, 0, 1, 2, 3, 4)) if self._pad < PADDED else 0
            self._pending, self._is_sent = [self._next(rng) for _ in range(rng.randint(1, 12))], False
            for key, value in self._pending:
                self.history.send(self.partition, self._name, key, value)
        await self.finish(wire, clock, twice=self._pad < PADDED and rng.random() < TWICE)

    async def finish(self, wire: WireClient, clock: Clock, *, twice: bool = False) -> None:
        """Have what was sent acknowledged; `twice`: as if the first answer had been lost."""
        if not self._pending:
            return
        rows = [Record(index, clock.now_ms, key, value) for index, (key, value) in enumerate(self._pending)]
        batch = build_batch(
            rows, base_offset=0, codec=self._codec, producer_id=self._id, producer_epoch=0, base_sequence=self._sequence
        )
        offsets = set()
        for _ in range(1 + twice):
            was_sent, self._is_sent = self._is_sent, True
            answer = await wire.call(PRODUCE, PRODUCE_VERSION, produce_fields(*self.partition, bytes(batch)))
            result = answer.responses[0].partition_responses[0]
            if result.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not was_sent:
                for _, value in self._pending:  # never to be seen; others take their place in the sequence
                    del self.history.sent[self.partition][value]
                self._pending = []
            expect(result.error_code, f"Produce to {self.partition}")
            self.history.acknowledge(self.partition, [value for _, value in self._pending], result.base_offset)
            offsets.add(result.base_offset)
        if len(offsets) > 1:
            raise Finding(f"{self.partition}: a batch that was sent twice is at {offsets}")
        self._sequence += len(self._pending)
        self._pending = []

    def _next(self, rng: random.Random) -> tuple[bytes | None, bytes]:
        self._serial += 1
        key = rng.choice(self.live_keys()) if self.keys else None
        value = b'{"id":"%s-%d-%016x","pad":"' % (self._name.encode(), self._serial, rng.getrandbits(64))
        return key, value + b"x" * rng.randrange(self._pad) + b'"}'


class Transactions:
    """A transactional producer that writes to some partitions, and commits the offset of its group in the same transaction."""

    def __init__(self, history: History, name: str, topic: str, partitions: Sequence[int]) -> None:
        self._history = history
        self._name = name
        self._topic = topic
        self._partitions = partitions
        self._serial = 0
        self._position = 0
        self._txn: TxnProducer | None = None

    @property
    def group(self) -> str:
        return f"group-of-{self._name}"

    def owns(self, transaction: Transaction) -> bool:
        """True for its own."""
        return transaction.producer == self._name

    def forget(self) -> None:
        """The connection is gone: the next step begins with InitProducerId, which ends what was begun."""
        self._txn = None

    async def run(self, wire: WireClient, rng: random.Random) -> None:
        """Run a whole transaction."""
        txn = await self.begin(wire)
        now = Transaction(self._name)
        self._history.transactions.append(now)
        self._txn = None  # until it has ended well
        commits = rng.random() < 0.7
        for index in rng.sample(self._partitions, rng.randint(1, len(self._partitions))):
            values = tuple(self._next(rng) for _ in range(rng.randint(1, 5)))
            now.values[self._topic, index] = list(values)
            for value in values:
                self._history.send((self._topic, index), self._name, None, value)
            result = await txn.produce_result(
                self._topic, 0, partition=index, values=values, version=TRANSACTION_VERSION
            )
            expect(result.error_code, "Produce in a transaction", TIMED_OUT)
            self._history.acknowledge((self._topic, index), list(values), result.base_offset)
        if rng.random() < 0.5:
            self._position += 1
            now.offset = self._position
            expect(
                ErrorCode[await txn.commit_offset(self.group, self._topic, self._position, version=5)],
                "TxnOffsetCommit",
                TIMED_OUT,
            )
        now.wants_commit = commits
        expect(ErrorCode[await txn.end(commit=commits, version=END_VERSION)], "EndTxn", TIMED_OUT)
        now.is_answered = True
        self._txn = txn

    async def begin(self, wire: WireClient) -> TxnProducer:
        """Initialize, which completes or aborts what this producer has begun before."""
        if self._txn is not None and self._txn.wire is wire:
            return self._txn
        txn = TxnProducer(wire, self._name)
        for kind, key in ((1, self._name), (0, self.group)):
            await find(wire, key, kind)
        expect(ErrorCode[await txn.init()], "InitProducerId")
        self._txn = txn
        return txn

    def _next(self, rng: random.Random) -> bytes:
        self._serial += 1
        return b"%s-%d-%016x" % (self._name.encode(), self._serial, rng.getrandbits(64)) + b"y" * rng.randrange(200)


async def find(wire: WireClient, key: str, kind: int) -> None:
    """Find a coordinator; the first time its topic is created, and clients try again."""
    answer = await wire.call(FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
    expect(answer.coordinators[0].error_code, "FindCoordinator")


async def commit_offset(wire: WireClient, history: History, group: str, topic: str) -> None:
    """Commit an offset of a group without members, one more than any before."""
    state = history.offsets.setdefault((group, topic), Offsets())
    offset = max([state.answered, *state.asked]) + 1
    state.asked.add(offset)
    await find(wire, group, 0)
    (code,) = await commit(wire, group, {(topic, 0): offset}, version=8)
    expect(code, "OffsetCommit")
    state.answered = offset
    state.asked.clear()


async def trespass(wire: WireClient) -> None:
    """Ask for what an ACL denies."""
    batch = build_batch([Record(0, 0, None, b"forbidden")], base_offset=0)
    produced = await wire.call(PRODUCE, PRODUCE_VERSION, produce_fields(FORBIDDEN, 0, bytes(batch)))
    fetched = await wire.call(FETCH, 12, fetch_fields(FORBIDDEN, 0))
    codes = [
        produced.responses[0].partition_responses[0].error_code,
        fetched.responses[0].partitions[0].error_code,
        *await commit(wire, FORBIDDEN, {("events-0", 0): 1}, version=8),
    ]
    names = [ErrorCode(int(code)).name for code in codes]
    if names != ["TOPIC_AUTHORIZATION_FAILED"] * 2 + ["GROUP_AUTHORIZATION_FAILED"]:
        raise Finding(f"what an ACL denies was answered {names}")


async def read_offset(wire: WireClient, group: str, topic: str) -> int:
    """Read a group's offset; Refused while a transaction may still change it."""
    names = [{"name": topic, "partition_indexes": [0]}]
    await find(wire, group, 0)
    request = {"groups": [{"group_id": group, "topics": names}], "require_stable": True}
    answer = (await wire.call(OFFSET_FETCH, 8, request)).groups[0]
    expect(answer.error_code or answer.topics[0].partitions[0].error_code, "OffsetFetch")
    return int(answer.topics[0].partitions[0].committed_offset)


async def wait_for(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask again while the answer is an error after which clients try again; Refused after some time."""
    for _ in range(TRIES):
        try:
            return await ask()
        except Refused:
            await asyncio.sleep(POLL_S)
    return await ask()
