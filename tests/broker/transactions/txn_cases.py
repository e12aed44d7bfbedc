"""A table of unusual requests about transactions and the codes of Kafka 4.3.1, for any broker.

`python -m tests.broker.transactions.txn_cases HOST:PORT` runs them on a broker, such as a real Kafka, and prints the
differences from the table; test_txn_versions.py runs them on ours. Each case has its own transactional id and topic of three
partitions. Names of error codes, states, and epochs relative to the first one are compared.

The broker needs `transaction.version` 2. After each end of a transaction the case waits for its markers: a real
Kafka writes them in the background, and answers CONCURRENT_TRANSACTIONS until then.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.broker.request_fields import list_offsets
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import LIST_OFFSETS, METADATA, WireClient

TV2_PRODUCE, TV2_END, TV2_COMMIT_OFFSET = 12, 5, 5
OLD_END = 3

Step = Callable[["CaseRun"], Awaitable[str]]


class CaseRun:
    """The shared state of a case's steps."""

    def __init__(self, wire: WireClient, name: str) -> None:
        self.wire = wire
        self.topic = f"t-{name}"
        self.group = f"g-{name}"
        self.txn = TxnProducer(wire, f"id-{name}")
        self.first_id = -1
        self.first_epoch = 0

    async def wait_for_topic(self) -> None:
        """Wait until the coordinators' topics and the case's own can be used."""
        await self.txn.wait_for_coordinator(self.group)
        await self.wire.create(self.topic, 3)
        async with asyncio.timeout(60):
            for partition in range(3):
                while await self._list_offset(partition):
                    await asyncio.sleep(0.05)
            request = {"topics": [{"name": "__consumer_offsets"}], "allow_auto_topic_creation": False}
            while any(each.error_code for each in (await self.wire.call(METADATA, 9, request)).topics[0].partitions):
                await asyncio.sleep(0.05)

    async def _list_offset(self, partition: int) -> Any:
        response = await self.wire.call(LIST_OFFSETS, 5, list_offsets(self.topic, partition))
        return response.topics[0].partitions[0].error_code


def init(*, as_epoch: int | None = None, id_shift: int = 0, **request: Any) -> Step:
    """Send InitProducerId; `as_epoch` names the expected producer, its epoch counted from the first."""

    async def step(run: CaseRun) -> str:
        expected = {}
        if as_epoch is not None:
            expected = {"producer_id": run.first_id + id_shift, "epoch": run.first_epoch + as_epoch}
        code = await run.txn.init(**expected, **request)
        if run.first_id < 0 and code == "NONE":
            run.first_id, run.first_epoch = run.txn.producer_id, run.txn.epoch
        return code if code != "NONE" else f"NONE +{run.txn.epoch - run.first_epoch}"

    return step


def produce(sequence: int, *, at: int | None = None, id_shift: int = 0, **request: Any) -> Step:
    """Send a batch in epoch `at`, counted from the first; by default the present one."""

    async def step(run: CaseRun) -> str:
        epoch = run.txn.epoch if at is None else run.first_epoch + at
        return await run.txn.produce(
            run.topic, sequence, epoch=epoch, producer_id=run.txn.producer_id + id_shift, **request
        )

    return step


def add(*partitions: int, topic: str | None = None, at: int | None = None, id_shift: int = 0, **request: Any) -> Step:
    """Send AddPartitionsToTxn; return the codes of all partitions, as one word if they are equal."""

    async def step(run: CaseRun) -> str:
        epoch = run.txn.epoch if at is None else run.first_epoch + at
        wanted = [(run.topic, partition) for partition in partitions] + ([] if topic is None else [(topic, 0)])
        codes = await run.txn.add(*wanted, epoch=epoch, producer_id=run.txn.producer_id + id_shift, **request)
        return codes[0] if len(set(codes)) == 1 else " ".join(codes)

    return step


def verify(*partitions: int, **request: Any) -> Step:
    """Send AddPartitionsToTxn that adds nothing."""
    return add(*partitions, version=4, verify=True, **request)


def end(*, commit: bool, at: int | None = None, id_shift: int = 0, version: int = OLD_END, **request: Any) -> Step:
    """Send EndTxn and wait for the markers; return the epoch for version 5, counted from the first."""

    async def step(run: CaseRun) -> str:
        epoch = run.txn.epoch if at is None else run.first_epoch + at
        producer_id = run.txn.producer_id + id_shift
        code = await run.txn.end(commit=commit, epoch=epoch, producer_id=producer_id, version=version, **request)
        await run.txn.wait_for_end()
        return f"NONE +{run.txn.epoch - run.first_epoch}" if code == "NONE" and version >= TV2_END else code

    return step


