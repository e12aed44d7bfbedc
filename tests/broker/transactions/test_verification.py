"""Permission to write transactional records: whole requests, several producers, heavy batches, disabled verification."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from diamant.broker.node.node import BATCH_CHECKERS
from diamant.broker.transactions.transaction import ProducerIdAndEpoch
from diamant.broker.transactions.verification import Support, Write
from diamant.protocol.errors import ErrorCode
from diamant.storage.log.append_checks import LIGHT_RECORDS
from tests.broker.running import running
from tests.broker.transactions.txn_wire import TxnProducer, name_of, read_committed, started
from tests.broker.wire import PRODUCE, WireClient, batch_of
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until


async def produce(
    wire: WireClient, transactional_id: str | None, *batches: bytes, version: int = 12, topic: str = "t"
) -> list[str]:
    """Send one request with a batch for each partition from 0 on; return the codes."""
    data = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    request: dict[str, Any] = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }
    response = await wire.call(PRODUCE, version, request)
    return [name_of(result.error_code) for result in response.responses[0].partition_responses]


def batch(txn: TxnProducer, sequence: int = 0, *, epoch_shift: int = 0, **fields: Any) -> bytes:
    """Return a transactional batch of one record."""
    return batch_of(
        [b"x"],
        producer_id=fields.pop("producer_id", txn.producer_id),
        producer_epoch=txn.epoch + epoch_shift,
        base_sequence=sequence,
        is_transactional=True,
        **fields,
    )


async def test_a_request_is_judged_as_a_whole() -> None:
    """With two producers, or transactional batches without an id, all partitions are refused; nothing is stored."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = await started(wire)
        mixed = [batch(txn), batch_of([b"plain"])]
        assert await produce(wire, None, *mixed) == ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"] * 2
        assert await produce(wire, "id", batch(txn), batch(txn, epoch_shift=1)) == ["INVALID_PRODUCER_ID_MAPPING"] * 2
        assert await produce(wire, "id", batch(txn), batch(txn, producer_id=99)) == ["INVALID_PRODUCER_ID_MAPPING"] * 2
        assert [broker.node.topics.log("t", partition).log_end_offset for partition in range(3)] == [0, 0, 0]
        assert (await txn.describe()).state == "Empty"
        assert await produce(wire, "id", *mixed) == ["NONE", "NONE"]
        assert (await txn.describe()).partitions == [("t", 0)]


async def test_partitions_are_added_by_one_record() -> None:
    """With TV2, a request to three partitions, one of them unknown, adds the other two."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = await started(wire)
        state = broker.node.topics.log("__transaction_state", 0)
        before = state.log_end_offset
        codes = await produce(wire, "id", *[batch(txn) for _ in range(4)])
        assert codes == ["NONE", "NONE", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert state.log_end_offset == before + 1
        assert await produce(wire, "id", *[batch(txn, 1) for _ in range(3)]) == ["NONE"] * 3
        assert state.log_end_offset == before + 1


async def test_internal_topics_are_not_added() -> None:
    """A client's write to one is refused, and its transaction is unchanged."""
    async with running(MemoryEnv()) as (_, wire):
        txn = await started(wire)
        assert await produce(wire, "id", batch(txn), topic="__transaction_state") == ["INVALID_TOPIC_EXCEPTION"]
        assert (await txn.describe()).state == "Empty"


async def test_a_batch_that_is_checked_in_a_thread() -> None:
    """A heavy batch is verified again before its append: a transaction that has ended does not get it."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = await started(wire)
        log = broker.node.topics.log("t", 0)
        broker.node.directory.validation.is_slow = True
        checkers, gate = broker.node.batch_checkers, threading.Event()
        for _ in range(BATCH_CHECKERS):
            checkers.submit(gate.wait, 20)
        await wait_until(checkers._work_queue.empty)
        async with WireClient(broker.bootstrap_servers) as other:
            slow = TxnProducer(other, "id")
            slow.producer_id, slow.epoch = txn.producer_id, txn.epoch
            task = asyncio.create_task(slow.produce("t", 0, version=12, values=(b"v",) * (LIGHT_RECORDS + 1)))
            await wait_until(lambda: not checkers._work_queue.empty())
            assert await txn.end(commit=True, version=5) == "NONE"
            gate.set()
            assert await task == "INVALID_PRODUCER_EPOCH"
        assert log.last_stable_offset == log.log_end_offset == 1  # the marker alone


async def test_without_verification() -> None:
    """With transaction.partition.verification.enable=false, TV1 batches are not checked; TV2 still adds partitions."""
    async with running(MemoryEnv(), transaction_partition_verification_enable=False) as (_, wire):
        txn = await started(wire)
        assert await txn.produce("t", 0, version=9) == "NONE"
        assert (await txn.describe()).state == "Empty"
        assert await txn.produce("t", 0, partition=1, version=12) == "NONE"
        assert (await txn.describe()).partitions == [("t", 1)]
        assert await txn.end(commit=True, version=5) == "NONE"
        assert (await read_committed(wire, "t", 0), await read_committed(wire, "t", 1)) == ([], [b"value"])


async def test_a_batch_of_an_old_epoch_is_refused_by_its_partition() -> None:
    """The partition refuses such a batch without the coordinator, even for a transactional id that it does not know."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = await started(wire)
        assert await txn.produce("t", 0, version=12) == "NONE"
        assert await txn.end(commit=True, version=5) == "NONE"
        old = ProducerIdAndEpoch(txn.producer_id, txn.epoch - 1)
        tv2 = Support(knows_abortable=True, adds_partitions=True)
        errors = broker.services.transactions().verification.check(
            "never-seen", old, [Write(broker.node.topics.log("t", 0), 1)], tv2
        )
        assert [error.code for error in errors.values()] == [ErrorCode.INVALID_PRODUCER_EPOCH]
