"""Brokers go down and come back, lag and lead on command; each operation reports what it changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.faults.spec import FaultError
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible, OperationError
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.clocks import SettableClock, SystemClock
from tests.broker.brokers.several import create, leaders, several
from tests.broker.http_asking import ask
from tests.broker.running import running
from tests.broker.wire import FETCH, METADATA, OFFSET_FOR_LEADER_EPOCH, WireClient, fetch_fields
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

EACH = ([1, 2, 3], [2, 3, 1], [3, 1, 2])


@pytest.fixture
async def three() -> AsyncIterator[tuple[Broker, list[WireClient]]]:
    """Three brokers, a connection to each, and a topic of which each broker leads one partition."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=EACH)
        yield broker, wires


def address(broker: Broker, broker_id: int) -> str:
    """Return the address of one of the brokers."""
    return next(one.address for one in broker.addresses.kafka if one.broker + 1 == broker_id)


async def fetched(wire: WireClient, offset: int = 0, **fields: Any) -> tuple[int, int, bool]:
    """Return the error, the high watermark and whether there are records, of partition 0."""
    response = await wire.call(FETCH, 11, fetch_fields("t", offset, **fields))
    partition = response.responses[0].partitions[0]
    return partition.error_code, partition.high_watermark, bool(partition.records)


async def test_a_broker_that_goes_down_hands_over_and_cuts_its_clients(three: tuple[Broker, list[WireClient]]) -> None:
    """The report names the moved leader and counts the cut connections; the broker's port refuses new ones until the broker is
    back on it.
    """
    broker, wires = three
    report = (await broker.brokers.down(2)).to_fields()
    assert report == {
        "moved": [{"topic": "t", "partition": 1, "old_leader": 2, "new_leader": 3, "leader_epoch": 1}],
        "changed_isr_count": 3,
        "cut_connection_count": 1,
    }
    assert await wires[1].is_closed()
    with pytest.raises(ConnectionRefusedError):
        await WireClient(address(broker, 2)).__aenter__()
    back = await broker.brokers.up(2)
    assert (back.moved, back.changed_isr_count) == ((), 3)
    async with WireClient(address(broker, 2)) as again:
        assert await leaders(again) == [(1, 0, [1, 3, 2]), (3, 1, [3, 1, 2]), (3, 0, [3, 1, 2])]


async def test_a_hard_down_leaves_clients_waiting(three: tuple[Broker, list[WireClient]]) -> None:
    """Open connections, new ones and requests in progress get no answer. When it is back, the old connections are cut."""
    broker, wires = three
    wires[1].send(FETCH, 11, fetch_fields("t", 0, partition=1, max_wait_ms=60_000))
    await wait_until(lambda: len(broker.node.purgatory) == 1)
    assert (await broker.brokers.down(2, hard=True)).cut_connection_count == 1
    async with WireClient(address(broker, 2)) as late:
        late.send(METADATA, 12, {"topics": []})
        wires[1].send(METADATA, 12, {"topics": []})
        assert (await leaders(wires[0]))[1] == (3, 1, [3, 1])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wires[1].reader.read(1)
        with pytest.raises(NotPossible, match="broker 2 is silent already"):
            await broker.brokers.down(2)
        assert (await broker.brokers.up(2)).cut_connection_count == 1
        assert await wires[1].is_closed()
        assert (await late.receive(METADATA, 12)).brokers


async def test_the_broker_stops_while_clients_wait_for_a_silent_one(three: tuple[Broker, list[WireClient]]) -> None:
    """Their connections are cut at once."""
    broker, wires = three
    await broker.brokers.down(3, hard=True)
    await broker.stop()
    assert await wires[2].is_closed()


async def test_a_broker_is_in_sync_again_after_its_lag() -> None:
    """The lag passes on the broker's clock; until then the broker follows, and cannot lead."""
    clock = SettableClock(SystemClock().now_ms())
    async with several(env=MemoryEnv(clock)) as (broker, wires):
        await create(wires[0], replicas=EACH)
        await broker.brokers.down(2)
        await broker.brokers.up(2, lag="30s")
        assert [one.until_in_sync_ms for one in await broker.brokers.list()] == [0, 30_000, 0]
        assert (await leaders(wires[0]))[0] == (1, 0, [1, 3])
        with pytest.raises(NotPossible, match=r"broker 2 cannot lead t-0, because it is not in sync.*`unclean`"):
            await broker.brokers.move("t", 0, 2)
        await broker.clock.advance("29s")
        assert (await leaders(wires[0]))[0] == (1, 0, [1, 3])
        await broker.clock.advance("1s")
        assert (await leaders(wires[0]))[0] == (1, 0, [1, 3, 2])
        assert not any(one.until_in_sync_ms for one in await broker.brokers.list())


