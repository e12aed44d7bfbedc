"""The operations on the brokers of one process: `broker.brokers`.

    report = await broker.brokers.down(2)      # its clients are cut off, its leaders have moved
    await broker.brokers.up(2, lag="30s")      # it answers, and is in sync after 30 s on the broker's clock

When an operation returns, its change is complete and known to all brokers of the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from diamant.broker.brokers.lags import FollowerLag
from diamant.broker.brokers.membership import catch_up, in_turns, set_down, set_up, steps
from diamant.broker.brokers.table import BrokerTable, Changes, PartitionCounts
from diamant.broker.node.scheduler import ScheduledTask
from diamant.broker.operation_errors import BadArgument, NotPossible
from diamant.broker.operations.broker_state.running_requests import NoArguments
from diamant.broker.operations.brokers.broker_reports import (
    BrokersReport,
    BrokerState,
    LeaderReport,
    OneBroker,
    UncleanReport,
)
from diamant.broker.operations.brokers.broker_requests import (
    DownRequest,
    FenceRequest,
    LagRequest,
    MoveRequest,
    ShuffleRequest,
    SlowRequest,
    UncleanRequest,
    UpRequest,
)
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.duration import parse_duration_ms
from diamant.progress import Progress
from diamant.protocol.errors import KafkaError
from diamant.protocol.kraft.records import PartitionChangeRecord
from diamant.storage.log.log import Log
from diamant.storage.recovery.tail_removal import remove_tail

if TYPE_CHECKING:
    from diamant.broker.brokers.ports import BrokerPorts
    from diamant.broker.node.housekeeping import Housekeeping
    from diamant.broker.node.node import Node

MAX_LAG_MS = 24 * 3_600_000
"""The longest lag that a follower may have."""


class Delay(Protocol):
    """A delay that is applied to the requests to a broker while `is_installed`."""

    is_installed: bool

    def remove(self) -> None:
        """End the delay. Does nothing if it has already ended."""


class Delays(Protocol):
    """The component that delays requests to a broker."""

    def add(self, *, broker: int, delay_ms: int) -> Delay: ...


class Brokers:
    """The brokers of this process. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        ports: BrokerPorts,
        delays: Callable[[], Delays],
        housekeeping: Housekeeping,
        is_erasing: Callable[[], bool],
    ) -> None:
        self._node = node
        self._ports = ports
        self._delays = delays
        self._housekeeping = housekeeping
        self._is_erasing = is_erasing
        self._slow: dict[int, tuple[int, Delay]] = {}
        self._turn = asyncio.Lock()
        """A lock, so that changes of many partitions run one at a time."""
        self._in_sync_ms: dict[int, int] = {}
        """For each broker that is up but still catching up, the time on the clock at which it will be in sync."""
        add = node.scheduler.add
        add(
            ScheduledTask("brokers that catch up", lambda: min(self._in_sync_ms.values(), default=None), self._catch_up)
        )
        if node.topics.brokers is not None:
            add(ScheduledTask("followers that lag", node.topics.brokers.lags.due_ms, self._wake_lagging))

    async def list(self, _request: NoArguments, _: Progress) -> BrokersReport:
        """Return the state of each broker."""
        counts = self._table.counts()
        return BrokersReport(tuple(self._one(broker_id, counts) for broker_id in self._table.broker_ids))

    async def down(self, request: DownRequest, _: Progress) -> LeaderReport:
        """Take a broker down: move its leaders and cut off its clients. Return the changes. Raises NotFound, NotPossible."""
        table, broker_id = self._table, request.broker
        async with self._turn:
            state = self._state(broker_id)
            if state in ("down", "silent"):
                raise NotPossible(f"broker {broker_id} is {state} already")
            self._in_sync_ms.pop(broker_id, None)
            changes = await in_turns(set_down(table, broker_id)) if state == "up" else ()
            cut = self._ports.silence(broker_id) if request.hard else self._ports.close(broker_id)
        return await self._report(*changes, cut_connection_count=cut)

    async def up(self, request: UpRequest, _: Progress) -> LeaderReport:
        """Bring a broker back; `lag` is the time until it is in sync. Return the changes. Raises NotFound, NotPossible."""
        table, broker_id = self._table, request.broker
        async with self._turn:
            changes = await in_turns(set_up(table, broker_id))
            if request.lag:
                self._in_sync_ms[broker_id] = self._node.env.clock.now_ms() + int(request.lag * 1000)
                self._node.scheduler.poke()
            else:
                changes += await in_turns(catch_up(table, broker_id))
            cut = self._ports.open(broker_id)
        return await self._report(*changes, cut_connection_count=cut)

    async def fence(self, request: FenceRequest, _: Progress) -> LeaderReport:
        """Fence a broker, which still answers but leads nothing; return the changes. Raises NotFound, NotPossible."""
        async with self._turn:
            self._in_sync_ms.pop(request.broker, None)
            changes = await in_turns(set_down(self._table, request.broker))
        return await self._report(*changes)

    async def move(self, request: MoveRequest, _: Progress) -> LeaderReport:
        """Make an in-sync replica the leader of a partition; return the changes. Raises NotFound, NotPossible."""
        return await self._report(self._table.move_leader(request.topic, request.partition, request.broker))

    async def shuffle(self, request: ShuffleRequest, _: Progress) -> LeaderReport:
        """Move each partition's leader to another in-sync replica, if there is one; return the changes. Raises NotFound."""
        table, choice, name = self._table, random.Random(request.seed), request.topic
        if name is not None:
            table.partition(name, 0)
        async with self._turn:
            return await self._report(*await in_turns(_shuffled(table, choice, name)))

    async def lag(self, request: LagRequest, _: Progress) -> OneBroker:
        """Make a broker lag as a follower: fetches from it see an earlier high watermark. Raises NotFound, BadArgument."""
        self._table.check_known(request.broker)
        lag = _lag(request.by)
        self._table.lags.set(request.broker, lag, self._logs())
        if lag is None:
            for log in self._logs():
                self._node.purgatory.wake(log)
        self._node.scheduler.poke()
        return self._one(request.broker, self._table.counts())

    async def slow(self, request: SlowRequest, _: Progress) -> OneBroker:
        """Install a fault that delays each request to a broker; return the broker.

        Raises NotFound; NotPossible if there are too many faults.
        """
        self._table.check_known(request.broker)
        if (known := self._slow.pop(request.broker, None)) is not None:
            known[1].remove()
        if delay_ms := int(request.by * 1000):
            self._slow[request.broker] = delay_ms, self._delays().add(broker=request.broker, delay_ms=delay_ms)
        return self._one(request.broker, self._table.counts())

    async def unclean(self, request: UncleanRequest, _: Progress) -> UncleanReport:
        """Elect a replica that lacks the batches from an offset on, so that these batches are lost.

        Raises NotFound, NotPossible, BadArgument.
        """
        table, name, index = self._table, request.topic, request.partition
        now, name_of_partition = table.partition(name, index), f"{name}-{index}"
        table.check_known(request.broker)
        if request.broker not in now.replicas or not table.is_up(request.broker):
            raise NotPossible(
                f"broker {request.broker} cannot lead {name_of_partition}: expected one of its replicas {[*now.replicas]} "
                "that is up"
            )
        if name in INTERNAL_TOPICS:
            raise NotPossible(f"the end of {name_of_partition} cannot be removed: it holds the state of coordinators")
        if self._is_erasing():
            raise NotPossible(
                f"the end of {name_of_partition} cannot be removed while an erasure or a redaction is pending"
            )
        log = self._node.topics.log(name, index)
        await self._node.flusher.settled()
        end_before = log.log_end_offset
        try:
            end = remove_tail(log, request.offset)
        except KafkaError as error:
            raise BadArgument(error.detail or str(error)) from None
        changes = [table.change(name, _led_by(request.broker, log))]
        in_sync = (request.broker, *(one for one in now.replicas if one != request.broker and table.is_up(one)))
        changes.append(table.set_isr(name, index, in_sync))
        await self._housekeeping.write_checkpoints()
        await self._node.topics.sync()
        effect = LeaderReport.of(*changes)
        return UncleanReport(effect.moved, effect.changed_isr_count, end_offset=end, lost_record_count=end_before - end)

    # -- parts -----------------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> BrokerTable:
        table = self._node.topics.brokers
        if table is None:
            raise NotPossible("this process has one broker: start it with --brokers 3 (diamant.brokers=3)")
        return table

    def _state(self, broker_id: int) -> BrokerState:
        self._table.check_known(broker_id)
        if self._table.is_up(broker_id):
            return "up"
        if self._ports.is_silent(broker_id):
            return "silent"
        return "fenced" if self._ports.is_open(broker_id) else "down"

    def _one(self, broker_id: int, counts: PartitionCounts) -> OneBroker:
        table = self._table
        node, lag, slow = self._node, table.lags.of(broker_id), self._slow.get(broker_id)
        due_ms = self._in_sync_ms.get(broker_id)
        return OneBroker(
            broker_id,
            self._state(broker_id),
            table.rack(broker_id),
            tuple(one.address for one in node.addresses.kafka if node.config.node_id + one.broker == broker_id),
            leader_count=counts.leads[broker_id],
            in_sync_count=counts.in_sync[broker_id],
            replica_count=counts.replicas[broker_id],
            is_controller=broker_id == table.controller_id,
            until_in_sync_ms=0 if due_ms is None else max(due_ms - node.env.clock.now_ms(), 0),
            lag=None if lag is None else str(lag),
            delay_ms=slow[0] if slow is not None and slow[1].is_installed else 0,
        )

    def _logs(self) -> Iterator[Log]:
        for topic in self._node.topics.by_name.values():
            yield from topic.logs.values()

    async def _report(self, *changes: Changes, cut_connection_count: int = 0) -> LeaderReport:
        await self._node.topics.sync()
        return LeaderReport.of(*changes, cut_connection_count=cut_connection_count)

    async def _catch_up(self) -> None:
        now_ms = self._node.env.clock.now_ms()
        for broker_id in [one for one, due_ms in self._in_sync_ms.items() if due_ms <= now_ms]:
            async with self._turn:
                if self._in_sync_ms.pop(broker_id, None) is not None:
                    await in_turns(catch_up(self._table, broker_id))
        await self._node.topics.sync()

    async def _wake_lagging(self) -> None:
        for log in self._table.lags.take_due():
            self._node.purgatory.wake(log)


