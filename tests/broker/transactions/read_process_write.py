"""Applications that read a topic, write the values to another one, and commit both in one transaction.

Each has its own topics: `in-NAME` and `out-NAME`. After a restart of the broker they continue: a real client retries by
itself; the wire client repeats its request or, like a killed application, starts again from the committed offsets.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from tests.broker.transactions.txn_wire import TxnProducer, name_of, wait_for_committed_offset
from tests.broker.wire import FETCH, PRODUCE, WireClient, fetch_fields, produce_fields

OUTPUT_PARTITIONS = 2
MAX_RECORDS = 8
"""Of one transaction."""
ABORTED_SHARE = 0.15
POLL_S = 0.01
CALL_TIMEOUT_S = 60
NOT_NOW = (
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "CONCURRENT_TRANSACTIONS",
    "NOT_ENOUGH_REPLICAS",
    "UNKNOWN_TOPIC_OR_PARTITION",  # as long as the start has not come so far
)


class Application:
    """The common part. `finish` lets it end once it has read all input."""

    input_partitions = 1

    def __init__(self, address: str, name: str, rng: random.Random) -> None:
        self.address = address
        self.name = name
        self.commits = self.aborts = self.restarts = 0
        self.is_finishing = False
        self.input_ends: dict[int, int] = {}
        self._rng = random.Random(rng.random())

    @property
    def input(self) -> str:
        """The input topic."""
        return f"in-{self.name}"

    @property
    def output(self) -> str:
        """The output topic."""
        return f"out-{self.name}"

    @property
    def group(self) -> str:
        """The group whose offsets are committed."""
        return f"group-{self.name}"

    def finish(self) -> None:
        """End the input."""
        self.is_finishing = True

    def describe(self) -> str:
        """Return the progress, for messages."""
        return f"{self.name}: {self.commits} commits, {self.aborts} aborts, input to {self.input_ends}"

    async def run(self) -> None:
        """Continue until all input is processed."""
        raise NotImplementedError


# -- byte by byte ----------------------------------------------------------------------------------------------------------


class WireApplication(Application):
    """Speaks the protocol itself, like clients of TV1 or TV2."""

    def __init__(self, address: str, name: str, rng: random.Random, *, is_tv2: bool) -> None:
        super().__init__(address, name, rng)
        self._is_tv2 = is_tv2
        self._txn: TxnProducer | None = None
        self._position = 0
        self._last_code = ""
        self._steps: deque[Callable[[], Awaitable[str]]] = deque()
        self._sequences = [0] * OUTPUT_PARTITIONS

    def describe(self) -> str:
        """Return the progress, for messages."""
        return (
            f"{super().describe()}, at {self._position}, {len(self._steps)} steps left, last answer {self._last_code}"
        )

    async def run(self) -> None:
        """Continue until all input is processed, over any number of connections."""
        while True:
            try:
                async with WireClient(self.address) as wire:
                    await self._run(wire)
                return
            except (ConnectionError, asyncio.IncompleteReadError):
                if self._rng.random() < 0.4:
                    self._txn = None  # the application was killed, too
                await wait_a_moment()

    async def _run(self, wire: WireClient) -> None:
        if self._txn is None:
            await self._start(wire)
        else:
            self._txn.wire = wire
        while True:
            while self._steps:
                code = self._last_code = await self._steps[0]()
                if code == "NONE":
                    self._steps.popleft()
                else:
                    assert code in NOT_NOW, f"{self.name}: {code}"
                    await wait_a_moment()
            values = await self._fetch(wire, self._rng.randint(1, MAX_RECORDS))
            if values:
                self._plan(values)
            elif self.is_finishing and self._position == self.input_ends[0]:
                return
            else:
                await wait_a_moment()

    async def _start(self, wire: WireClient) -> None:
        txn = TxnProducer(wire, f"id-{self.name}")
        await txn.wait_for_coordinator(self.group)
        await txn.wait_for_init()
        code, offset = await wait_for_committed_offset(wire, self.group, self.input)
        assert code == "NONE", code
        self._steps.clear()
        self._sequences = [0] * OUTPUT_PARTITIONS
        self._position = max(offset, 0)
        self._txn = txn
        self.restarts += 1

    async def _fetch(self, wire: WireClient, limit: int) -> list[bytes]:
        response = await wire.call(FETCH, 12, fetch_fields(self.input, self._position))
        partition = response.responses[0].partitions[0]
        assert partition.error_code == ErrorCode.NONE, partition
        blob = bytes(partition.records or b"")
        return [
            record.value or b""
            for position, _ in iter_headers(blob)
            for record in iter_records(blob, position)
            if record.offset >= self._position
        ][:limit]

    def _plan(self, values: list[bytes]) -> None:
        """The requests of one transaction."""
        txn = self._txn
        assert txn is not None
        is_commit = self._rng.random() >= ABORTED_SHARE
        offset = self._position + len(values)
        steps = self._steps
        batches = [(partition_of(value), (value,)) for value in values]
        if not self._is_tv2:
            partitions = sorted({(self.output, partition) for partition, _ in batches})

            async def add() -> str:
                return next((code for code in await txn.add(*partitions) if code != "NONE"), "NONE")

            steps.append(add)
        for partition, batch in batches:
            steps.append(self._produce(txn, partition, batch))
        if not self._is_tv2:
            steps.append(lambda: txn.add_offsets(self.group))
        versions = {"commit": 5, "end": 5} if self._is_tv2 else {"commit": 3, "end": 3}
        steps.append(lambda: txn.commit_offset(self.group, self.input, offset, version=versions["commit"]))

        async def end() -> str:
            code = await txn.end(commit=is_commit, version=versions["end"])
            if code == "NONE":
                if self._is_tv2:
                    self._sequences = [0] * OUTPUT_PARTITIONS  # the epoch is a new one
                if is_commit:
                    self._position = offset
                    self.commits += 1
                else:
                    self.aborts += 1
            return code

        steps.append(end)

    def _produce(self, txn: TxnProducer, partition: int, values: tuple[bytes, ...]) -> Callable[[], Awaitable[str]]:
        async def produce() -> str:
            now = time.time_ns() // 1_000_000
            batch = build_batch(
                [Record(delta, now, value, value) for delta, value in enumerate(values)],
                producer_id=txn.producer_id,
                producer_epoch=txn.epoch,
                base_sequence=self._sequences[partition],
                is_transactional=True,
            )
            request = produce_fields(self.output, partition, bytes(batch))
            request["transactional_id"] = txn.transactional_id
            response = await txn.wire.call(PRODUCE, 12 if self._is_tv2 else 9, request)
            code = name_of(response.responses[0].partition_responses[0].error_code)
            if code == "NONE":
                self._sequences[partition] += len(values)
            return code

        return produce


async def wait_a_moment() -> None:
    """Wait before a client retries."""
    await asyncio.sleep(POLL_S)


def partition_of(value: bytes) -> int:
    """Return the output partition of a value."""
    return int(value) % OUTPUT_PARTITIONS


# -- confluent-kafka -------------------------------------------------------------------------------------------------------


class ConfluentApplication(Application):
    """Members of one group (librdkafka), each with a transactional id, in threads of their own."""

    def __init__(self, address: str, name: str, rng: random.Random, *, members: int, protocol: str = "classic") -> None:
        super().__init__(address, name, rng)
        self.input_partitions = members
        self._members = members
        self._protocol = protocol
        self._is_finishing = threading.Event()
        self._is_given_up = threading.Event()
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}

    def finish(self) -> None:
        """End the input."""
        super().finish()
        self._is_finishing.set()

    async def run(self) -> None:
        """Continue until every partition is read to its end."""
        seeds = [self._rng.random() for _ in range(self._members)]
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(self._members)
        members = [
            loop.run_in_executor(pool, self._run, number, random.Random(seed)) for number, seed in enumerate(seeds)
        ]
        try:
            await asyncio.gather(*members)
        finally:
            self._is_given_up.set()
            pool.shutdown(wait=False)

    def _run(self, number: int, rng: random.Random) -> None:
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "group.protocol": self._protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
                **QUICK,
            }
        )
        try:
            consumer.subscribe([self.input])
            producer = None
            while not self._is_done():
                try:
                    if producer is None:
                        producer = self._producer(number)
                        self._rewind(consumer)
                    self._step(producer, consumer, rng)
                except KafkaException as failure:
                    error = failure.args[0]
                    if error.txn_requires_abort():
                        self._again(lambda producer=producer: producer.abort_transaction(CALL_TIMEOUT_S))
                        self._rewind(consumer)
                    elif error.fatal() or not error.retriable():
                        producer = None
        finally:
            consumer.close()

    def _producer(self, number: int) -> Any:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "transactional.id": f"id-{self.name}-{number}",
                "linger.ms": 0,
                "log_level": 0,
                "message.timeout.ms": 60_000,
                "transaction.timeout.ms": 60_000,
                **QUICK,
            }
        )
        self._again(lambda: producer.init_transactions(CALL_TIMEOUT_S))
        with self._lock:
            self.restarts += 1
        return producer

    def _step(self, producer: Any, consumer: Any, rng: random.Random) -> None:
        """Run one transaction if there is input."""
        messages = [each for each in consumer.consume(rng.randint(1, MAX_RECORDS), 0.1) if each.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce(self.output, message.value(), message.value(), partition=partition_of(message.value()))
        offsets = consumer.position(consumer.assignment())
        reached = {each.partition: each.offset for each in offsets if each.offset >= 0}
        metadata = consumer.consumer_group_metadata()
        self._again(lambda: producer.send_offsets_to_transaction(offsets, metadata, CALL_TIMEOUT_S))
        if rng.random() < ABORTED_SHARE:
            self._again(lambda: producer.abort_transaction(CALL_TIMEOUT_S))
            with self._lock:
                self.aborts += 1
            self._rewind(consumer)
            return
        self._again(lambda: producer.commit_transaction(CALL_TIMEOUT_S))
        with self._lock:
            self.commits += 1
            for partition, offset in reached.items():
                self._done[partition] = max(self._done.get(partition, 0), offset)

    def _again(self, call: Callable[[], None]) -> None:
        """Retry a retriable operation until it succeeds."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return call()
            except KafkaException as failure:
                if (
                    not failure.args[0].retriable()
                    or failure.args[0].txn_requires_abort()
                    or self._is_given_up.is_set()
                ):
                    raise

    def _rewind(self, consumer: Any) -> None:
        """Seek to the committed offsets."""
        for place in self._committed(consumer):
            if place.offset < 0:
                place.offset = 0
            consumer.seek(place)

    def _committed(self, consumer: Any) -> list[Any]:
        found: list[Any] = []

        def ask() -> None:
            found[:] = consumer.committed(consumer.assignment(), CALL_TIMEOUT_S)

        self._again(ask)
        return found

    def _is_done(self) -> bool:
        if self._is_given_up.is_set():
            return True
        if not self._is_finishing.is_set():
            return False
        with self._lock:
            return all(self._done.get(partition, 0) >= end for partition, end in self.input_ends.items())


QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 10_000,
    "metadata.recovery.strategy": "none",
}
"""Come back quickly. With the default strategy librdkafka 2.16 goes on asking for a coordinator that it has dropped, against any
broker (docs/reference/compatibility.md), until the transaction has timed out.
"""
