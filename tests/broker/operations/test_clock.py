"""The manual clock: work that follows it, work that does not, and that all due work is done when a move ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.operation_errors import BadArgument, NotAllowed, TimedOut
from diamant.broker.operations.broker_state import broker_clock
from diamant.progress import Progress
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.manual_clock_file import MAX_TIME_MS
from diamant.storage.env.clocks import ManualClock, SettableClock, SystemClock
from tests.broker.compacted import produce, read
from tests.broker.groups.offsets.offset_requests import commit, find_coordinator, join
from tests.broker.groups.offsets.offset_requests import fetch as fetch_offset
from tests.broker.settling import run_when_settling
from tests.broker.transactions.txn_wire import TxnProducer, read_committed
from tests.broker.wire import FETCH, PRODUCE, WireClient, fetch_fields, produce_fields
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

SECOND_MS, HOUR_MS, DAY_MS = 1_000, 3_600_000, 86_400_000
START_MS = 1_800_000_000_000


@asynccontextmanager
async def frozen(**config: Any) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker in memory with a frozen clock, and a connection to it."""
    settings = {"transaction_state_log_num_partitions": 1, "offsets_topic_num_partitions": 1, **config}
    env = MemoryEnv(SettableClock(START_MS))
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data", **settings), env=env) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            yield broker, wire


def manual(path: Path, **config: Any) -> Broker:
    """Return a broker as with `--clock manual`."""
    return Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path, diamant_clock="manual", **config))


# -- whether it may be moved ---------------------------------------------------------------------------------------------


async def test_the_systems_clock_is_not_moved(tmp_path: Path) -> None:
    """Without the flag, every operation that would move it is refused with a text that names the flag; reading works."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)) as broker:
        assert broker.clock.state().kind == "system"
        assert not broker.clock.state().is_frozen
        for move in (
            broker.clock.advance(1),
            broker.clock.set(MAX_TIME_MS),
            broker.clock.freeze(),
            broker.clock.resume(),
        ):
            with pytest.raises(NotAllowed, match="--clock manual"):
                await move
        assert await broker.clock.settled() == []
        assert isinstance(broker.env.clock, SystemClock)


async def test_the_clock_moves_forward_only() -> None:
    """A move backwards, by an invalid duration, or beyond the year 9999 is refused, and the clock stays."""
    async with frozen() as (broker, _):
        for duration in (-1, "8", "d", "8 parsecs", "-8d", ""):
            with pytest.raises(BadArgument):
                await broker.clock.advance(duration)
        for time_ms in (START_MS - 1, 0, MAX_TIME_MS + 1):
            with pytest.raises(BadArgument):
                await broker.clock.set(time_ms)
        assert broker.clock.now_ms() == START_MS
        report = await broker.clock.set(START_MS)
        assert (report.from_ms, report.to_ms, report.problems) == (START_MS, START_MS, ())
        await broker.clock.advance("1d 2h30m 5s 7ms")
        assert broker.clock.now_ms() == START_MS + DAY_MS + 2 * HOUR_MS + 30 * 60_000 + 5_007


async def test_a_move_is_reported() -> None:
    """The report has start and end, and the progress is visible during the move."""
    async with frozen() as (broker, _):
        seen: list[dict[str, Any]] = []
        progress = Progress(lambda now: seen.append(now.to_fields()))
        report = await broker.clock.advance(DAY_MS, progress=progress)
        assert report.to_fields()["clock"]["now_ms"] == report.to_ms == START_MS + DAY_MS
        assert {"stage": "moving the clock", "done": 0, "total": DAY_MS, "unit": "ms"}.items() <= seen[0].items()
        assert (seen[-1]["done"], seen[-1]["total"]) == (DAY_MS, DAY_MS)


async def test_a_frozen_clock_stands_and_a_resumed_one_runs(tmp_path: Path) -> None:
    """A frozen clock moves only on request; a resumed one continues from its time, with real time."""
    async with manual(tmp_path) as broker:
        assert not broker.clock.state().is_frozen
        stood = (await broker.clock.freeze()).now_ms
        assert broker.clock.state().is_frozen
        assert broker.clock.now_ms() == stood
        await broker.clock.advance("8d")
        assert broker.clock.now_ms() == stood + 8 * DAY_MS
        assert not (await broker.clock.resume()).is_frozen
        await wait_until(lambda: broker.clock.now_ms() > stood + 8 * DAY_MS)
        assert broker.clock.now_ms() < stood + 8 * DAY_MS + HOUR_MS


async def test_moves_wait_for_each_other() -> None:
    """Two concurrent moves add up."""
    async with frozen() as (broker, _):
        await asyncio.gather(*(broker.clock.advance(DAY_MS) for _ in range(5)))
        assert broker.clock.now_ms() == START_MS + 5 * DAY_MS


def test_another_thread_and_another_loop_may_move_it(tmp_path: Path) -> None:
    """A broker in its own thread has its clock moved by `call`, or awaited in the caller's loop."""
    with manual(tmp_path) as broker:
        before_ms = broker.clock.now_ms()
        broker.call(broker.clock.freeze())
        broker.call(broker.clock.advance("1d"))
        asyncio.run(broker.awaited.clock.advance("1d"))
        assert before_ms + 2 * DAY_MS <= broker.clock.now_ms() < before_ms + 2 * DAY_MS + HOUR_MS