async def test_a_broker_that_goes_down_again_does_not_catch_up() -> None:
    """The lag of an earlier start is forgotten."""
    clock = SettableClock(SystemClock().now_ms())
    async with several(env=MemoryEnv(clock)) as (broker, wires):
        await create(wires[0], replicas=EACH)
        await broker.brokers.down(2)
        await broker.brokers.up(2, lag="30s")
        await broker.brokers.down(2)
        assert await broker.clock.advance("1h")
        assert (await leaders(wires[0]))[0] == (1, 0, [1, 3])


async def test_a_fenced_broker_answers_that_it_leads_nothing(three: tuple[Broker, list[WireClient]]) -> None:
    """A fenced broker is in no ISR, keeps its connections, and can still go down."""
    broker, wires = three
    assert len((await broker.brokers.fence(2)).moved) == 1
    assert (await wires[1].produce("t", [b"v"], partition=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [one.state for one in (await broker.brokers.list()).brokers] == ["up", "fenced", "up"]
    with pytest.raises(NotPossible, match="broker 2 is down already"):
        await broker.brokers.fence(2)
    assert (await broker.brokers.down(2)).moved == ()
    assert [one.state for one in (await broker.brokers.list()).brokers] == ["up", "down", "up"]
    await broker.brokers.up(2)


async def test_a_leader_moves_to_an_in_sync_replica(three: tuple[Broker, list[WireClient]]) -> None:
    """The report has old and new leader and the epoch; the old one refuses at once."""
    broker, wires = three
    (move,) = (await broker.brokers.move("t", 0, 3)).moved
    assert move == ("t", 0, 1, 3, 1)
    assert (await wires[0].produce("t", [b"v"])).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await wires[2].produce("t", [b"v"])).error_code == 0


async def test_leaders_are_shuffled(three: tuple[Broker, list[WireClient]]) -> None:
    """Each partition gets another leader; a seed repeats the choice."""
    broker, _ = three
    first = (await broker.brokers.shuffle(seed=5)).moved
    assert [(one.topic, one.partition) for one in first] == [("t", 0), ("t", 1), ("t", 2)]
    assert all(one.old_leader != one.new_leader for one in first)
    for one in first:
        await broker.brokers.move("t", one.partition, one.old_leader)
    again = (await broker.brokers.shuffle("t", seed=5)).moved
    assert [one.new_leader for one in again] == [one.new_leader for one in first]


async def test_a_partition_without_a_live_replica_heals() -> None:
    """All brokers may go down; the last one in sync leads when it is back."""
    async with several() as (broker, wires):
        await create(wires[0], replicas=[[1, 2]])
        await broker.brokers.down(1)
        (move,) = (await broker.brokers.down(2)).moved
        assert (move.old_leader, move.new_leader) == (2, -1)
        assert (await leaders(wires[2]))[0][0] == -1
        await broker.brokers.down(3)
        (move,) = (await broker.brokers.up(2)).moved
        assert (move.old_leader, move.new_leader, move.leader_epoch) == (-1, 2, 3)
        async with WireClient(address(broker, 2)) as wire:
            assert (await wire.produce("t", [b"v"])).error_code == 0


async def test_a_follower_lags_in_records(three: tuple[Broker, list[WireClient]]) -> None:
    """The follower's high watermark is that many records behind the leader's; where it leads itself, nothing lags."""
    broker, wires = three
    for _ in range(5):
        await wires[0].produce("t", [b"v"])
    assert (await broker.brokers.lag(2, "2 records")).lag == "2 records"
    assert await fetched(wires[1]) == (0, 3, True)
    assert await fetched(wires[1], 3) == (0, 3, False)
    assert await fetched(wires[0]) == (0, 5, True)
    await broker.brokers.move("t", 0, 2)
    assert await fetched(wires[1]) == (0, 5, True)
    assert (await broker.brokers.lag(2, 0)).lag is None


async def test_a_follower_lags_in_time() -> None:
    """The follower shows a record after that time on the broker's clock, and then wakes a fetch that waits for it."""
    clock = SettableClock(SystemClock().now_ms())
    async with several(env=MemoryEnv(clock)) as (broker, wires):
        await create(wires[0], replicas=EACH)
        await wires[0].produce("t", [b"before"])
        await broker.brokers.lag(2, "500ms")
        assert await fetched(wires[1]) == (0, 1, True)
        await wires[0].produce("t", [b"v"])
        wires[1].send(FETCH, 11, fetch_fields("t", 1, max_wait_ms=60_000))
        await broker.clock.advance("499ms")
        assert await fetched(wires[2]) == (0, 2, True)
        assert len(broker.node.purgatory) == 1
        await broker.clock.advance("10ms")
        assert (await wires[1].receive(FETCH, 11)).responses[0].partitions[0].high_watermark == 2


async def test_what_is_remembered_of_a_lag_is_bounded() -> None:
    """However many records are written; what was written during a step counts from its end on."""
    clock = SettableClock(SystemClock().now_ms())
    async with several(env=MemoryEnv(clock)) as (broker, wires):
        await create(wires[0], replicas=EACH)
        await broker.brokers.lag(2, "6400ms")
        lags = broker.node.topics.brokers.lags  # type: ignore[union-attr]
        for _ in range(300):
            await wires[0].produce("t", [b"v"])
            clock.advance_ms(50)
        assert max(map(len, lags._ends.values())) < 70
        assert (await fetched(wires[1]))[1] in range(300 - 132, 300 - 126)


async def test_the_end_of_a_lag_wakes_a_waiting_fetch(three: tuple[Broker, list[WireClient]]) -> None:
    """What was held back is sent at once."""
    broker, wires = three
    await broker.brokers.lag(2, "1h")
    await wires[0].produce("t", [b"v"])
    wires[1].send(FETCH, 11, fetch_fields("t", 0, max_wait_ms=60_000))
    await wait_until(lambda: len(broker.node.purgatory) == 1)
    await broker.brokers.lag(2, "0")
    assert (await wires[1].receive(FETCH, 11)).responses[0].partitions[0].high_watermark == 1


async def test_a_slow_broker_delays_its_requests_only(three: tuple[Broker, list[WireClient]]) -> None:
    """The delay is a fault with the broker's id; another delay replaces it, and 0 removes it."""
    broker, wires = three
    assert (await broker.brokers.slow(2, "5m")).delay_ms == 300_000
    correlation_id = wires[1].send(METADATA, 12, {"topics": []})
    await leaders(wires[0])
    (fault,) = broker.faults.list()
    assert (fault.spec.broker, fault.spec.delay_ms) == (2, 300_000)
    await fault.until_fired()
    assert (await broker.brokers.slow(2, 0)).delay_ms == 0
    assert (await wires[1].receive(METADATA, 12, correlation_id)).brokers
    assert broker.faults.list() == []


async def test_a_fault_applies_to_one_broker(three: tuple[Broker, list[WireClient]]) -> None:
    """Any fault may name a broker; one that does not exist is refused, since the fault would never fire."""
    broker, wires = three
    with pytest.raises(FaultError, match="there is no broker 9: expected one of 1, 2, 3"):
        broker.faults.add(api="Produce", broker=9, error="NOT_LEADER_OR_FOLLOWER")
    broker.faults.add(api="Produce", broker=1, error="NOT_LEADER_OR_FOLLOWER")
    assert (await wires[0].produce("t", [b"v"])).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await wires[1].produce("t", [b"v"], partition=1)).error_code == 0


