"""Failures around transactions: disks, deleted topics, large states, broken records. Nothing ever hangs."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.coordinators import partition_loader
from diamant.broker.coordinators.internal_topic import KeyValue, partition_of
from diamant.broker.node.cleaner import NodeCleaner
from diamant.broker.topics.deletion import delete_topics
from diamant.broker.transactions import transaction_store
from diamant.protocol.internal_topics.transaction_records import encode_key
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from tests.broker.held_disk import held_disk
from tests.broker.request_fields import list_offsets
from tests.broker.running import DEFAULTS, running
from tests.broker.transactions.txn_wire import TxnProducer, read_committed, started
from tests.broker.wire import CREATE_PARTITIONS, DELETE_TOPICS, LIST_OFFSETS, WireClient
from tests.injected_faults import InjectedFault
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S, wait_until

STATE_LOG = "/data/__transaction_state-0/*.log"


async def test_a_state_that_cannot_be_written_does_not_count() -> None:
    """Each request gets NOT_COORDINATOR, which clients retry, and the retry succeeds."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        fault = env.fail("append", STATE_LOG, errno.ENOSPC, partial_bytes=20)
        before = broker.services.transactions().store.transactions["id"]
        assert await txn.init() == "NOT_COORDINATOR"
        assert await txn.add(("t", 0)) == ["NOT_COORDINATOR"]
        assert await txn.produce("t", 0, version=12) == "NOT_ENOUGH_REPLICAS"
        assert broker.services.transactions().store.transactions["id"] == before
        fault.clear()
        assert await txn.produce("t", 0, version=12, values=(b"1",)) == "NONE"
        fault = env.fail("append", STATE_LOG, errno.ENOSPC, times=1)
        assert await txn.end(commit=True, version=5) == "NOT_COORDINATOR"
        assert (await txn.describe()).state == "Ongoing"
        assert await txn.end(commit=True, version=5) == "NONE"
        assert await read_committed(wire, "t") == [b"1"]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_that_cannot_be_written_comes_later(commit: bool) -> None:
    """The end is decided and answered; the failing partition gets its marker as soon as it can take it."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        for partition in (0, 1):
            assert await txn.produce("t", 0, partition=partition, version=12, values=(b"1",)) == "NONE"
        fault = env.fail("append", "/data/t-1/*.log", errno.ENOSPC)
        epoch = txn.epoch
        assert await txn.end(commit=commit, version=5) == "NONE"
        described = await txn.describe()
        assert described.state == ("PrepareCommit" if commit else "PrepareAbort")
        assert described.partitions == [("t", 1)]
        assert await txn.end(commit=commit, version=5, epoch=epoch) == "CONCURRENT_TRANSACTIONS"
        assert await txn.end(commit=not commit, version=5, epoch=epoch) == "INVALID_TXN_STATE"
        assert await txn.init() == "CONCURRENT_TRANSACTIONS"
        assert await txn.add(("t", 0)) == ["CONCURRENT_TRANSACTIONS"]
        assert await txn.produce("t", 0, version=12) == "CONCURRENT_TRANSACTIONS"
        assert await txn.produce("t", 0, version=11) == "NOT_ENOUGH_REPLICAS"
        assert await read_committed(wire, "t", 0) == ([b"1"] if commit else [])
        fault.clear()
        await wait_for_markers(broker)
        assert await read_committed(wire, "t", 1) == ([b"1"] if commit else [])
        assert await txn.produce("t", 0, version=12) == "NONE"


async def wait_for_markers(broker: Broker) -> None:
    """Wait until the failed markers were retried, without a request."""
    await wait_until(lambda: not broker.services.transactions().store.open_transactions)


async def test_an_abort_whose_index_entry_cannot_be_written() -> None:
    """The marker waits for the entry: aborted records are never visible, even after a restart."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        assert await txn.produce("t", 0, version=12, values=(b"hidden",)) == "NONE"
        fault = env.fail("create", "/data/t-0/*.txnindex", errno.ENOSPC)
        assert await txn.end(commit=False, version=5) == "NONE"
        assert (await txn.describe()).state == "PrepareAbort"
        assert broker.node.topics.log("t", 0).last_stable_offset == 0
        killed = env.copy()
        fault.clear()
        assert await txn.add(("t", 0)) == ["NONE"]  # whoever asks has it tried again
        assert await txn.produce("t", 0, values=(b"shown",)) == "NONE"
        assert await txn.end(commit=True) == "NONE"
        assert await read_committed(wire, "t") == [b"shown"]
    for left in (env, killed):
        async with running(left) as (broker, wire):
            await TxnProducer(wire, "id").wait_for_coordinator()
            assert await read_committed(wire, "t") == ([b"shown"] if left is env else [])
            log = broker.node.topics.log("t", 0)
            assert log.last_stable_offset == log.log_end_offset


