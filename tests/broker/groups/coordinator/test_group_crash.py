"""Groups survive SIGKILL at every step: a broker starts on a copy of the disk made before each of its changes."""

from __future__ import annotations

from typing import NamedTuple

from diamant.broker.groups.classic.events import TimerKind
from diamant.protocol.errors import ErrorCode
from tests import effort
from tests.broker.groups.consumer.consumer_wire import A, B, Members
from tests.broker.groups.offsets.offset_requests import (
    NONE,
    SYNC_GROUP,
    Member,
    commit,
    fetch,
    find_coordinator,
    join,
    leave,
    wait_until_loaded,
)
from tests.broker.running import running
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

SETTINGS = {"group_initial_rebalance_delay_ms": 0, "group_consumer_assignment_interval_ms": 0}


class Told(NamedTuple):
    """What the broker has answered to a member: its generation or epoch, and the offset that it committed last."""

    member: Member
    offset: int = -1


class Cut(NamedTuple):
    """The disk as a SIGKILL leaves it, and what members had been told by then, by group."""

    env: MemoryEnv
    told: dict[str, Told]


async def cuts_of() -> list[Cut]:
    """Return a member of each protocol joins and commits, another one joins, one leaves; with a copy before every change."""
    env = MemoryEnv()
    cuts: list[Cut] = []
    told: dict[str, Told] = {}
    async with running(env, **SETTINGS) as (broker, wire):
        await wire.create("t", 2)
        await find_coordinator(wire)
        consumers = Members(wire, broker)
        env.before_change = lambda: cuts.append(Cut(env.copy(), dict(told)))
        told["classic"] = Told(await join(wire, "classic", "t", assignment=b"kept"))
        epoch, _ = await consumers.beat("consumer", A, 0, names=["t"])
        told["consumer"] = Told(Member("consumer", A, epoch))
        for offset in range(3):
            for group_id, (member, _) in list(told.items()):
                assert await commit(wire, group_id, {("t", 0): offset}, member=member) == [NONE]
                told[group_id] = Told(member, offset)
        await consumers.beat("consumer", B, 0, names=["t"])
        await leave(wire, told.pop("classic").member)
        cuts.append(Cut(env.copy(), dict(told)))
        env.before_change = None
    return cuts


async def check(cut: Cut) -> None:
    """Check that acknowledged offsets are committed, and that members go on with their generation or epoch."""
    async with running(cut.env, **SETTINGS) as (broker, wire):
        await wait_until_loaded(broker)
        sessions = broker.services.groups().classic.timers
        assert (
            "classic" not in cut.told
            or ("classic", TimerKind.SESSION, cut.told["classic"].member.member_id) in sessions
        )
        for group_id, (member, offset) in cut.told.items():
            assert (await fetch(wire, group_id, {"t": [0]}))["t", 0] in (offset, offset + 1)
            assert await commit(wire, group_id, {("t", 0): 9}, member=member) == [NONE]
            assert await fetch(wire, group_id) == {("t", 0): 9}
        if "classic" in cut.told:
            member = cut.told["classic"].member
            assert await synced(wire, member) == (NONE, b"kept")
            assert await synced(wire, member._replace(generation=0)) == (ErrorCode.ILLEGAL_GENERATION, b"")
        if "consumer" in cut.told:
            member = cut.told["consumer"].member
            epoch, _ = await Members(wire, broker).beat("consumer", member.member_id, member.generation)
            assert epoch >= member.generation


async def synced(wire: WireClient, member: Member) -> tuple[ErrorCode, bytes]:
    """Return the answer of another SyncGroup."""
    names = {"group_id": member.group_id, "generation_id": member.generation, "member_id": member.member_id}
    answer = await wire.call(SYNC_GROUP, 2, {**names, "assignments": []})
    return ErrorCode(answer.error_code), answer.assignment


async def test_killed_before_every_change() -> None:
    """No acknowledged offset and no member is lost."""
    cuts = await cuts_of()
    assert len(cuts) > 10
    for cut in effort.some(cuts, every=5):
        await check(cut)
