"""Answers of callers that wait for a failed or unfinished flush."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.node.flusher import Flusher, has_failed
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.clocks import SystemClock
from diamant.storage.log.log import Log
from tests.broker.held_disk import held_disk
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import METADATA, WireClient
from tests.injected_faults import Operation
from tests.memory_env import MemoryEnv
from tests.storage.logs import batch, make_log
from tests.waiting import wait_until

ERRORS = [OSError("Input/output error"), MemoryError("none left"), RuntimeError("can't start new thread")]


@pytest.fixture
def env() -> MemoryEnv:
    """A file system that fails or blocks on request."""
    return MemoryEnv(SystemClock())


@pytest.fixture
async def broker(env: MemoryEnv) -> AsyncIterator[Broker]:
    """A broker on that disk."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data"), env=env) as running:
        yield running


class Exhausted(ThreadPoolExecutor):
    """There are no more threads."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")


def fail_flushes_of(log: Log, error: BaseException, env: MemoryEnv) -> None:
    """Make flushes of this log fail, but not those of others."""

    def fail() -> None:
        raise error

    env.before("sync", f"{log.path}/*.log", fail, times=None)


def two_logs(env: MemoryEnv, **config: Any) -> tuple[Log, Log]:
    """Two logs with one unflushed record each."""
    logs = []
    for name in ("a", "b"):
        logs.append(make_log(env, Path("/", name), **config))
        logs[-1].append_as_leader(batch(b"x"))
    return logs[0], logs[1]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_flush_that_fails_for_whatever_reason(
    error: Exception, env: MemoryEnv, caplog: pytest.LogCaptureFixture
) -> None:
    """The log whose flush failed refuses appends and keeps its recovery point; the reason is reported; other logs are synced."""
    bad, good = two_logs(env)
    fail_flushes_of(bad, error, env)
    flusher = Flusher(asyncio.get_running_loop())
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(60):
            await flusher.flushed([bad, good])
    assert str(error) in str(bad.write_failure)
    assert str(error) in caplog.text
    assert bad.recovery_point == 0
    assert good.write_failure is None
    assert good.recovery_point == good.log_end_offset == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_nothing_is_acknowledged_that_was_not_synced(
    error: Exception, wire: WireClient, broker: Broker, env: MemoryEnv
) -> None:
    """With flush.messages=1, no record whose flush failed is acknowledged, and the next is refused; other partitions continue."""
    await wire.create("t", 2, flush_messages="1")
    fail_flushes_of(broker.node.topics.log("t", 0), error, env)
    unsynced = await wire.produce("t", [b"unsure"])
    assert (unsynced.error_code, unsynced.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)
    assert (await wire.produce("t", [b"refused"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await wire.produce("t", [b"safe"], partition=1)).error_code == ErrorCode.NONE
    assert broker.node.topics.log("t", 1).recovery_point == 1


NOTHING_LOST: list[tuple[Operation, str, int]] = [
    ("create", "*/t-0/leader-epoch-checkpoint.tmp", errno.EMFILE),
    ("append", "*/t-0/leader-epoch-checkpoint.tmp", errno.ENOSPC),
    ("rename", "*/t-0/leader-epoch-checkpoint", errno.EIO),
    ("sync", "*/t-0/*.index", errno.ENFILE),
    ("append", "*/t-0/*.index", errno.ENOSPC),
]
"""Faults of a flush before its first fsync, or for want of a file descriptor."""


@pytest.mark.parametrize(("operation", "path", "code"), NOTHING_LOST)
async def test_a_flush_that_has_lost_nothing_is_made_good_for(
    operation: Operation,
    path: str,
    code: int,
    wire: WireClient,
    broker: Broker,
    env: MemoryEnv,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Records are not acknowledged while the fault lasts; the next flush syncs them all, without a restart. One line at ERROR."""
    await wire.create("t", 1, flush_messages="1", index_interval_bytes="0")
    log = broker.node.topics.log("t", 0)
    assert (await wire.produce("t", [b"first"])).error_code == ErrorCode.NONE
    log.become_leader(log.leader_epoch + 1)
    fault = env.fail(operation, path, code)
    for _ in range(2):
        unsynced = await wire.produce("t", [b"unsure"])
        assert unsynced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert (log.recovery_point, caplog.text.count("t-0: cannot be synced, the next flush tries again")) == (1, 1)
    fault.clear()
    assert (await wire.produce("t", [b"safe"])).error_code == ErrorCode.NONE
    assert log.recovery_point == log.log_end_offset == 4
    env.crash()
    assert env.file_size(f"{log.path}/{'0' * 20}.index") == 8 * 3
    assert LeaderEpochs.load(env, log.path).latest_epoch == log.leader_epoch


