"""Classic groups in a running broker: restarts, a failing log, parked requests at a stop, many members and groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.groups.classic.classic_group import GroupState
from diamant.broker.groups.classic.events import (
    JoinAnswer,
    TimerKind,
)
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.offset_columns import TopicOffsets
from tests.broker.groups.classic.classic_cases import JOIN, SYNC, wait_for_coordinator
from tests.broker.groups.classic.direct import SESSION_MS, Direct, join_request
from tests.broker.request_fields import join_group
from tests.broker.wire import WireClient
from tests.waiting import wait_until


def config(data_dir: Path, **properties: str) -> BrokerConfig:
    """Few partitions: a thousand groups fit into two, and brokers start and stop faster."""
    more = {name.replace("_", "."): value for name, value in properties.items()}
    return BrokerConfig(
        listen="127.0.0.1:0", data_dir=data_dir, properties={"offsets.topic.num.partitions": "2", **more}
    )


@pytest.fixture
async def direct(tmp_path: Path) -> AsyncIterator[Direct]:
    """Requests to a new broker."""
    async with Broker(config(tmp_path)) as broker:
        await wait_for_coordinator(broker.bootstrap_servers)
        yield Direct(broker)


async def test_signs_of_life_start_a_session_again(direct: Direct) -> None:
    """A heartbeat and a commit restart a session; a refused heartbeat, or one of an unknown member, does not."""
    groups, timers = direct.groups, direct.groups.timers
    direct.join("g", "a", join_request(fresh_id="a"))
    await wait_until(lambda: "a" in direct.joins)
    classic = direct.broker.services.groups().groups["g"].classic
    assert classic is not None

    def beat(member_id: str, generation: int) -> ErrorCode:
        return groups.heartbeat("g", member_id, None, generation)

    def commit() -> object:
        offsets = TopicOffsets("t", None, range(1), [1], [-1], None)
        return direct.broker.services.groups().commits.commit(
            "g", [offsets], member_id="a", instance_id=None, generation=1, version=8
        )

    direct.sync("g", "a", 1)
    key = ("g", TimerKind.SESSION, "a")
    for act, is_started in (
        (lambda: beat("a", 0), False),
        (lambda: beat("nobody", 1), False),
        (lambda: groups.seen(classic, "nobody"), False),
        (lambda: beat("a", 1), True),
        (commit, True),
    ):
        timers.advance_ms(1000)
        act()
        remaining_ms = timers.remaining_ms(key)
        assert remaining_ms is not None
        assert (remaining_ms > SESSION_MS - 1000) is is_started
    assert ("g", TimerKind.SESSION, "nobody") not in timers


# ---- restarts --------------------------------------------------------------------------------------------------------


async def join_and_sync(wire: WireClient, group_id: str) -> str:
    fields = join_group(group_id, b"m", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=1000)
    joined = await wire.call(JOIN, 3, fields)
    assert int(joined.error_code) == 0
    assignments = [{"member_id": joined.member_id, "assignment": b"kept"}]
    synced = await wire.call(
        SYNC, 3, {"group_id": group_id, "generation_id": 1, "member_id": joined.member_id, "assignments": assignments}
    )
    assert int(synced.error_code) == 0
    return str(joined.member_id)


async def test_a_maximum_lowered_by_a_restart(tmp_path: Path) -> None:
    """A restored group above group.max.size rebalances, so that consumers can commit before some are removed."""
    async with Broker(config(tmp_path)) as broker:
        await wait_for_coordinator(broker.bootstrap_servers)
        direct = Direct(broker)
        parked = [direct.join("g", name, join_request(fresh_id=name)) for name in ("a", "b")]
        await asyncio.gather(*parked)  # type: ignore[arg-type]
        direct.sync("g", "a", 1)
    async with Broker(config(tmp_path, group_max_size="1")) as broker:
        await broker.services.groups().loaded()
        assert broker.services.groups().classic.count_by_state() == {GroupState.PREPARING_REBALANCE: 1}
        direct = Direct(broker)
        kept = direct.join("g", "a", join_request("a"))
        direct.join("g", "b", join_request("b"))
        assert direct.joins["b"].error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert kept == b"answered" or await kept == b"answered"  # type: ignore[misc]
        assert direct.joins["a"].generation_id == 2


async def test_a_stop_answers_who_waits(tmp_path: Path) -> None:
    """Parked joins and syncs get NOT_COORDINATOR, so that clients look for the coordinator again."""
    async with Broker(config(tmp_path)) as broker:
        await wait_for_coordinator(broker.bootstrap_servers)
        async with WireClient(broker.bootstrap_servers) as one, WireClient(broker.bootstrap_servers) as two:
            await join_and_sync(one, "g")
            two.send(JOIN, 3, join_group("g", b"m", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000))
            await wait_until(
                lambda: broker.services.groups().classic.count_by_state()[GroupState.PREPARING_REBALANCE] == 1
            )
            groups = broker.services.groups()
            stopping = asyncio.ensure_future(broker.stop())
            answer = await two.receive(JOIN, 3)
            assert ErrorCode(int(answer.error_code)) is ErrorCode.NOT_COORDINATOR
        await stopping
        assert len(groups.classic.timers) == 0


# ---- a log that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "answered"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
    ids=lambda code: code.name,
)
async def test_errors_of_the_log(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, raised: ErrorCode, answered: ErrorCode
) -> None:
    """A join that cannot write its group leaves none; after a sync that cannot be written the group rebalances."""
    await direct.join("old", "a", join_request(fresh_id="a"))  # type: ignore[misc]

    def fail(*args: object, **more: object) -> int:
        raise KafkaError(raised, "as the test wants it")

    with monkeypatch.context() as patch:
        patch.setattr(direct.broker.services.groups().log, "append", fail)
        direct.join("new", "b", join_request(fresh_id="b"))
        assert direct.joins["b"] == JoinAnswer(answered)
        assert direct.broker.services.groups().group("new") is None
        direct.sync("old", "a", 1)
        assert direct.syncs["a"].error is answered
    again = direct.join("old", "a", join_request("a"))
    assert again == b"answered" or await again == b"answered"  # type: ignore[misc]
    assert direct.joins["a"].generation_id == 2
    direct.sync("old", "a", 2)
    assert direct.syncs["a"].error is ErrorCode.NONE


async def test_an_answer_that_cannot_be_encoded(direct: Direct) -> None:
    """Only the affected member's request fails; the others get their answers."""

    def broken(answer: JoinAnswer) -> bytes:
        raise OverflowError("too large")

    bad = direct.groups.join("g", join_request(fresh_id="a"), broken)
    good = direct.join("g", "b", join_request(fresh_id="b"))
    assert not isinstance(bad, bytes)
    assert await good == b"answered"  # type: ignore[misc]
    with pytest.raises(OverflowError):
        await bad


