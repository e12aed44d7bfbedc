"""Bounded work: slices of searches by time and of runs of aborted transactions, fetches that are not woken for nothing."""

from __future__ import annotations

import asyncio

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.clocks import SettableClock
from tests.broker.groups.share.share_cases import SECOND
from tests.broker.groups.share.share_requests import ACCEPT, RELEASE, acquired, code, configure
from tests.broker.groups.share.test_share_wire import member, sharing, window
from tests.broker.wire import WireClient
from tests.builder import make_marker
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

HOUR_MS = 3_600_000


async def test_a_long_search_by_time_runs_beside_the_loop(clock: SettableClock) -> None:
    """The first fetch begins it and is answered; a fetch that waits gets records once the first of the last hours is found."""
    async with sharing(MemoryEnv(clock)) as (broker, wire):
        await configure(wire, "g", share_auto_offset_reset="by_duration:PT1H")
        one = member(broker, wire)
        log = broker.node.topics.log("t", 0)
        now_ms = clock.now_ms()
        # Its header promises a record of the last hour, so all of it is decoded.
        records = [Record(offset, now_ms - 2 * HOUR_MS, None, b"v") for offset in range(1_500)]
        records.append(Record(1_500, now_ms, None, b"v"))
        log.append_internal(build_batch(records, base_offset=0))
        await one.wait_until_assigned()
        assert acquired(await one.fetch(wait_ms=0)) == []
        assert window(broker) is None
        assert acquired(await one.fetch(adds=False, wait_ms=60_000)) == [[1_500, 1_500, 1]]


async def test_a_long_run_of_aborted_batches_is_skipped_in_several_turns() -> None:
    """One turn of the loop skips a part of it; a fetch that waits gets what is behind the run."""
    count = 200
    async with sharing(MemoryEnv()) as (broker, wire):
        await configure(wire, "g", share_isolation_level="read_committed")
        log = broker.node.topics.log("t", 0)
        for number in range(count):
            record = [Record(0, 0, None, b"v")]
            batch = build_batch(
                record, base_offset=0, producer_id=5, producer_epoch=0, base_sequence=number, is_transactional=True
            )
            log.append_internal(batch)
        log.append_internal(make_marker(5, is_commit=False, timestamp=0))
        one = member(broker, wire)
        await one.wait_until_assigned()
        assert acquired(await one.fetch(wait_ms=0, max_records=1)) == []
        assert 0 < window(broker).end_offset < count
        assert acquired(await one.fetch(adds=False, wait_ms=60_000, max_records=1)) == [[count, count, 1]]


async def test_an_acknowledgement_wakes_only_members_that_may_get_something() -> None:
    """Fetches that wait look for records when one is released or the window has room again, and not for every one accepted."""
    async with sharing(MemoryEnv()) as (broker, wire), WireClient(broker.bootstrap_servers) as second:
        await configure(wire, "g", share_partition_max_record_locks="100")
        one, two = member(broker, wire), member(broker, second, SECOND)
        for count in (100, 1):
            await wire.produce("t", [b"v"] * count)
        for client in (one, two):
            await client.wait_until_assigned()
            await client.fetch(max_records=0, wait_ms=0)
        assert acquired(await one.fetch(max_records=50, share_acquire_mode=1)) == [[0, 49, 1]]
        assert acquired(await one.fetch(max_records=50, share_acquire_mode=1)) == [[50, 99, 1]]
        log, watch = broker.node.topics.log("t", 0), broker.node.purgatory.watch()
        watch.add(log)
        waiting = asyncio.create_task(two.fetch(adds=False, wait_ms=60_000, max_records=1, share_acquire_mode=1))
        await wait_until(lambda: len(broker.node.purgatory) == 1)
        assert code(await one.acknowledge([(40, 60, [ACCEPT])])) == 0
        assert watch.take_dirty() == set()
        assert code(await one.acknowledge([(10, 10, [RELEASE])])) == 0
        assert acquired(await waiting) == [[10, 10, 2]]
        assert watch.take_dirty() == {log}
        waiting = asyncio.create_task(two.fetch(adds=False, wait_ms=60_000, max_records=1, share_acquire_mode=1))
        await wait_until(lambda: len(broker.node.purgatory) == 1)
        assert code(await one.acknowledge([(0, 0, [ACCEPT])])) == 0
        assert acquired(await waiting) == [[100, 100, 1]]
        watch.close()