async def test_an_unclean_leader_lacks_the_end(three: tuple[Broker, list[WireClient]]) -> None:
    """Records from its end on are gone; who has read further learns where the logs diverge."""
    broker, wires = three
    for number in range(5):
        await wires[0].produce("t", [b"%d" % number])
    report = await broker.brokers.unclean("t", 0, 2, 3)
    assert report.moved == (("t", 0, 1, 2, 1),)
    assert (report.end_offset, report.lost_record_count, report.changed_isr_count) == (3, 2, 1)
    assert (await wires[1].produce("t", [b"other"])).base_offset == 3
    assert (await leaders(wires[0]))[0] == (2, 1, [2, 1, 3])
    fields = fetch_fields("t", 5, leader_epoch=1)
    fields["topics"][0]["partitions"][0]["last_fetched_epoch"] = 0
    partition = (await wires[1].call(FETCH, 12, fields)).responses[0].partitions[0]
    assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (0, 3)
    asked = {"topics": [{"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": 1, "leader_epoch": 0}]}]}
    end = (await wires[1].call(OFFSET_FOR_LEADER_EPOCH, 4, asked)).topics[0].partitions[0]
    assert (end.leader_epoch, end.end_offset) == (0, 3)


async def test_an_unclean_leader_lacks_whole_batches(three: tuple[Broker, list[WireClient]]) -> None:
    """Whole batches are lost, as when Kafka truncates; the report has the end of the log and the number of lost records."""
    broker, wires = three
    await wires[0].produce("t", [b"a"])
    await wires[0].produce("t", [b"b", b"c", b"d"])
    report = (await broker.brokers.unclean("t", 0, 2, 3)).to_fields()
    assert (report["end_offset"], report["lost_record_count"]) == (1, 3)
    assert await fetched(wires[1]) == (0, 1, True)