async def test_the_brokers_own_thread_must_not_wait_for_itself(tmp_path: Path) -> None:
    """`call` is refused there at once: it would deadlock."""
    async with manual(tmp_path) as broker:
        with pytest.raises(RuntimeError, match="await the call"):
            broker.call(broker.clock.advance(1))


async def test_a_frozen_broker_does_not_look_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With work due in a millisecond, it sleeps until the clock is moved."""
    async with manual(tmp_path) as broker, WireClient(broker.bootstrap_servers) as wire:
        await broker.clock.freeze()
        await wire.create("t", cleanup_policy="compact", max_compaction_lag_ms="1")
        await produce(wire, "t", "a=1", timestamp=broker.clock.now_ms())
        await broker.clock.settled()
        sleeps: list[float] = []
        loop = asyncio.get_running_loop()
        real = loop.call_later

        def call_later(delay: float, *arguments: Any, **named: Any) -> asyncio.TimerHandle:
            sleeps.append(delay)
            return real(delay, *arguments, **named)

        monkeypatch.setattr(loop, "call_later", call_later)
        broker.node.scheduler.poke()
        await broker.clock.settled()
        for _ in range(100):
            await asyncio.sleep(0)
        assert sleeps
        assert min(sleeps) > 60


# -- what follows it -----------------------------------------------------------------------------------------------------


async def test_a_move_stops_where_something_is_due() -> None:
    """Of eight days, a tombstone's round is due in the first and its horizon in the second: it is gone after the move."""
    async with frozen() as (broker, wire):
        lag: Any = {"max_compaction_lag_ms": str(HOUR_MS), "delete_retention_ms": str(DAY_MS)}
        await wire.create("t", cleanup_policy="compact", **lag)
        await produce(wire, "t", "a=1", "b=1", timestamp=START_MS)
        await produce(wire, "t", "a", timestamp=START_MS)
        await broker.clock.advance(DAY_MS)
        assert await read(wire, "t") == [(1, "b", "1"), (2, "a", "")]
        report = await broker.clock.advance(7 * DAY_MS)
        assert report.stops > 1
        assert await read(wire, "t") == [(1, "b", "1")]


async def test_mode_kafka_cleans_what_is_due_at_the_end_of_a_move() -> None:
    """Mode kafka has no known deadlines, but eligible logs are cleaned when the move returns."""
    async with frozen(diamant_cleaner_mode="kafka") as (broker, wire):
        lag = {"max_compaction_lag_ms": str(DAY_MS), "min_cleanable_dirty_ratio": "1", "segment_ms": "1000"}
        await wire.create("t", 1, **{"cleanup_policy": "compact", **lag})
        await produce(wire, "t", "a=1", "b=1", timestamp=START_MS)
        await produce(wire, "t", "a=2", timestamp=START_MS + 2_000)
        await produce(wire, "t", "c=1", timestamp=START_MS + 4_000)
        await broker.clock.advance(DAY_MS)
        assert [offset for offset, _, _ in await read(wire, "t")] == [0, 1, 2, 3]
        report = await broker.clock.advance(DAY_MS)
        assert report.stops == 1
        assert await read(wire, "t") == [(1, "b", "1"), (2, "a", "2"), (3, "c", "1")]