def commit_offset(*, at: int | None = None, id_shift: int = 0, topic: str | None = None, **request: Any) -> Step:
    """Send TxnOffsetCommit in the case's group."""

    async def step(run: CaseRun) -> str:
        epoch = run.txn.epoch if at is None else run.first_epoch + at
        group = request.pop("group", run.group)
        producer_id = run.txn.producer_id + id_shift
        return await run.txn.commit_offset(
            group, topic or run.topic, 5, epoch=epoch, producer_id=producer_id, **request
        )

    return step


def add_offsets(*, at: int | None = None, **request: Any) -> Step:
    """Send AddOffsetsToTxn for the case's group."""

    async def step(run: CaseRun) -> str:
        return await run.txn.add_offsets(run.group, epoch=None if at is None else run.first_epoch + at, **request)

    return step


def describe(**request: Any) -> Step:
    """Return state, epoch from the first, and the number of partitions; the code for an error."""

    async def step(run: CaseRun) -> str:
        found = await run.txn.wait_for_end() if not request else await run.txn.describe(**request)
        if found.code != "NONE":
            return found.code
        return f"{found.state} +{found.producer_epoch - run.first_epoch} {len(found.partitions)}"

    return step


def marker(partition: int, *, at: int, commit: bool = False, topic: str | None = None, **request: Any) -> Step:
    """Send WriteTxnMarkers with the coordinator epoch known to the partition."""

    async def step(run: CaseRun) -> str:
        known = (await run.txn.producers(run.topic, partition)).get(run.txn.producer_id)
        coordinator_epoch = request.pop("coordinator_epoch", max(0, known.coordinator_epoch) if known else 0)
        return await run.txn.write_marker(
            topic or run.topic,
            partition,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            epoch=run.first_epoch + at,
            **request,
        )

    return step


def active(partition: int = 0) -> Step:
    """Return the producer in a partition: its epoch from the first, last sequence, and whether its transaction is open."""

    async def step(run: CaseRun) -> str:
        known = (await run.txn.producers(run.topic, partition)).get(run.txn.producer_id)
        if known is None:
            return "unknown"
        state = "open" if known.current_txn_start_offset >= 0 else "closed"
        return f"+{known.producer_epoch - run.first_epoch} {known.last_sequence} {state}"

    return step


