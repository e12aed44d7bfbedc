"""Acknowledged records survive SIGKILL: a broker process under load is killed, restarted and read.

The kernel keeps the writes of a killed process, so no sync is needed, unlike for a power cut.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import ErrorCode
from tests.broker.broker_process import BrokerProcess, broker_process
from tests.broker.wire import FETCH, INIT_PRODUCER_ID, PRODUCE, WireClient, batch_of, fetch_fields, produce_fields

SEGMENT_BYTES = 8192
PRODUCE_VERSION = 9
LOAD_TIMEOUT_S = 60


class Batch(NamedTuple):
    """A batch that was sent."""

    values: list[bytes]
    first_index: int  # of its first value among all values of the topic: its base offset, and its base sequence


class Load:
    """One producer with its own topic; remembers the sent and the acknowledged batches.

    An idempotent one resends unacknowledged batches with their sequences, so that everything must be stored once. A plain
    one does not: its last batches may be missing.
    """

    def __init__(self, topic: str, rng: random.Random, *, max_in_flight: int, is_idempotent: bool) -> None:
        self.topic = topic
        self.is_idempotent = is_idempotent
        self.acknowledged_batches = 0
        self.acknowledged = 0  # values
        self.values: list[bytes] = []  # stored, or on their way
        self.in_flight: deque[Batch] = deque()
        self._rng = rng
        self._max_in_flight = max_in_flight
        self._producer: dict[str, Any] = {}
        self._serial = 0
        self._expected: deque[int] = deque()  # correlation ids

    async def prepare(self, client: WireClient, **configs: str) -> None:
        """Create the topic and get a producer id."""
        created = await client.create(self.topic, retention_ms="-1", **configs)
        assert created.error_code == ErrorCode.NONE, created
        if self.is_idempotent:
            answer = await client.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout_ms": 1000})
            self._producer = {"producer_id": int(answer.producer_id), "producer_epoch": 0}

    async def run(self, address: str) -> None:
        """Produce until the connection breaks."""
        try:
            async with WireClient(address) as client:
                while True:
                    while len(self.in_flight) < self._max_in_flight:
                        batch = self._next_batch()
                        self.in_flight.append(batch)
                        self._send(client, batch)
                    await self._take_answer(client)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # killed
        finally:
            self._expected.clear()

    async def send_again(self, client: WireClient) -> None:
        """Resend unacknowledged batches; each gets the offset that it had or would have had."""
        assert self.is_idempotent
        for batch in self.in_flight:
            self._send(client, batch)
        while self.in_flight:
            await self._take_answer(client)

    def check(self, stored: list[bytes]) -> None:
        """Check that the stored records are the sent ones, in order, once, with all acknowledged ones."""
        assert len(stored) >= self.acknowledged, f"{self.topic}: acknowledged records are missing"
        assert stored == self.values[: len(stored)], self.topic
        if self.is_idempotent:
            assert len(stored) == len(self.values), self.topic
        else:
            self.values = stored
            self.acknowledged = len(stored)
            self.in_flight.clear()

    def _next_batch(self) -> Batch:
        values = []
        for _ in range(self._rng.randint(1, 20)):
            self._serial += 1
            values.append(b"%s-%d-" % (self.topic.encode(), self._serial) + b"x" * self._rng.randrange(200))
        batch = Batch(values, len(self.values))
        self.values += values
        return batch

    def _send(self, client: WireClient, batch: Batch) -> None:
        producer = {**self._producer, "base_sequence": batch.first_index} if self.is_idempotent else {}
        records = batch_of(batch.values, **producer)
        self._expected.append(client.send(PRODUCE, PRODUCE_VERSION, produce_fields(self.topic, 0, records)))

    async def _take_answer(self, client: WireClient) -> None:
        response = await client.receive(PRODUCE, PRODUCE_VERSION, self._expected.popleft())
        result = response.responses[0].partition_responses[0]
        batch = self.in_flight.popleft()
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, batch.first_index), self.topic
        self.acknowledged_batches += 1
        self.acknowledged += len(batch.values)


async def read_all(client: WireClient, topic: str) -> list[bytes]:
    """Return every value of a topic; offsets must count up from 0."""
    values: list[bytes] = []
    while True:
        response = await client.call(FETCH, 12, fetch_fields(topic, len(values)))
        partition = response.responses[0].partitions[0]
        assert partition.error_code == ErrorCode.NONE, partition
        if len(values) == partition.high_watermark:
            return values
        blob = bytes(partition.records)
        for position, _ in iter_headers(blob):
            for record in iter_records(blob, position):
                if record.offset >= len(values):  # the first batch may begin earlier
                    assert record.offset == len(values)
                    assert record.value is not None
                    values.append(record.value)


async def wait_for_load(loads: list[Load], running: list[asyncio.Task[None]], count: int) -> None:
    """Return when this many more batches were acknowledged."""
    goal = sum(load.acknowledged_batches for load in loads) + count
    async with asyncio.timeout(LOAD_TIMEOUT_S):
        while sum(load.acknowledged_batches for load in loads) < goal:
            for task in running:
                assert not task.done(), f"stopped before the kill: {task}"
            await asyncio.sleep(0.001)


async def kill_under_load(process: BrokerProcess, address: str, loads: list[Load], rng: random.Random) -> None:
    """Produce, and kill the broker after a random number of answers and a random time."""
    running = [asyncio.create_task(load.run(address)) for load in loads]
    try:
        await wait_for_load(loads, running, rng.randint(5, 150))
        # Whatever the broker is doing then: the answers have told how far it is, the time is random on top of it.
        await asyncio.wait(running, timeout=rng.uniform(0, 0.1))
        process.kill()
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()


@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.slow)])
async def test_acknowledged_records_survive_sigkill(tmp_path: Path, rounds: int) -> None:
    """After repeated kills on the same data, the broker has every acknowledged record in order and once; idempotent
    producers continue normally.
    """
    seed = int(os.environ.get("DIAMANT_SIGKILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"DIAMANT_SIGKILL_SEED={seed}")
    rng = random.Random(seed)
    plain = Load("plain", rng, max_in_flight=5, is_idempotent=False)
    pipelined = Load("pipelined", rng, max_in_flight=5, is_idempotent=True)
    # A producer snapshot, taken where a segment ends, knows one batch per producer: more than one in flight across that
    # boundary could not be told from new ones, as in Kafka.
    careful = Load("careful", rng, max_in_flight=1, is_idempotent=True)
    loads = [plain, pipelined, careful]
    for number in range(rounds + 1):
        with broker_process(tmp_path / "data", tmp_path / f"run-{number}") as process:
            address = process.wait_for_address()
            async with WireClient(address) as client:
                if number == 0:
                    await plain.prepare(client, internal_segment_bytes=str(SEGMENT_BYTES))
                    await pipelined.prepare(client)
                    await careful.prepare(client, internal_segment_bytes=str(SEGMENT_BYTES))
                for load in loads:
                    if load.is_idempotent:
                        await load.send_again(client)
                    load.check(await read_all(client, load.topic))
            assert "Traceback" not in process.log
            if number < rounds:
                await kill_under_load(process, address, loads, rng)
    assert len(list((tmp_path / "data" / "plain-0").glob("*.log"))) > 1