async def test_topics_deleted_in_a_transaction() -> None:
    """Their markers are skipped, all others are written; a new topic with the name is not an obstacle."""
    async with running(MemoryEnv()) as (_, wire):
        txn = await started(wire)
        await wire.create("gone")
        await wire.create("again")
        for topic in ("t", "gone", "again"):
            assert await txn.produce(topic, 0, version=12, values=(b"1",)) == "NONE"
        await wire.call(DELETE_TOPICS, 5, {"topic_names": ["gone", "again"], "timeout_ms": 1000})
        await wire.create("again")
        assert await txn.end(commit=True, version=5) == "NONE"
        assert (await txn.describe()).state == "CompleteCommit"
        assert await read_committed(wire, "t") == [b"1"]
        assert await txn.produce("again", 0, version=12, values=(b"2",)) == "NONE"
        assert await txn.end(commit=True, version=5) == "NONE"
        assert await read_committed(wire, "again") == [b"2"]


async def test_a_topic_that_is_being_recreated(caplog: pytest.LogCaptureFixture) -> None:
    """The deleted topic took the transaction's records with it, so no marker is needed; nothing fails."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        await wire.create("again")
        assert await txn.produce("again", 0, version=12, values=(b"1",)) == "NONE"
        await wire.call(DELETE_TOPICS, 5, {"topic_names": ["again"], "timeout_ms": 1000})
        opened = threading.Event()
        env.before("sync", "/data/again-0/*", lambda: opened.wait(PATIENCE_S))
        creating = asyncio.create_task(broker.create_topic("again", 1))
        await wait_until(lambda: "again" in broker.node.topics.in_creation)
        assert await txn.end(commit=True, version=5) == "NONE"
        assert (await txn.describe()).state == "CompleteCommit"
        opened.set()
        await creating
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_a_partition_that_knows_a_newer_epoch() -> None:
    """The transaction was ended there by hand: the coordinator's end does not wait forever (Kafka's does)."""
    async with running(MemoryEnv()) as (_, wire):
        txn = await started(wire)
        assert await txn.add(("t", 0), ("t", 1)) == ["NONE", "NONE"]
        for partition in (0, 1):
            assert await txn.produce("t", 0, partition=partition) == "NONE"
        epoch = (await txn.producers("t"))[txn.producer_id].coordinator_epoch
        assert (
            await txn.write_marker("t", 0, commit=False, coordinator_epoch=max(0, epoch), epoch=txn.epoch + 5) == "NONE"
        )
        assert await txn.end(commit=True) == "NONE"
        assert (await txn.describe()).state == "CompleteCommit"
        assert (await read_committed(wire, "t", 0), await read_committed(wire, "t", 1)) == ([], [b"value"])


async def test_the_last_stable_offset_for_clients() -> None:
    """For read_committed readers, ListOffsets stops at the beginning of the oldest open transaction."""
    async with running(MemoryEnv()) as (_, wire):
        txn = await started(wire)
        other = TxnProducer(wire, "other")
        await other.wait_for_init()
        await wire.produce("t", [b"plain"])
        assert await txn.produce("t", 0, version=12) == "NONE"
        assert await other.produce("t", 0, version=12) == "NONE"
        assert await latest(wire, isolation_level=1) == 1
        assert await txn.end(commit=True, version=5) == "NONE"
        assert await latest(wire, isolation_level=1) == 2
        assert await other.end(commit=False, version=5) == "NONE"
        assert await latest(wire, isolation_level=1) == await latest(wire, isolation_level=0) == 5


async def latest(wire: WireClient, *, isolation_level: int) -> int:
    """Return the end of t-0."""
    response = await wire.call(LIST_OFFSETS, 5, list_offsets("t", isolation_level=isolation_level))
    return int(response.topics[0].partitions[0].offset)


async def test_requests_while_the_state_is_read() -> None:
    """All requests get COORDINATOR_LOAD_IN_PROGRESS; consecutive batches do not overtake each other."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        assert await txn.add(("t", 0)) == ["NONE"]
        large = KeyValue(b"\x00\x09new kind of key", bytes(transaction_store.SMALL_LOG_BYTES))
        broker.services.transactions().store.topic.append(0, [large])
    gate = threading.Event()

    def hold() -> None:
        if threading.current_thread().name.startswith("asyncio_"):  # not the loop, which finds where to read
            gate.wait(PATIENCE_S)

    env.before("pread", STATE_LOG, hold, times=None)
    async with running(env) as (broker, wire):
        again = TxnProducer(wire, "id")
        again.producer_id, again.epoch = txn.producer_id, txn.epoch
        loading_code = "COORDINATOR_LOAD_IN_PROGRESS"
        assert await again.init() == loading_code
        assert await again.add(("t", 0)) == [loading_code]
        assert await again.add_offsets("g") == loading_code
        assert await again.end(commit=True) == loading_code
        assert await again.end(commit=True, version=5) == loading_code
        assert (await again.describe()).code == loading_code
        with pytest.raises(AssertionError, match=loading_code):
            await again.list()
        assert await again.produce("t", 0) == "NOT_ENOUGH_REPLICAS"
        assert broker.services.transactions().store.is_loading
        gate.set()
        await wait_until(lambda: not broker.services.transactions().store.is_loading)
        assert await again.produce("t", 1) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert await again.produce("t", 0) == "NONE"
        assert await again.produce("t", 1) == "NONE"
        assert await again.end(commit=True) == "NONE"
        assert await again.list() == {"id": "CompleteCommit"}


