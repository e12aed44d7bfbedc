"""Duration of a start with a log of a million commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from diamant.broker.broker import Broker
from tests.broker.groups.offsets.offset_requests import find_coordinator
from tests.broker.groups.offsets.offsets_log import commit_record
from tests.broker.wire import WireClient

GROUPS, PARTITIONS, ROUNDS = 1_000, 10, 100
MOST_CPU_S = 3.0
"""Of all threads: the same on a busy machine and on an idle one, where it is the time that it takes."""


@pytest.mark.long
async def test_a_million_commits_are_loaded_within_three_seconds(make_broker: Callable[..., Broker]) -> None:
    """The log is not compacted and has a thousand groups with ten partitions, each with a hundred commits."""
    async with make_broker(log_cleaner_enable=False) as broker:
        async with WireClient(broker.bootstrap_servers) as client:
            await client.create("t", PARTITIONS)
            await find_coordinator(client)
        for number in range(ROUNDS):
            for group in range(GROUPS):
                name = f"group-{group}"
                broker.services.groups().log.append(
                    name, [commit_record(number, name, "t", each) for each in range(PARTITIONS)]
                )
            await asyncio.sleep(0)
    began_s, cpu_before_s = time.monotonic(), time.process_time()
    async with make_broker(log_cleaner_enable=False) as broker:
        await broker.services.groups().loaded()
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_before_s
        print(f"loaded after {took_s:.2f} s, {cpu_s:.2f} s of CPU")
        assert (
            sum(len(list(group.offsets.places())) for group in broker.services.groups().groups.values())
            == GROUPS * PARTITIONS
        )
        assert cpu_s <= MOST_CPU_S
