"""Groups under SIGKILL: the broker is killed while members join, leave and commit, and is restarted."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from tests.broker.groups.offsets.committing_members import (
    SESSION_TIMEOUT_MS,
    CommittingGroup,
    ConfluentGroup,
    WireGroup,
    wait_until_recovered,
)
from tests.broker.restarted_broker import RestartedBroker
from tests.broker.transactions.txn_wire import wait_for_committed_offset
from tests.broker.wire import WireClient

SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    "group.consumer.min.session.timeout.ms=500",
    f"group.consumer.session.timeout.ms={SESSION_TIMEOUT_MS}",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=100",
    "offsets.topic.num.partitions=2",
    "log.cleaner.backoff.ms=200",
    "log.cleaner.min.cleanable.ratio=0.01",
)
PARTITIONS = 6
MEMBERS = 3
FEW = 2
TIMEOUT_S = 90


async def wait_for_commits(groups: list[CommittingGroup], tasks: list[asyncio.Task[None]], count: int) -> None:
    """Return when all groups together have made this many more commits."""
    goal = sum(group.commits for group in groups) + count
    async with asyncio.timeout(TIMEOUT_S):
        while sum(group.commits for group in groups) < goal:
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.002)


async def check_committed(address: str, groups: list[CommittingGroup]) -> None:
    """Check that acknowledged offsets, or later ones, are committed."""
    async with WireClient(address) as wire:
        for group in groups:
            for partition, acknowledged in list(group.acknowledged.items()):
                code, offset = await wait_for_committed_offset(wire, group.name, group.topic, partition)
                assert code == "NONE"
                group.check_committed(partition, offset, acknowledged)


async def run(directory: Path, kills: int, rng: random.Random) -> None:
    """Kill the broker this number of times."""
    started_s = time.monotonic()
    with RestartedBroker(directory, *SETTINGS) as broker:
        groups: list[CommittingGroup] = [
            WireGroup(broker.address, "wire", rng, members=MEMBERS, partitions=PARTITIONS),
            ConfluentGroup(
                broker.address, "consumer", rng, members=MEMBERS, partitions=PARTITIONS, protocol="consumer"
            ),
        ]
        if kills > FEW:
            # After a lost connection librdkafka takes seconds until such members are together again.
            groups += [
                ConfluentGroup(broker.address, "eager", rng, members=MEMBERS, partitions=PARTITIONS),
                ConfluentGroup(
                    broker.address,
                    "cooperative",
                    rng,
                    members=MEMBERS,
                    partitions=PARTITIONS,
                    strategy="cooperative-sticky",
                ),
            ]
        await broker.start()
        async with WireClient(broker.address) as wire:
            for group in groups:
                await wire.create(group.topic, PARTITIONS)
        recoveries_s: dict[str, list[float]] = {group.name: [] for group in groups}
        tasks = [asyncio.create_task(group.run()) for group in groups]
        try:
            for _ in range(kills):
                await wait_for_commits(groups, tasks, rng.randint(1, 40))
                await asyncio.wait(tasks, timeout=rng.uniform(0, 0.1))
                broker.kill()
                await broker.start(rng)
                await check_committed(broker.address, groups)
                for group in groups:
                    group.is_churning = False
                    group.forget_progress()
                for name, taken_s in (await wait_until_recovered(groups, tasks, TIMEOUT_S)).items():
                    recoveries_s[name].append(taken_s)
                for group in groups:
                    group.is_churning = True
            await check_committed(broker.address, groups)
        finally:
            for group in groups:
                group.is_stopped = True
            # The broker must be there for it: clients take their leave.
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes == [None] * len(groups)
        await check_committed(broker.address, groups)
        broker.check_log()
        for group in groups:
            times = " ".join(f"{taken_s:.1f}" for taken_s in recoveries_s[group.name])
            print(f"{group.name}: {group.commits} commits, {group.joins} assignments, {dict(group.errors)}, s: {times}")
        print(f"{broker.kills} kills, {time.monotonic() - started_s:.1f} s in all")


@pytest.mark.parametrize("kills", [pytest.param(FEW, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.long)])
async def test_groups_survive_sigkill(tmp_path: Path, kills: int) -> None:
    """No committed offset is below an acknowledged one; after every restart each member gets partitions again."""
    seed = int(os.environ.get("DIAMANT_SIGKILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"DIAMANT_SIGKILL_SEED={seed}")
    await run(tmp_path, kills, random.Random(seed))