async def test_records_that_make_no_sense(caplog: pytest.LogCaptureFixture) -> None:
    """Senseless records are logged and skipped; all other ids are loaded."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        await started(wire)
        append = broker.services.transactions().store.topic.append
        append(0, [KeyValue(b"\x00\x09new kind of key", b"?")])
        append(0, [KeyValue(encode_key("cut"), b"\x00\x01\x02"), KeyValue(b"\x00", b"x")])
        append(0, [KeyValue(encode_key("strange"), b"\x00\x00" + bytes(14) + b"\x63" + bytes(20))])
    with caplog.at_level(logging.WARNING):
        async with running(env) as (broker, wire):
            await TxnProducer(wire, "id").wait_for_coordinator()
            assert sorted(broker.services.transactions().store.transactions) == ["id"]
    assert sum("__transaction_state-0: the record at" in message for message in caplog.messages) == 4
    assert any("has a newer version" in message for message in caplog.messages)


async def test_a_state_topic_that_is_deleted() -> None:
    """All state is dropped with it, as in Kafka; FindCoordinator creates it again."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = await started(wire)
        await delete_topics(broker.node.topics, ["__transaction_state"])
        assert await txn.init() == "NOT_COORDINATOR"
        assert await txn.end(commit=True) == "NOT_COORDINATOR"
        await txn.wait_for_coordinator()
        assert (await txn.describe()).code == "TRANSACTIONAL_ID_NOT_FOUND"
        await txn.wait_for_init()
        assert txn.epoch == 0


async def test_producer_ids_run_out() -> None:
    """A new block of ids is fetched during a request, which is answered once it is on disk."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        broker.node.producer_ids._next = broker.node.producer_ids._end
        assert await txn.init() == "NONE"
        assert txn.producer_id % 1000 == 0


async def test_answers_wait_for_the_disk() -> None:
    """With `flush.messages` a producer gets its id once the state is synced, even if a new block of ids was needed; a Produce
    that begins a transaction waits for the state and for its own records.
    """
    env = MemoryEnv()
    async with running(env, log_flush_interval_messages=1) as (broker, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        await wire.create("t")
        broker.node.producer_ids._next = broker.node.producer_ids._end
        log, records = broker.node.topics.log("__transaction_state", 0), broker.node.topics.log("t", 0)

        async def waits_for(synced: Log, request: Coroutine[Any, Any, str]) -> None:
            with held_disk([synced], env) as disk:
                answer = asyncio.create_task(request)
                await wait_until(disk.begun[synced].is_set)
                assert not answer.done()
            assert await answer == "NONE"

        await waits_for(log, txn.init())
        assert log.recovery_point == log.log_end_offset > 0
        await waits_for(log, txn.produce("t", 0, version=12))
        await waits_for(records, txn.produce("t", 1, version=12))
        assert log.recovery_point == log.log_end_offset


async def test_a_state_too_large_for_a_record() -> None:
    """Partitions beyond a record's limit get UNKNOWN_SERVER_ERROR; the transaction continues."""
    async with running(MemoryEnv()) as (broker, wire):
        txn = await started(wire)
        assert await txn.add(("t", 0)) == ["NONE"]
        log = broker.node.topics.log("__transaction_state", 0)
        log.update_config(dataclasses.replace(log.config, max_message_bytes=150))
        await wire.create("x" * 200)
        assert await txn.add(("x" * 200, 0)) == ["UNKNOWN_SERVER_ERROR"]
        assert await txn.end(commit=True) == "NONE"