async def test_the_request_that_ends_a_phase_is_answered_after_the_others(direct: Direct) -> None:
    """The leader's request that ends a phase is answered in the same turn of the loop as the parked ones, and after them:
    answered earlier, its next request could arrive before theirs and end the generation.
    """
    direct.join("g", "one", join_request(fresh_id="one"))
    await wait_until(lambda: "one" in direct.joins)
    direct.sync("g", "one", 1)
    direct.joins.clear()
    direct.syncs.clear()
    waiting = direct.join("g", "two", join_request(fresh_id="two"))
    ending = direct.join("g", "one", join_request("one"))
    assert list(direct.joins) == ["two", "one"]
    assert isinstance(waiting, asyncio.Future)
    assert isinstance(ending, asyncio.Future)
    waiting = direct.sync("g", "two", 2)
    ending = direct.sync("g", "one", 2)
    assert list(direct.syncs) == ["two", "one"]
    assert isinstance(waiting, asyncio.Future)
    assert isinstance(ending, asyncio.Future)
    assert [await waiting, await ending] == [b"answered", b"answered"]


async def test_a_client_that_goes_while_it_waits(direct: Direct) -> None:
    """The future of a client that has gone is cancelled; the rebalance continues with it as a member."""
    gone = direct.join("g", "a", join_request(fresh_id="a"))
    stays = direct.join("g", "b", join_request(fresh_id="b"))
    assert not isinstance(gone, bytes)
    gone.cancel()
    assert await stays == b"answered"  # type: ignore[misc]
    assert "a" not in direct.joins
    assert (direct.joins["b"].generation_id, direct.joins["b"].leader) == (1, "a")


# ---- large ones ------------------------------------------------------------------------------------------------------