def _shuffled(table: BrokerTable, choice: random.Random, name: str | None) -> Iterator[Changes]:
    """Move the leaders of one topic or, if `name` is None, of all topics."""
    for step in steps(table, lambda one: len(one.isr) > 1, topic=name):
        others = (
            (topic, now, [one for one in now.isr if one != now.leader and table.is_up(one)]) for topic, now in step
        )
        yield table.move_leaders((topic, now.partition_id, choice.choice(ids)) for topic, now, ids in others if ids)


def _led_by(broker_id: int, log: Log) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition_id=log.partition,
        topic_id=log.topic_id,
        isr=(broker_id,),
        leader=broker_id,
        eligible_leader_replicas=(),
    )


def _lag(by: object) -> FollowerLag | None:
    """Parse a lag such as `500ms` or `100 records`; None for 0. Raises BadArgument."""
    text = str(by).strip()
    number, _, unit = text.partition(" ")
    if unit in ("record", "records") and number.isascii() and number.isdigit() and len(number) < 19:
        return FollowerLag(records=int(number)) if int(number) else None
    try:
        time_ms = 0 if text == "0" else parse_duration_ms(text)
    except ValueError:
        raise BadArgument(
            f"{text[:40]!r} is not a lag: expected a duration such as 500ms, a number such as 100 records, or 0 to end it"
        ) from None
    if not 0 <= time_ms <= MAX_LAG_MS:
        raise BadArgument(f"lag: expected at most 24h, got {text[:40]!r}")
    return FollowerLag(time_ms=time_ms) if time_ms else None