async def test_list_transactions() -> None:
    """Transactions are listed by state, producer id, age and pattern; unknown states are named."""
    async with running(MemoryEnv()) as (_, wire):
        txn = await started(wire)
        other = TxnProducer(wire, "other")
        await other.wait_for_init()
        assert await txn.add(("t", 0)) == ["NONE"]
        assert await txn.list() == {"id": "Ongoing", "other": "Empty"}
        assert await txn.list(states=("Ongoing", "Nonsense")) == {"id": "Ongoing"}
        assert await txn.list(states=("Nonsense",)) == {}
        assert await txn.list(producer_id_filters=[other.producer_id]) == {"other": "Empty"}
        assert await txn.list(pattern="o.*r") == {"other": "Empty"}
        assert await txn.list(pattern="o") == {}
        assert await txn.list(duration_filter=10**9, states=("Ongoing",)) == {}
        accented = TxnProducer(wire, "\u00e9t\u00e9")
        await accented.wait_for_init()
        assert await txn.list(pattern="^.t.$") == {"\u00e9t\u00e9": "Empty"}
        assert await txn.list(pattern="(a+)+$") == {}
        for pattern in ("(", "a" * 5000):
            with pytest.raises(AssertionError, match="INVALID_REGULAR_EXPRESSION"):
                await txn.list(pattern=pattern)