async def test_a_flush_for_which_there_is_no_thread_is_repeated(env: MemoryEnv) -> None:
    """It has not begun, so the next one does all its work, with the segments that were rolled."""
    log, _ = two_logs(env)
    log.roll()
    log.append_as_leader(batch(b"y"))
    flusher, loop = Flusher(asyncio.get_running_loop()), asyncio.get_running_loop()
    loop.set_default_executor(Exhausted())
    await flusher.flushed([log])
    assert has_failed(log)
    assert (log.write_failure, log.recovery_point) == (None, 0)
    loop.set_default_executor(ThreadPoolExecutor(1))
    await flusher.flushed([log])
    assert not has_failed(log)
    assert (log.recovery_point, log.unsynced.rolled) == (2, [])


@pytest.mark.parametrize("failing", ["__transaction_state", "t"])
async def test_an_end_of_a_transaction_is_acknowledged_when_a_later_flush_makes_good(
    failing: str, broker: Broker, wire: WireClient, env: MemoryEnv
) -> None:
    """The retry is answered once state and marker are on disk."""
    async with WireClient(broker.bootstrap_servers) as second:
        txn, again, state = await begun(broker, wire, second)
        log = state if failing != "t" else broker.node.topics.log("t", 0)
        log.become_leader(log.leader_epoch + 1)
        fault = env.fail("create", f"{log.path}/leader-epoch-checkpoint.tmp", errno.EMFILE)
        with pytest.raises(asyncio.IncompleteReadError):
            await txn.end(commit=True)
        fault.clear()
        assert await again.end(commit=True) == "NONE"
        assert log.recovery_point == log.log_end_offset


@pytest.mark.parametrize("error", [None, ERRORS[0]], ids=["synced", "failed"])
async def test_a_batch_sent_again_while_its_fsync_runs(
    error: OSError | None, wire: WireClient, broker: Broker, env: MemoryEnv
) -> None:
    """Both are answered together and equally, once the records are on disk, as in Kafka, which flushes inside the append; both
    connections end if the records cannot be synced. The fsync is requested during that of another log.
    """
    for topic in "tu":
        await wire.create(topic, 1, flush_messages="1")
    await broker.node.flusher.settled()
    log, other = broker.node.topics.log("t", 0), broker.node.topics.log("u", 0)
    address = broker.bootstrap_servers
    async with WireClient(address) as second, WireClient(address) as third:
        with held_disk([log, other], env) as disk:
            before = asyncio.create_task(third.produce("u", [b"o"]))
            await wait_until(disk.begun[other].is_set)
            send = {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0}
            answers = [asyncio.create_task(wire.produce("t", [b"x"], **send))]
            counts = broker.node.topic_metrics.topic("t")
            await wait_until(lambda: counts.messages_in == 1)
            disk.go_on(other)
            await wait_until(disk.begun[log].is_set)
            answers.append(asyncio.create_task(second.produce("t", [b"x"], **send)))
            await wait_until(lambda: counts.messages_in == 2)
            assert log.recovery_point == 0
            disk.go_on(log, error)
            for answer in answers:
                if error is None:
                    result = await answer
                    assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)
                else:
                    with pytest.raises(asyncio.IncompleteReadError):
                        await answer
        assert (await before).error_code == ErrorCode.NONE