@pytest.mark.parametrize("mode", ["prompt", "kafka"])
async def test_retention_is_by_the_clock(mode: str) -> None:
    """The check interval does not delay retention: one millisecond before the time all records are there, then none.

    The files go file.delete.delay.ms later, before the move returns.
    """
    async with frozen(diamant_cleaner_mode=mode) as (broker, wire):
        await wire.create("t", retention_ms=str(DAY_MS), file_delete_delay_ms="60000")
        await produce(wire, "t", "a=1", timestamp=START_MS)
        await broker.clock.advance(DAY_MS)
        assert len(await read(wire, "t")) == 1
        await broker.clock.advance(1)
        log = broker.node.topics.log("t", 0)
        assert log.log_start_offset == 1
        for move_ms, is_there in ((59_999, True), (1, False)):
            await broker.clock.advance(move_ms)
            assert any(name.endswith(".deleted") for name in broker.env.list_dir(log.path)) == is_there


async def test_an_open_transaction_times_out() -> None:
    """At its timeout it is open, one millisecond later aborted, and records held by it can be cleaned and read."""
    async with frozen() as (broker, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        await wire.create("t", retention_ms="-1")
        await txn.wait_for_init(timeout_ms=30_000)
        assert await txn.produce("t", 0, version=12) == "NONE"
        log = broker.node.topics.log("t", 0)
        await broker.clock.advance(30_000)
        assert (await txn.describe()).state == "Ongoing"
        assert log.last_stable_offset == 0
        await broker.clock.advance(1)
        assert (await txn.describe()).state == "CompleteAbort"
        assert log.last_stable_offset == log.log_end_offset == 2
        assert await read_committed(wire, "t") == []


async def test_the_end_of_a_transaction_lets_the_cleaner_continue_in_the_same_move() -> None:
    """The move stops at the timeout: held records are cleaned then, and the horizon counts from there."""
    async with frozen() as (broker, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        lag: Any = {"max_compaction_lag_ms": "300000", "delete_retention_ms": str(DAY_MS)}
        await wire.create("t", cleanup_policy="compact", **lag)
        await txn.wait_for_init(timeout_ms=600_000)
        await produce(wire, "t", "a=1", "b=1", timestamp=START_MS)
        open_batch = build_batch(
            [Record(0, START_MS, b"c", b"open")],
            base_offset=0,
            producer_id=txn.producer_id,
            producer_epoch=txn.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        request = produce_fields("t", 0, bytes(open_batch)) | {"transactional_id": "id"}
        answer = await wire.call(PRODUCE, 12, request)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        await produce(wire, "t", "a", timestamp=START_MS)
        assert broker.node.topics.log("t", 0).last_stable_offset == 2
        await broker.clock.advance(3 * DAY_MS)
        assert [key for _, key, _ in await read(wire, "t")] == ["b"]


async def test_transactional_ids_expire() -> None:
    """An id is unknown transactional.id.expiration.ms after its last use."""
    async with frozen() as (broker, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        await txn.wait_for_init()
        limit_ms = broker.config.transactional_id_expiration_ms
        await broker.clock.advance(limit_ms - 1)
        assert "id" in broker.services.transactions().store.transactions
        await broker.clock.advance(1)
        assert broker.services.transactions().store.transactions == {}


async def test_committed_offsets_expire() -> None:
    """offsets.retention.minutes after a memberless group's commit it is gone, and not a millisecond earlier."""
    async with frozen(offsets_retention_minutes=60) as (broker, wire):
        await wire.create("t")
        await find_coordinator(wire)
        await broker.services.groups().loaded()
        assert await commit(wire, "g", {("t", 0): 5}) == [ErrorCode.NONE]
        await broker.clock.advance(HOUR_MS - 1)
        assert "g" in broker.services.groups().groups
        assert await fetch_offset(wire, "g", {"t": [0]})
        await broker.clock.advance(1)
        assert "g" not in broker.services.groups().groups


async def test_producers_expire() -> None:
    """A producer's state is dropped producer.id.expiration.ms after its last batch."""
    async with frozen() as (broker, wire):
        txn = TxnProducer(wire, "id")
        await txn.wait_for_coordinator()
        await wire.create("t", retention_ms="-1")
        await txn.wait_for_init()
        assert await txn.produce("t", 0, version=12) == "NONE"
        assert await txn.end(commit=True, version=5) == "NONE"
        producers = broker.node.topics.log("t", 0).producers
        await broker.clock.advance(broker.config.producer_id_expiration_ms - 1)
        assert producers.producer_count == 1
        await broker.clock.advance(1)
        assert producers.producer_count == 0


async def test_log_append_time_is_the_clocks() -> None:
    """Records of a LogAppendTime topic get the clock's time."""
    async with frozen() as (broker, wire):
        await wire.create("t", message_timestamp_type="LogAppendTime")
        await broker.clock.advance("8d")
        await produce(wire, "t", "a=1", timestamp=0)
        assert broker.node.topics.log("t", 0).active.max_timestamp == START_MS + 8 * DAY_MS


# -- what does not -------------------------------------------------------------------------------------------------------


async def test_members_survive_eight_days() -> None:
    """Sessions use real time: the group keeps its member."""
    async with frozen() as (broker, wire):
        await wire.create("t")
        await find_coordinator(wire)
        await broker.services.groups().loaded()
        member = await join(wire, "g")
        await broker.clock.advance("8d")
        group = broker.services.groups().groups["g"].classic
        assert group is not None
        assert member.member_id in group.members


async def test_a_fetch_that_waits_continues_waiting() -> None:
    """The fetch has a minute of real time: eight days of the clock do not answer it, a record does."""
    async with frozen() as (broker, wire):
        await wire.create("t")
        async with WireClient(broker.bootstrap_servers) as reader:
            correlation_id = reader.send(FETCH, 11, fetch_fields("t", 0, max_wait_ms=60_000))
            answer = asyncio.ensure_future(reader.receive(FETCH, 11, correlation_id))
            await wait_until(lambda: len(broker.node.purgatory) == 1)
            await broker.clock.advance("8d")
            assert len(broker.node.purgatory) == 1
            await produce(wire, "t", "a=1", timestamp=broker.clock.now_ms())
            assert (await answer).responses[0].partitions[0].high_watermark == 1


async def test_a_group_that_ends_on_the_way_expires_on_the_way() -> None:
    """With `sessions`, one move removes its silent member in the first minutes, so its offsets are a day old at the end."""
    async with frozen(offsets_retention_minutes=24 * 60) as (broker, wire):
        await wire.create("t")
        await find_coordinator(wire)
        await broker.services.groups().loaded()
        member = await join(wire, "g")
        assert await commit(wire, "g", {("t", 0): 5}, member=member) == [ErrorCode.NONE]
        await broker.clock.advance("2d", sessions=True)
        assert "g" not in broker.services.groups().groups


async def test_producers_stamps_are_bound_by_the_later_clock(tmp_path: Path) -> None:
    """If the clock is behind real time, present timestamps are still accepted; if ahead, the clock is the bound."""
    async with manual(tmp_path) as broker, WireClient(broker.bootstrap_servers) as wire:
        await broker.clock.freeze()
        broker.env.clock = ManualClock(START_MS - 10_000 * DAY_MS, is_frozen=True)
        await wire.create("t", message_timestamp_after_max_ms="60000")
        now_ms = SystemClock().now_ms()
        assert (await wire.produce("t", [b"now"], timestamp=now_ms)).error_code == ErrorCode.NONE
        refused = await wire.produce("t", [b"ahead"], timestamp=now_ms + HOUR_MS)
        assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
        broker.env.clock = ManualClock(now_ms + DAY_MS, is_frozen=True)
        for log in broker.node.directory.logs.values():
            assert log.env is broker.env
        assert (await wire.produce("t", [b"ahead"], timestamp=now_ms + DAY_MS)).error_code == ErrorCode.NONE


# -- when it does not go well --------------------------------------------------------------------------------------------


async def test_a_job_that_fails_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The move completes, the report names the job, the log has the reason."""
    async with frozen() as (broker, wire):
        await broker.clock.advance(0)
        await wire.create("t")
        await wire.produce("t", [b"a"], timestamp=START_MS)
        assert isinstance(broker.env, MemoryEnv)
        fault = broker.env.fail("rename", "/data/replication-offset-checkpoint", errno.ENOSPC)
        report = await broker.clock.advance("8d")
        assert report.problems == ("checkpoints",)
        assert broker.clock.now_ms() == START_MS + 8 * DAY_MS
        fault.clear()
    assert "No space left" in caplog.text


async def test_a_move_ends_in_time(tmp_path: Path) -> None:
    """If due work exceeds the timeout, TimedOut is raised; the clock keeps the time reached, in its file, too."""
    async with manual(tmp_path) as broker:
        await broker.clock.freeze()
        before_ms = broker.clock.now_ms()
        opened = asyncio.Event()
        run_when_settling(broker.node.scheduler, "slow", opened.wait)
        with pytest.raises(TimedOut, match="not done within 0\\.02 s"):
            await broker.clock.advance("8d", timeout=0.02)
        assert broker.clock.now_ms() == before_ms
        assert f"now.ms={before_ms}\n" in (tmp_path / "diamant-clock").read_text()
        opened.set()
        await broker.clock.advance("8d")
        assert broker.clock.now_ms() == before_ms + 8 * DAY_MS


async def test_deadlines_without_end_do_not_hold_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the most stops on the way it moves straight to the end."""
    async with frozen() as (broker, _):
        monkeypatch.setattr(
            type(broker.services.cleaning), "next_deadline_ms", property(lambda _: broker.clock.now_ms() + 1)
        )
        report = await broker.clock.advance("8d")
        assert report.stops == broker_clock.MAX_STOPS + 1
        assert broker.clock.now_ms() == START_MS + 8 * DAY_MS


async def test_a_stop_ends_a_move() -> None:
    """A broker stopped during a move stops; the waiting caller is cancelled."""
    async with frozen() as (broker, wire):
        await wire.create("t", cleanup_policy="compact")
        await broker.services.cleaning.service()
        begun, opened = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            begun.set()
            await opened.wait()

        run_when_settling(broker.node.scheduler, "slow", hang)
        move = asyncio.ensure_future(broker.clock.advance("8d"))
        await begun.wait()
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            await move
        opened.set()


# -- restarts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_a_clock_continues_after_a_restart(tmp_path: Path, *, is_frozen: bool) -> None:
    """A running clock keeps its lead over real time, and is at its last time or later; a frozen clock stands."""
    async with manual(tmp_path) as broker:
        if is_frozen:
            await broker.clock.freeze()
        await broker.clock.advance("8d")
        last_ms = broker.clock.now_ms()
    async with manual(tmp_path) as broker:
        assert last_ms <= broker.clock.now_ms() < last_ms + (1 if is_frozen else HOUR_MS)
        assert broker.clock.state().is_frozen == is_frozen


async def test_time_does_not_go_back_after_a_crash() -> None:
    """The file is durable before the clock moves: a power loss during a move cannot take time back."""
    env = MemoryEnv(SystemClock())
    config = BrokerConfig(listen="127.0.0.1:0", data_dir="/data", diamant_clock="manual")
    async with Broker(config, env=env) as broker:
        await broker.clock.freeze()
        await broker.clock.advance("8d")
        last_ms = broker.clock.now_ms()
        crashed = env.copy(SystemClock())
        crashed.crash()
    async with Broker(config, env=crashed) as broker:
        assert broker.clock.now_ms() == last_ms


async def test_a_broker_without_the_flag_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory used with a manual clock is opened with the system's, with a warning; the file is kept."""
    async with manual(tmp_path) as broker:
        await broker.clock.advance("8d")
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)) as broker:
        assert broker.clock.state().kind == "system"
    assert any("manual clock" in warning for warning in caplog.messages)
    assert (tmp_path / "diamant-clock").exists()


@pytest.mark.parametrize(
    "text", ["", "version=1\n", "now.ms=x", "\xff\xfe", "version=0\nnow.ms=-5\nahead.ms=0\nis.frozen=true"]
)
async def test_a_broken_file_keeps_the_broker_from_starting(tmp_path: Path, text: str) -> None:
    """The time is unknown: the error names the file, and the directory is released."""
    (tmp_path / "diamant-clock").write_text(text)
    with pytest.raises(CannotStart, match="diamant-clock"):
        await manual(tmp_path).start()
    (tmp_path / "diamant-clock").unlink()
    async with manual(tmp_path) as broker:
        assert abs(broker.clock.now_ms() - SystemClock().now_ms()) < HOUR_MS