CASES: dict[str, list[tuple[Step, str]]] = {
    "ids-and-timeouts": [
        (init(timeout_ms=0), "INVALID_TRANSACTION_TIMEOUT"),
        (init(timeout_ms=-1), "INVALID_TRANSACTION_TIMEOUT"),
        (init(timeout_ms=900_001), "INVALID_TRANSACTION_TIMEOUT"),
        (init(producer_id=5), "INVALID_REQUEST"),
        (init(epoch=5), "INVALID_REQUEST"),
        (init(transactional_id=None, producer_id=5), "INVALID_REQUEST"),
        (init(timeout_ms=900_000), "NONE +0"),
        (describe(), "Empty +0 0"),
        (describe(transactional_id="never-seen"), "TRANSACTIONAL_ID_NOT_FOUND"),
        (describe(transactional_id=""), "INVALID_REQUEST"),
        (add(0, transactional_id=""), "INVALID_REQUEST"),
        (add(0, transactional_id="never-seen"), "INVALID_PRODUCER_ID_MAPPING"),
        (add_offsets(transactional_id=""), "INVALID_REQUEST"),
        (add_offsets(transactional_id="never-seen"), "INVALID_PRODUCER_ID_MAPPING"),
        (end(commit=True, transactional_id=""), "INVALID_REQUEST"),
        (end(commit=True, transactional_id="", version=TV2_END), "INVALID_REQUEST"),
        (end(commit=True, transactional_id="never-seen"), "INVALID_PRODUCER_ID_MAPPING"),
        (end(commit=False, transactional_id="never-seen", version=TV2_END), "INVALID_PRODUCER_ID_MAPPING"),
    ],
    "tv1-life": [
        (init(), "NONE +0"),
        (end(commit=True), "INVALID_TXN_STATE"),
        (end(commit=False), "INVALID_TXN_STATE"),
        (add(0, 1), "NONE"),
        (describe(), "Ongoing +0 2"),
        (add(0), "NONE"),
        (produce(0), "NONE"),
        (produce(0), "NONE"),
        (produce(2), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (active(), "+0 0 open"),
        (end(commit=True), "NONE"),
        (end(commit=True), "NONE"),
        (end(commit=False), "INVALID_TXN_STATE"),
        (describe(), "CompleteCommit +0 0"),
        (active(), "+0 0 closed"),
        (produce(1), "INVALID_TXN_STATE"),
        (add(0), "NONE"),
        (produce(1), "NONE"),
        (end(commit=False), "NONE"),
        (end(commit=False), "NONE"),
        (end(commit=True), "INVALID_TXN_STATE"),
        (describe(), "CompleteAbort +0 0"),
    ],
    "tv1-errors-by-version": [
        (init(), "NONE +0"),
        (init(), "NONE +1"),
        (add(0, at=0), "PRODUCER_FENCED"),
        (add(0, at=0, version=2), "PRODUCER_FENCED"),
        (add(0, at=0, version=1), "INVALID_PRODUCER_EPOCH"),
        (add(0, at=0, version=0), "INVALID_PRODUCER_EPOCH"),
        (add(0, at=2), "PRODUCER_FENCED"),
        (add(0, id_shift=1000), "INVALID_PRODUCER_ID_MAPPING"),
        (add_offsets(at=0), "PRODUCER_FENCED"),
        (add_offsets(at=0, version=1), "INVALID_PRODUCER_EPOCH"),
        (end(commit=True, at=0), "PRODUCER_FENCED"),
        (end(commit=True, at=0, version=1), "INVALID_PRODUCER_EPOCH"),
        (end(commit=True, at=2), "PRODUCER_FENCED"),
        (end(commit=True, id_shift=1000), "INVALID_PRODUCER_ID_MAPPING"),
        (produce(0, version=9), "INVALID_TXN_STATE"),
        (produce(0, version=10), "INVALID_TXN_STATE"),
        (produce(0, version=11), "TRANSACTION_ABORTABLE"),
        (produce(0, at=0), "INVALID_PRODUCER_EPOCH"),
        (produce(0, at=2), "INVALID_PRODUCER_EPOCH"),
        (produce(0, id_shift=1000), "INVALID_PRODUCER_ID_MAPPING"),
        (produce(0, transactional_id="never-seen"), "INVALID_PRODUCER_ID_MAPPING"),
        (produce(0, transactional_id=None), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        (add(0), "NONE"),
        (produce(0), "NONE"),
        (produce(1, transactional_id="never-seen"), "NONE"),
        (produce(2, is_transactional=False), "INVALID_TXN_STATE"),
        (produce(0, partition=1), "INVALID_TXN_STATE"),
        (produce(0, partition=1, version=11), "TRANSACTION_ABORTABLE"),
        (produce(5, partition=7), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
    "add-all-or-nothing": [
        (init(), "NONE +0"),
        (add(0, 9), "OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION"),
        (add(0, 9, version=4), "OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION"),
        (add(0, topic="no-such-topic"), "OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION"),
        (describe(), "Empty +0 0"),
        (add(0, 1), "NONE"),
        (add(1, 2, version=4), "NONE"),
        (add(2, version=5), "NONE"),
        (describe(), "Ongoing +0 3"),
    ],
    "verify-only": [
        (init(), "NONE +0"),
        (verify(0), "TRANSACTION_ABORTABLE"),
        (add(0), "NONE"),
        (verify(0, 1), "NONE TRANSACTION_ABORTABLE"),
        (verify(0, 9), "OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION"),
        (verify(0, at=1), "PRODUCER_FENCED"),
        (verify(0, id_shift=1000), "INVALID_PRODUCER_ID_MAPPING"),
        (verify(0, transactional_id="never-seen"), "INVALID_PRODUCER_ID_MAPPING"),
        (verify(0, transactional_id=""), "INVALID_REQUEST"),
        (describe(), "Ongoing +0 1"),
    ],
    "refused-sequences": [
        (init(), "NONE +0"),
        (produce(0), "INVALID_TXN_STATE"),
        (produce(1, is_transactional=False), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (add(0), "NONE"),
        (produce(1), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (produce(0), "NONE"),
        (produce(1), "NONE"),
        (produce(5, partition=1), "INVALID_TXN_STATE"),
        (produce(6, partition=1, version=TV2_PRODUCE), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (produce(3, partition=1, version=TV2_PRODUCE), "NONE"),
        (produce(3, partition=2, version=TV2_PRODUCE), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (produce(0, partition=2, version=TV2_PRODUCE), "NONE"),
        (end(commit=True, version=TV2_END), "NONE +1"),
        (produce(0, partition=1), "INVALID_TXN_STATE"),
        (init(), "NONE +2"),
        (produce(4, partition=1, is_transactional=False), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (produce(0, partition=1, is_transactional=False), "NONE"),
        (produce(1, partition=1, is_transactional=False), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (produce(0, partition=1, is_transactional=False), "NONE"),
        (produce(0, partition=1, version=TV2_PRODUCE), "NONE"),
        (produce(1, partition=1, version=TV2_PRODUCE), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ],
    "tv2-life": [
        (init(), "NONE +0"),
        (end(commit=True, version=TV2_END), "INVALID_TXN_STATE"),
        (produce(0, version=TV2_PRODUCE), "NONE"),
        (describe(), "Ongoing +0 1"),
        (produce(5, partition=1, version=TV2_PRODUCE), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (describe(), "Ongoing +0 2"),
        (produce(0, partition=2, version=TV2_PRODUCE), "NONE"),
        (end(commit=True, version=TV2_END), "NONE +1"),
        (end(commit=True, at=0, version=TV2_END), "NONE +1"),
        (end(commit=False, at=0, version=TV2_END), "INVALID_TXN_STATE"),
        (end(commit=True, version=TV2_END), "INVALID_TXN_STATE"),
        (active(), "+1 -1 closed"),
        (produce(1, at=0, version=TV2_PRODUCE), "INVALID_PRODUCER_EPOCH"),
        (produce(1, at=0), "INVALID_PRODUCER_EPOCH"),
        (produce(1, version=TV2_PRODUCE), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (produce(0, version=TV2_PRODUCE), "NONE"),
        (end(commit=False, version=TV2_END), "NONE +2"),
        (end(commit=False, at=1, version=TV2_END), "NONE +2"),
        (end(commit=True, at=1, version=TV2_END), "INVALID_TXN_STATE"),
        (end(commit=True, at=0, version=TV2_END), "PRODUCER_FENCED"),
        (end(commit=True, at=3, version=TV2_END), "PRODUCER_FENCED"),
        (end(commit=True, id_shift=1000, version=TV2_END), "INVALID_PRODUCER_ID_MAPPING"),
        (describe(), "CompleteAbort +2 0"),
    ],
    "tv2-abort-of-nothing": [
        (init(), "NONE +0"),
        (end(commit=False, version=TV2_END), "NONE +1"),
        (end(commit=False, at=0, version=TV2_END), "NONE +1"),
        (end(commit=False, version=TV2_END), "NONE +2"),
        (produce(0, version=TV2_PRODUCE), "NONE"),
        (end(commit=True, version=TV2_END), "NONE +3"),
        (end(commit=False, version=TV2_END), "NONE +4"),
        (describe(), "CompleteAbort +4 0"),
    ],
    "tv2-after-tv1-and-back": [
        (init(), "NONE +0"),
        (add(0), "NONE"),
        (produce(0), "NONE"),
        (produce(0, partition=1, version=TV2_PRODUCE), "NONE"),
        (end(commit=True, version=TV2_END), "NONE +1"),
        (add(0), "NONE"),
        (produce(0), "NONE"),
        (end(commit=True, version=4), "NONE"),
        (end(commit=True, version=4), "NONE"),
        (produce(1, version=TV2_PRODUCE), "NONE"),
        (end(commit=False, version=TV2_END), "NONE +2"),
        (end(commit=False, at=1, version=4), "PRODUCER_FENCED"),
    ],
    "fenced-by-another": [
        (init(), "NONE +0"),
        (produce(0, version=TV2_PRODUCE), "NONE"),
        (init(), "CONCURRENT_TRANSACTIONS"),
        (describe(), "CompleteAbort +1 0"),
        (active(), "+1 -1 closed"),
        (produce(1, at=0, version=TV2_PRODUCE), "INVALID_PRODUCER_EPOCH"),
        (init(), "NONE +2"),
        (end(commit=True, at=0), "PRODUCER_FENCED"),
        (end(commit=True, at=0, version=TV2_END), "PRODUCER_FENCED"),
        (add(0, at=0), "PRODUCER_FENCED"),
        (produce(1, at=0), "INVALID_PRODUCER_EPOCH"),
        (init(as_epoch=0), "PRODUCER_FENCED"),
    ],
    "epoch-bumps-of-the-producer-itself": [
        (init(as_epoch=None), "NONE +0"),
        (init(as_epoch=0), "NONE +1"),
        (init(as_epoch=0), "NONE +1"),
        (init(as_epoch=1), "NONE +2"),
        (init(as_epoch=0), "PRODUCER_FENCED"),
        (init(as_epoch=0, version=3), "INVALID_PRODUCER_EPOCH"),
        (init(as_epoch=5), "PRODUCER_FENCED"),
        (init(as_epoch=2, id_shift=1000), "PRODUCER_FENCED"),
        (init(), "NONE +3"),
        (init(as_epoch=2), "PRODUCER_FENCED"),
        (add(0), "NONE"),
        (init(as_epoch=3), "CONCURRENT_TRANSACTIONS"),
        (describe(), "CompleteAbort +4 0"),
        (init(as_epoch=3), "NONE +4"),
    ],
    "offsets-tv1": [
        (init(), "NONE +0"),
        (commit_offset(version=3), "INVALID_TXN_STATE"),
        (commit_offset(version=4), "TRANSACTION_ABORTABLE"),
        (add_offsets(), "NONE"),
        (describe(), "Ongoing +0 1"),
        (commit_offset(version=3), "NONE"),
        (commit_offset(version=0), "NONE"),
        (commit_offset(version=3, transactional_id="never-seen"), "NONE"),
        (commit_offset(version=3, at=1), "INVALID_PRODUCER_EPOCH"),
        (commit_offset(version=0, at=1), "INVALID_PRODUCER_EPOCH"),
        (commit_offset(version=3, id_shift=1000), "INVALID_PRODUCER_ID_MAPPING"),
        (commit_offset(version=3, topic="no-such-topic"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (commit_offset(version=3, partition=7), "UNKNOWN_TOPIC_OR_PARTITION"),
        (commit_offset(version=3, group=""), "INVALID_GROUP_ID"),
        (commit_offset(version=3, member_id="nobody", generation=3), "UNKNOWN_MEMBER_ID"),
        (end(commit=True), "NONE"),
        (commit_offset(version=3), "INVALID_TXN_STATE"),
    ],
    "offsets-tv2": [
        (init(), "NONE +0"),
        (commit_offset(version=TV2_COMMIT_OFFSET), "NONE"),
        (describe(), "Ongoing +0 1"),
        (commit_offset(version=TV2_COMMIT_OFFSET, at=1), "INVALID_PRODUCER_EPOCH"),
        (end(commit=False, version=TV2_END), "NONE +1"),
        (commit_offset(version=TV2_COMMIT_OFFSET, at=0), "INVALID_PRODUCER_EPOCH"),
        (commit_offset(version=TV2_COMMIT_OFFSET), "NONE"),
        (end(commit=True, version=TV2_END), "NONE +2"),
    ],
    "markers-by-hand": [
        (init(), "NONE +0"),
        (init(), "NONE +1"),
        (add(0, 1), "NONE"),
        (produce(0), "NONE"),
        (marker(0, at=1, coordinator_epoch=-1), "NONE"),
        (marker(0, at=1), "NONE"),
        (produce(1), "NONE"),
        (marker(0, at=1, coordinator_epoch=-1), "TRANSACTION_COORDINATOR_FENCED"),
        (marker(0, at=0), "INVALID_PRODUCER_EPOCH"),
        (marker(7, at=1), "UNKNOWN_TOPIC_OR_PARTITION"),
        (marker(0, at=1, topic="no-such-topic"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (marker(0, at=1, version=2, tv=2), "INVALID_PRODUCER_EPOCH"),
        (active(), "+1 1 open"),
        (marker(0, at=1, version=2, tv=1), "NONE"),
        (active(), "+1 1 closed"),
        (marker(0, at=1, version=2, tv=2), "NONE"),
        (describe(transactional_id=None), "Ongoing +1 2"),
        (end(commit=True), "NONE"),
        (describe(), "CompleteCommit +1 0"),
    ],
}
"""Cases by name: steps, and what each is answered."""


async def run_case(address: str, name: str, *, run_name: str) -> list[tuple[int, str, str]]:
    """Return the steps whose answers differ from the table: number, expected and actual answer."""
    differences = []
    async with WireClient(address) as wire:
        run = CaseRun(wire, run_name)
        await run.wait_for_topic()
        for number, (step, expected) in enumerate(CASES[name], start=1):
            found = await step(run)
            if found != expected:
                differences.append((number, expected, found))
    return differences


async def main(address: str) -> None:
    """Run all cases against a broker."""
    for name in CASES:
        differences = await run_case(address, name, run_name=f"{name}-{time.time_ns()}")
        print(f"{name}: {'as in the table' if not differences else ''}")
        for number, expected, found in differences:
            print(f"    step {number}: expected {expected}, found {found}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