async def handled(broker: Broker, api: str, request: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Pass a request to the broker, and let it wait."""
    with broker.faults.add(api, hold=True) as fault:
        task = asyncio.create_task(request)
        await fault.until_fired()
    for _ in range(20):
        await asyncio.sleep(0)
    return task


async def begun(broker: Broker, wire: WireClient, second: WireClient) -> tuple[TxnProducer, TxnProducer, Log]:
    """Return a producer in a transaction, on two connections, and the log of its state, which is synced before each answer."""
    txn, again = TxnProducer(wire, "id"), TxnProducer(second, "id")
    await txn.wait_for_coordinator()
    await wire.create("t", 2, flush_messages="1")
    state = broker.node.topics.log("__transaction_state", broker.services.transactions().store.topic.partition_of("id"))
    state.update_config(dataclasses.replace(state.config, flush_messages=1))
    assert await txn.init() == "NONE"
    again.producer_id, again.epoch = txn.producer_id, txn.epoch
    assert await txn.add(("t", 0)) == ["NONE"]
    assert await txn.produce("t", 0) == "NONE"
    await broker.node.flusher.settled()
    return txn, again, state


async def ended(txn: TxnProducer) -> str:
    """End the transaction."""
    return await txn.end(commit=True)


async def grown(txn: TxnProducer) -> str:
    """Add a partition to the transaction."""
    (code,) = await txn.add(("t", 1))
    return code


@pytest.mark.parametrize(
    ("api", "ask", "slow"),
    [
        ("EndTxn", ended, "__transaction_state"),
        ("EndTxn", ended, "t"),
        ("AddPartitionsToTxn", grown, "__transaction_state"),
    ],
)
async def test_a_request_repeated_during_the_sync_waits_for_it(
    api: str,
    ask: Callable[[TxnProducer], Coroutine[Any, Any, str]],
    slow: str,
    broker: Broker,
    wire: WireClient,
    env: MemoryEnv,
) -> None:
    """A repeated request is answered once all is on disk, whether state or marker is delayed."""
    async with WireClient(broker.bootstrap_servers) as second:
        txn, again, state = await begun(broker, wire, second)
        log, other = state, broker.node.topics.log("t", 0)
        if slow == "t":
            log, other = other, log
        with held_disk([log, other], env) as disk:
            disk.go_on(other)
            answers = [await handled(broker, api, ask(txn))]
            await wait_until(disk.begun[log].is_set)
            answers.append(await handled(broker, api, ask(again)))
            assert not any(answer.done() for answer in answers)
            disk.go_on(log)
            assert [await answer for answer in answers] == ["NONE", "NONE"]
        assert log.recovery_point == log.log_end_offset


@pytest.mark.parametrize("failing", ["__transaction_state", "t"])
async def test_an_end_of_a_transaction_that_could_not_be_synced(
    failing: str, broker: Broker, wire: WireClient, env: MemoryEnv
) -> None:
    """A retry is not acknowledged either, whether state or marker is not on disk."""
    async with WireClient(broker.bootstrap_servers) as second:
        txn, again, state = await begun(broker, wire, second)
        fail_flushes_of(state if failing != "t" else broker.node.topics.log("t", 0), ERRORS[0], env)
        for one in (txn, again):
            with pytest.raises(asyncio.IncompleteReadError):
                await one.end(commit=True)


async def test_appends_of_timers_hold_up_no_request(broker: Broker, wire: WireClient, env: MemoryEnv) -> None:
    """No answer depends on it: the next request is answered at once, and its connection stays if the flush fails."""
    await wire.create("t", 1, flush_messages="1")
    await broker.node.flusher.settled()
    log = broker.node.topics.log("t", 0)
    with held_disk([log], env) as disk:
        log.append_as_leader(batch(b"x"))
        broker.node.flusher.owe(log)
        assert log in broker.node.flusher.owed
        assert not (await wire.call(METADATA, 12, {"topics": []})).topics
        disk.go_on(log, OSError("Input/output error"))
        await broker.node.flusher.settled()
    assert log.write_failure is not None
    assert not (await wire.call(METADATA, 12, {"topics": []})).topics


async def test_a_waiter_for_a_flush_in_progress_waits_for_no_other(env: MemoryEnv) -> None:
    """A flush that covers the whole log suffices; later appends need another one."""
    log, _ = two_logs(env, flush_messages=1)
    flusher = Flusher(asyncio.get_running_loop())
    log.on_flush_due = flusher.request
    with held_disk([log], env) as disk:
        flusher.request(log)
        await wait_until(disk.begun[log].is_set)
        covered = asyncio.create_task(flusher.flushed([log]))
        await asyncio.sleep(0)
        assert log not in flusher._due
        log.append_as_leader(batch(b"y"))
        uncovered = flusher.pending(log)
        assert uncovered is not None
        assert log in flusher._due
        disk.go_on(log)
        async with asyncio.timeout(60):
            await covered
            assert log.recovery_point >= 1  # the second one may be over, too
            await uncovered
    assert log.recovery_point == log.log_end_offset == 2
    assert flusher.pending(log) is None


async def test_a_cancelled_waiter_ends_no_flush(env: MemoryEnv) -> None:
    """A cancelled waiter ends neither others' flushes nor the flusher."""
    first, second = two_logs(env, flush_messages=1)
    flusher = Flusher(asyncio.get_running_loop())
    gone, stays = flusher.pending(first), flusher.pending(first)
    assert gone is not None
    assert stays is not None
    flusher.request(second)
    gone.cancel()
    async with asyncio.timeout(60):
        await stays
        await flusher.settled()
    assert first.recovery_point == second.recovery_point == 1


async def test_a_flusher_that_is_cancelled_vouches_for_nothing(env: MemoryEnv) -> None:
    """The flush in progress has failed; the waiting ones run at the next request."""
    first, second = two_logs(env)
    flusher = Flusher(asyncio.get_running_loop())
    running, waiting = (asyncio.create_task(flusher.flushed([log])) for log in (first, second))
    with held_disk([first], env) as disk:
        await wait_until(disk.begun[first].is_set)
        assert flusher._task is not None
        flusher._task.cancel()
        async with asyncio.timeout(60):
            await running
            assert first.write_failure is not None
            assert not waiting.done()
            flusher.request(second)
            await waiting
    assert second.write_failure is None
    assert second.recovery_point == second.log_end_offset