def fail_loading(env: MemoryEnv, error: Exception) -> InjectedFault:
    """Make the read of a small state partition fail: on the loop, after a thread has opened its log."""

    def fail() -> None:
        if threading.current_thread() is threading.main_thread():
            raise error

    return env.before("pread", STATE_LOG, fail, times=None)


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("can't start new thread")])
async def test_a_disk_that_does_not_give_the_state(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The partition is read again after pauses, not by every request: lists omit it, and its ids get NOT_COORDINATOR. Once the
    disk works again it is served, and decided transactions are completed.
    """
    env = MemoryEnv()
    names = {partition_of(name, 2): name for name in map("id{}".format, range(99))}
    async with running(env, transaction_state_log_num_partitions=2) as (_, wire):
        for name in names.values():
            await started(wire, transactional_id=name)
    fault = fail_loading(env, error)

    def told() -> list[str]:
        return [line for line in caplog.messages if "could not be loaded" in line]

    async with running(env) as (broker, wire):
        first, second = TxnProducer(wire, names[0]), TxnProducer(wire, names[1])
        await broker.services.transactions().loaded()
        loader = broker.services.transactions().store._loader
        loader._retries[0].cancel()  # the pause ends when it is told to
        for _ in range(3):
            assert set(await second.list()) == {names[1]}
            assert (await first.describe()).code == "NOT_COORDINATOR"
            assert (await second.describe()).code == "NONE"
        (line,) = told()
        assert f"retried in 1 s: {error}" in line
        loader._try_again(0)
        await wait_until(lambda: 0 in loader._retries)
        loader._retries[0].cancel()
        _, line = told()
        assert "retried in 2 s" in line
        fault.clear()
        loader._try_again(0)
        await wait_until(lambda: not broker.services.transactions().store.is_loading)
        assert (await first.describe()).code == "NONE"
        assert set(await second.list()) == set(names.values())


async def test_a_start_that_fails_ends_the_loads_that_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails late leaves no task, no retry that would read the directory after its lock was released, and no
    watched socket: the next broker's sockets have the same numbers, and the loop would watch none of them.
    """
    env = MemoryEnv()
    async with running(env) as (_, wire):
        await started(wire)
    fault = fail_loading(env, OSError(errno.EIO, "Input/output error"))

    async def fail_once_a_load_is_put_off(cleaning: NodeCleaner) -> None:
        await wait_until(lambda: fault.hits > 0)
        raise OSError(errno.EMFILE, "Too many open files", "somewhere")

    before = asyncio.all_tasks()
    with monkeypatch.context() as patch:
        patch.setattr(partition_loader, "FIRST_RETRY_S", 0.0)
        patch.setattr(NodeCleaner, "start", fail_once_a_load_is_put_off)
        with pytest.raises(CannotStart, match="Too many open files"):
            await Broker(BrokerConfig(**DEFAULTS), env=env).start()
        assert asyncio.all_tasks() == before
        hits = fault.hits
        for _ in range(100):
            await asyncio.sleep(0)  # a turn of the loop, in which a retry would be due
        assert (fault.hits, asyncio.all_tasks()) == (hits, before)
    fault.clear()
    async with running(env) as (_, wire):
        assert set(await TxnProducer(wire, "id").list()) == {"id"}


async def test_a_state_topic_that_was_given_more_partitions(caplog: pytest.LogCaptureFixture) -> None:
    """Only an id's present partition counts: its older state in another one does not reappear."""
    env = MemoryEnv()
    moved = next(
        name for name in map("id{}".format, range(99)) if (partition_of(name, 2), partition_of(name, 3)) == (1, 0)
    )
    async with running(env, transaction_state_log_num_partitions=2) as (_, wire):
        txn = await started(wire, transactional_id=moved)
        assert await txn.produce("t", 0, version=12) == "NONE"
        topic = {"name": "__transaction_state", "count": 3, "assignments": None}
        await wire.call(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout_ms": 5_000, "validate_only": False})
        assert await txn.end(commit=True, version=5) == "NONE"
        before = await txn.describe()
    async with running(env) as (broker, wire):
        await wait_until(lambda: not broker.services.transactions().store.is_loading)
        assert await TxnProducer(wire, moved).describe() == before
    assert "__transaction_state-1: 1 ids that belong to other partitions are skipped" in caplog.text


async def test_a_transaction_without_its_state_partition_holds_up_no_other() -> None:
    """The topic of states has grown, and the new partition could not be created: the transaction whose id belongs to it waits,
    those after it end.
    """
    clock = SettableClock()
    env = MemoryEnv(clock)
    moved, other = (
        next(name for name in map("id{}".format, range(99)) if partition_of(name, 2) == at) for at in (1, 0)
    )
    async with running(env) as (broker, wire):
        store = broker.services.transactions().store
        waiting, ending = [await started(wire, transactional_id=name) for name in (moved, other)]
        for txn in (waiting, ending):
            assert await txn.produce("t", 0, version=12) == "NONE"
        fault = env.fail("append", "/data/t-0/*.log", errno.ENOSPC)
        for txn in (waiting, ending):
            assert await txn.end(commit=True, version=5) == "NONE"
        refused = env.fail("make_dirs", "/data/__transaction_state-1", errno.ENOSPC)
        topic = {"name": "__transaction_state", "count": 2, "assignments": None}
        await wire.call(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout_ms": 5_000, "validate_only": False})
        assert refused.hits
        fault.clear()
        clock.advance_ms(broker.node.config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        await wait_until(lambda: store.transactions[other].state.label == "CompleteCommit")
        assert [txn.transactional_id for txn in store.open_transactions] == [moved]
        refused.clear()
        broker.node.scheduler.poke()
        await wait_until(lambda: 1 in broker.node.topics.by_name["__transaction_state"].logs)
        assert await waiting.init() == "NONE"
        assert not store.open_transactions


async def test_a_state_topic_that_is_deleted_while_markers_are_missing() -> None:
    """Nothing is left to finish: the next retry logs that, and is the last."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        assert await txn.produce("t", 0, version=12) == "NONE"
        fault = env.fail("append", "/data/t-0/*.log", errno.ENOSPC)
        assert await txn.end(commit=True, version=5) == "NONE"
        await delete_topics(broker.node.topics, ["__transaction_state"])
        await wait_for_markers(broker)
        assert broker.services.transactions().store.transactions == {}
        fault.clear()


async def test_a_producer_id_that_cannot_be_recorded() -> None:
    """Idempotent and transactional producers get a retriable error."""
    env = MemoryEnv()
    async with running(env) as (broker, wire):
        txn = await started(wire)
        broker.node.producer_ids._next = broker.node.producer_ids._end
        fault = env.fail("append", "/data/__cluster_metadata-0/*.log", errno.ENOSPC)
        assert await txn.init(transactional_id=None) == "COORDINATOR_LOAD_IN_PROGRESS"
        fault.clear()
