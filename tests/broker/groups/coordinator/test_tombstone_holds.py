"""Tombstones that wait for groups: those that stay past their horizon, the groups behind, and the longest wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.groups.coordinator.tombstone_holds import GroupHolds
from diamant.cleaner.explain import explanation
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.clocks import SettableClock
from tests.broker.compacted import produce
from tests.broker.groups.offsets.offset_requests import commit, find_coordinator
from tests.broker.running import running
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Held:
    """A broker with a frozen clock, and topic `t` with two values and then tombstones of both."""

    def __init__(self, broker: Broker, wire: WireClient) -> None:
        self.broker = broker
        self._wire = wire

    async def fill(self, *batches: tuple[str, ...], **configs: str) -> None:
        """Create the topic with these batches, and clean it once: each tombstone has a horizon, a day ahead."""
        created = await self._wire.create("t", cleanup_policy="compact", **configs)
        assert created.error_code == ErrorCode.NONE, created.error_message
        for batch in (("a=1", "b=1"), *batches, ("end=1",)):
            await produce(self._wire, "t", *batch, timestamp=START_MS)
        await find_coordinator(self._wire)
        await self.broker.compact("t")

    async def commit(self, offset: int, group_id: str = "g") -> None:
        """Commit an offset of a group."""
        assert await commit(self._wire, group_id, {("t", 0): offset}) == [ErrorCode.NONE]

    async def tombstones(self) -> list[int]:
        """Return the offsets of the remaining tombstones, once all due work is done."""
        await self.broker.clock.advance("1m")
        await self.broker.compact("t")
        return [one.offset async for _, one in self.broker.latest("t", tombstones=True) if one.value is None]

    async def gate(self, offset: int) -> explanation.Gate | None:
        """Return the gate that holds a record for groups."""
        found = await self.broker.explain("t", partition=0, offset=offset)
        gates = [gate for one in found.partitions[0].records for gate in one.gates]
        return next((gate for gate in gates if gate.kind == explanation.HELD), None)


@asynccontextmanager
async def held(mode: str = "prompt") -> AsyncIterator[Held]:
    """The broker of `Held`, in memory."""
    async with running(MemoryEnv(SettableClock(START_MS)), diamant_cleaner_mode=mode) as (broker, wire):
        yield Held(broker, wire)


GROUPS = {"diamant_tombstone_hold": "groups"}


@pytest.mark.parametrize("mode", ["prompt", "kafka"])
async def test_a_tombstone_waits_for_the_slowest_group(mode: str) -> None:
    """Tombstones passed by all groups are removed at their horizon; the rest once the last group has passed."""
    async with held(mode) as at:
        await at.fill(("a=",), ("b=",), **GROUPS)
        await at.commit(3)
        await at.commit(5, "fast")
        await at.broker.clock.advance("2d")
        assert await at.tombstones() == [3]
        await at.commit(4)
        assert await at.tombstones() == []


async def test_explain_names_the_group() -> None:
    """The group is named with its offset, and the latest time of the tombstone's removal."""
    async with held() as at:
        await at.fill(("a=",), ("b=",), **GROUPS)
        await at.commit(3)
        await at.broker.clock.advance("2d")
        gate = await at.gate(3)
        assert gate is not None
        assert "group g at offset 3" in gate.text
        assert gate.until_ms is not None
        assert 8 * DAY_MS <= gate.until_ms - START_MS < 8 * DAY_MS + 3_600_000


async def test_a_batch_that_is_passed_in_part_is_held() -> None:
    """A group in the middle of a batch has not passed its last tombstone."""
    async with held() as at:
        await at.fill(("a=", "b="), **GROUPS)
        await at.commit(3)
        await at.broker.clock.advance("2d")
        assert await at.tombstones() == [2, 3]


async def test_no_group_holds_for_ever() -> None:
    """`diamant.tombstone.hold.max.ms` after its horizon a tombstone is removed, without traffic."""
    async with held() as at:
        await at.fill(("a=",), diamant_tombstone_hold_max_ms=str(2 * DAY_MS), **GROUPS)
        await at.commit(0)
        await at.broker.clock.advance("2d")
        assert await at.tombstones() == [2]
        await at.broker.clock.advance("2d")
        assert [one.offset async for _, one in at.broker.records("t")] == [1, 3]


async def test_by_default_nothing_waits() -> None:
    """As in Kafka, the horizon alone decides. Missing groups hold nothing, either."""
    async with held() as at:
        await at.fill(("a=",))
        await at.commit(0)
        await at.broker.clock.advance("2d")
        assert await at.tombstones() == []
    async with held() as at:
        await at.fill(("a=",), **GROUPS)
        await at.broker.clock.advance("2d")
        assert await at.tombstones() == []


class StillLoading:
    """Groups that are partly not loaded yet."""

    def __init__(self) -> None:
        self.loading = self

    def __call__(self) -> Any:
        return self

    def not_loaded(self) -> dict[int, str]:
        return {0: "it is being read"}


async def test_all_is_held_while_groups_are_not_known() -> None:
    """A group that is not loaded yet may be behind; once all are known and none is, nothing is held."""
    async with held() as at:
        await at.fill(("a=",), **GROUPS)
        await at.commit(4)
        topics = at.broker.node.topics
        groups: Any = StillLoading()
        hold = GroupHolds(groups, topics, at.broker.loop).hold(topics.log("t", 0))
        assert hold == (-1, 7 * DAY_MS, None, 0)
        assert at.broker.services.holds().hold(topics.log("t", 0)) is None


async def test_a_commit_counts_from_the_next_turn_of_the_loop_on() -> None:
    """Including one that moves back: a hold is cached for one turn only."""
    async with held() as at:
        await at.fill(("a=",), **GROUPS)
        log = at.broker.node.topics.log("t", 0)
        for offset in (3, 1, 4, 0):
            await at.commit(offset)
            hold = at.broker.services.holds().hold(log)
            assert (None if hold is None else hold.committed_offset) == (None if offset == 4 else offset)
