"""One long move equals many short ones, for any history: the same records remain, in the same segments."""

from __future__ import annotations

import random

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.clocks import SettableClock
from tests.broker.compacted import read
from tests.broker.wire import PRODUCE, WireClient, produce_fields
from tests.memory_env import MemoryEnv

START_MS = 1_800_000_000_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MOVE_MS = 8 * DAY_MS

State = dict[str, tuple[list[tuple[int, str, str]], list[int], int]]


async def after_a_history(seed: int, steps: list[int]) -> State:
    """Write at random, then move the clock in `steps`; return records, base offsets and log start of each topic."""
    chance = random.Random(seed)
    env = MemoryEnv(SettableClock(START_MS))
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data"), env=env) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            topics = {name: policy for name, policy in (("c", "compact"), ("b", "compact,delete"), ("d", "delete"))}
            for name, policy in topics.items():
                await wire.create(
                    name,
                    cleanup_policy=policy,
                    internal_segment_bytes="400",
                    max_compaction_lag_ms=str(chance.choice((HOUR_MS, DAY_MS, 5 * DAY_MS))),
                    min_cleanable_dirty_ratio=str(chance.choice((0, 0.5, 1))),
                    delete_retention_ms=str(chance.choice((0, HOUR_MS, 2 * DAY_MS))),
                    segment_ms=str(chance.choice((HOUR_MS, DAY_MS, 30 * DAY_MS))),
                    retention_ms=str(chance.choice((DAY_MS, 5 * DAY_MS, 30 * DAY_MS))),
                )
            for _ in range(chance.randrange(5, 40)):
                name = chance.choice(list(topics))
                value = None if chance.random() < 0.3 else b"x" * chance.randrange(60)
                record = Record(0, env.clock.now_ms(), b"k%d" % chance.randrange(4), value)
                await wire.call(PRODUCE, 12, produce_fields(name, 0, bytes(build_batch([record], base_offset=0))))
                if chance.random() < 0.3:
                    await broker.clock.advance(chance.randrange(3 * HOUR_MS))
            for step_ms in steps:
                report = await broker.clock.advance(step_ms)
                assert report.problems == ()
            found: State = {}
            for name in topics:
                log = broker.node.topics.log(name, 0)
                bases = [segment.base_offset for segment in log.segments]
                found[name] = (await read(wire, name, log.log_start_offset), bases, log.log_start_offset)
            return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_a_long_move_is_as_good_as_many_short_ones(seed: int) -> None:
    """Eight days at once and in steps of seven hours (plus a rest) have the same result; the seed is the test's id."""
    short = [7 * HOUR_MS] * (MOVE_MS // (7 * HOUR_MS))
    short.append(MOVE_MS - sum(short))
    assert await after_a_history(seed, [MOVE_MS]) == await after_a_history(seed, short)