async def test_what_an_unclean_leader_lacks_does_not_return(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does a killed process find its end missing: the checkpoints are written before the answer."""
    env = MemoryEnv()
    async with several(env=env) as (broker, wires):
        await create(wires[0], replicas=EACH, flush_messages="1")
        for number in range(5):
            await wires[0].produce("t", [b"%d" % number])
        await broker.brokers.unclean("t", 0, 2, 3)
        killed = env.copy()
    caplog.clear()
    async with several(env=killed) as (broker, wires):
        assert (await leaders(wires[0]))[0][0] == 2
        assert await fetched(wires[1]) == (0, 3, True)
    assert "missing" not in caplog.text


@pytest.mark.parametrize(
    ("verb", "arguments", "kind", "text"),
    [
        ("down", (7,), NotFound, "there is no broker 7: expected one of 1, 2, 3"),
        ("up", (0,), NotFound, "there is no broker 0"),
        ("up", (1,), NotPossible, "broker 1 is up already"),
        ("fence", (9,), NotFound, "there is no broker 9"),
        ("lag", (9, "1s"), NotFound, "there is no broker 9"),
        ("slow", (9, "1s"), NotFound, "there is no broker 9"),
        ("lag", (2, "soon"), BadArgument, "expected a duration such as 500ms, a number such as 100 records, or 0"),
        ("lag", (2, 100), BadArgument, "'100' is not a lag: expected a duration such as 500ms"),
        ("lag", (2, "25h"), BadArgument, "lag: expected at most 24h"),
        ("slow", (2, "6m"), BadArgument, "expected 0 to 300 seconds"),
        ("move", ("t", 0, 1), NotPossible, "broker 1 leads t-0 already"),
        ("move", ("t", 0, 9), NotFound, "there is no broker 9"),
        ("move", ("t", 3, 1), NotFound, "topic 't' has no partition 3"),
        ("move", ("missing", 0, 1), NotFound, "there is no topic 'missing'"),
        ("move", ("__consumer_offsets", 0, 2), NotFound, "yet: the broker makes it with the first group"),
        ("shuffle", ("missing",), NotFound, "there is no topic 'missing'"),
        (
            "unclean",
            ("t", 0, 2, 4),
            BadArgument,
            "t-0 cannot end at offset 4: expected an offset from 0.* to 3, the end",
        ),
        ("unclean", ("t", 0, 9, 1), NotFound, "there is no broker 9"),
        ("unclean", ("t", 3, 1, 0), NotFound, "topic 't' has no partition 3"),
        ("unclean", ("missing", 0, 1, 0), NotFound, "there is no topic 'missing'"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused(
    three: tuple[Broker, list[WireClient]], verb: str, arguments: tuple[Any, ...], kind: type[OperationError], text: str
) -> None:
    """Impossible requests get an error that names what was expected; nothing changes."""
    broker, wires = three
    await wires[0].produce("t", [b"a", b"b", b"c"])
    with pytest.raises(kind, match=text):
        await getattr(broker.brokers, verb)(*arguments)
    assert [leader for leader, _, _ in await leaders(wires[0])] == [1, 2, 3]


async def test_an_operation_is_answered_however_long_it_takes() -> None:
    """A change that waits for another is not counted as the time of its connection, which ends silent peers after ten seconds."""
    async with several(diamant_http_listen="127.0.0.1:0") as (broker, _):
        await ask(broker, "GET", "/v1/brokers")
        assert broker.running.http is not None
        assert broker.running.http._serving is not None
        deadlines, now_s = broker.running.http._serving.server._deadlines, asyncio.get_running_loop().time()
        async with broker.services.brokers()._turn:
            asked = asyncio.ensure_future(ask(broker, "POST", "/v1/brokers/2/down", {}))
            await wait_until(lambda: any(one.when() > now_s + 200 for one in deadlines.values()))
        assert (await asked).status == 200


async def test_one_broker_has_none_to_take_down() -> None:
    """The error says how to start several."""
    async with running(MemoryEnv()) as (broker, _):
        with pytest.raises(NotPossible, match="this process has one broker: start it with --brokers 3"):
            await broker.brokers.down(1)
