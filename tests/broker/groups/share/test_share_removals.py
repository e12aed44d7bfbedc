"""Records that members hold while compaction, an erasure or a redaction removes them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.explanation_view import show_explanation
from diamant.broker.erasure.certification.record_holders import RecordHolder
from diamant.broker.groups.share.ranges import RecordState
from diamant.cleaner.explain.explanation import Holder
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.compacted import produce
from tests.broker.groups.share.share_cases import FIRST, SECOND
from tests.broker.groups.share.share_requests import ACCEPT, REJECT, RELEASE, acquired, code
from tests.broker.groups.share.test_share_wire import LOCK_MS, member, sharing, window
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1"}


@pytest.mark.parametrize("words", [["a=1", "k=1", "b=1"], ["a=1 k=1 b=1"]], ids=["batch each", "one batch"])
async def test_a_held_record_that_compaction_removes_is_given_to_nobody_again(
    clock: SettableClock, words: list[str]
) -> None:
    """When its lock ends it is archived, whether the whole batch is gone or a record of it; its neighbours come again."""
    async with sharing(MemoryEnv(clock), topic_configs=COMPACTED) as (broker, wire):
        one = member(broker, wire)
        for batch in words:
            await produce(wire, "t", *batch.split())
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        await produce(wire, "t", "k=2")
        await broker.compact("t")
        clock.advance_ms(LOCK_MS)
        await wait_until(lambda: window(broker).next_lock_end_ms() is None)
        assert acquired(await one.fetch(adds=False)) == [[0, 0, 2], [2, 2, 2], [3, 3, 1]]
        states = [(run.first, run.state) for run in window(broker).runs()]
        assert (1, RecordState.ARCHIVED) in states


async def test_records_behind_a_long_gap_are_given() -> None:
    """Compaction may leave a gap longer than a request's records, inside the window and behind it."""
    async with sharing(MemoryEnv(), topic_configs=COMPACTED) as (broker, wire):
        one = member(broker, wire)
        await produce(wire, "t", "k=1")
        await one.wait_until_assigned()
        assert acquired(await one.fetch(max_records=1)) == [[0, 0, 1]]
        for number in range(30):
            await produce(wire, "t", f"k={number}")
        await broker.compact("t")
        assert code(await one.acknowledge([(0, 0, [RELEASE])])) == 0
        assert acquired(await one.fetch(adds=False, max_records=1)) == [[30, 30, 1]]
        assert code(await one.acknowledge([(30, 30, [ACCEPT])])) == 0
        assert window(broker).start_offset == 31


async def test_what_lies_behind_a_gap_is_given_together() -> None:
    """The requested number of records counts from the first one that is left, as in Kafka 4.3.1."""
    async with sharing(MemoryEnv(), topic_configs=COMPACTED) as (broker, wire):
        one = member(broker, wire)
        for word in (*["k=1"] * 12, "a=1", "b=1", "k=2"):
            await produce(wire, "t", word)
        await broker.compact("t")
        await one.wait_until_assigned()
        assert acquired(await one.fetch(max_records=5)) == [[12, 14, 1]]


async def test_explain_names_the_member_that_holds_a_record(clock: SettableClock) -> None:
    """The explanation has the number of the delivery and the end of the lock; no other record has a holder."""
    async with sharing(MemoryEnv(clock), topic_configs=COMPACTED) as (broker, wire):
        one = member(broker, wire)
        await produce(wire, "t", "k=1")
        await one.wait_until_assigned()
        for _ in range(2):
            await one.fetch()
            assert code(await one.acknowledge([(0, 0, [RELEASE])])) == 0
        assert acquired(await one.fetch()) == [[0, 0, 3]]
        await produce(wire, "t", "k=2")
        clock.advance_ms(LOCK_MS - 4_000)
        found = await broker.explain("t", key="k")
        held, free = found.partitions[0].records
        assert held.held_by == (Holder("g", FIRST, 3, clock.now_ms() + 4_000),)
        assert free.held_by == ()
        text = io.StringIO()
        show_explanation(Console(file=text, width=200), found.to_fields(), False, None)
        assert f"held by        member {FIRST}, third delivery, lock ends in 4s (share group g)" in text.getvalue()


async def test_the_report_of_an_erasure_names_the_members_that_hold_the_key(
    tmp_path: Path, clock: SettableClock
) -> None:
    """They have the records in memory. Records of other keys, and what was acknowledged, do not count."""
    async with sharing(RealEnv(clock), data_dir=tmp_path, topic_configs=COMPACTED) as (broker, wire):
        one, two = member(broker, wire), member(broker, wire, SECOND)
        for word in ("k=1", "other=1", "k=2", "k=3"):
            await produce(wire, "t", word)
        await one.wait_until_assigned()
        assert acquired(await one.fetch(max_records=3)) == [[0, 2, 1]]
        assert code(await one.acknowledge([(0, 0, [ACCEPT])])) == 0
        assert acquired(await two.fetch()) == [[3, 3, 1]]
        ends_ms = clock.now_ms() + LOCK_MS
        erasure = await broker.erase(b"k", ["t"], reason="r")
        holders = [RecordHolder("t", 0, "g", name, 1, ends_ms) for name in (FIRST, SECOND)]
        assert erasure.held_by == holders
        assert erasure.to_fields()["held_by"][0] == {
            **{"topic": "t", "partition": 0, "group": "g", "member_id": FIRST, "records": 1},
            "lock_ends_ms": ends_ms,
        }
        assert (await broker.erase(b"k", ["t"], reason="again")).held_by == []


async def test_the_report_of_a_redaction_names_the_members_that_hold_a_record(
    tmp_path: Path, clock: SettableClock
) -> None:
    """The report of a redaction names them as that of an erasure does."""
    async with sharing(RealEnv(clock), data_dir=tmp_path) as (broker, wire):
        one = member(broker, wire)
        for word in ("k=1", "other=1", "k=2"):
            await produce(wire, "t", word)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        redaction = await broker.redact("t", where='key == "k"', reason="r")
        assert redaction.held_by == [RecordHolder("t", 0, "g", FIRST, 2, clock.now_ms() + LOCK_MS)]
        clock.advance_ms(LOCK_MS)
        await wait_until(lambda: window(broker).next_lock_end_ms() is None)
        assert acquired(await one.fetch(adds=False)) == [[1, 1, 2]]


async def test_the_state_topic_has_ids_and_offsets_and_never_keys() -> None:
    """Neither key nor value of a record that was held, released, rejected and accepted is in its bytes."""
    env = MemoryEnv()
    key, value = "customer-with-a-name", "value-of-the-customer"
    updates = {"share_coordinator_snapshot_update_records_per_snapshot": 1}
    async with sharing(env, **updates) as (broker, wire):
        one = member(broker, wire)
        for _ in range(3):
            await produce(wire, "t", f"{key}={value}")
        await one.wait_until_assigned()
        await one.fetch()
        assert code(await one.acknowledge([(0, 2, [RELEASE, REJECT, ACCEPT])])) == 0
        await one.fetch(adds=False)
        assert code(await one.acknowledge([(0, 0, [ACCEPT])])) == 0
        log = broker.node.topics.log("__share_group_state", 0)
        content = b"".join(env.read_bytes(segment.path) for segment in log.segments)
        assert b"g" in content
        assert key.encode() not in content
        assert value.encode() not in content
