"""Random topics: the explanations of all records at one moment come true, record by record, as time passes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.explain import explanation
from diamant.cleaner.explain.explanation import RecordExplanation
from tests import effort
from tests.broker.operations.explain.explained import DAY_MS, HOUR_MS, Stage, stage

KEYS = ["a", "b", "c", "d"]


def random_configs(rng: random.Random) -> dict[str, str]:
    """Return some of the settings that affect rounds and retention."""
    configs = {
        "min_cleanable_dirty_ratio": rng.choice(["0", "0.3", "0.6", "1"]),
        "segment_ms": str(rng.choice([HOUR_MS, 5 * HOUR_MS, 7 * DAY_MS])),
        "delete_retention_ms": str(rng.choice([0, HOUR_MS, DAY_MS])),
        "message_timestamp_after_max_ms": str(30 * DAY_MS),
    }
    if rng.random() < 0.5:
        configs["max_compaction_lag_ms"] = str(rng.choice([6 * HOUR_MS, 3 * DAY_MS]))
    if rng.random() < 0.5:
        configs["min_compaction_lag_ms"] = str(rng.choice([1000, 2 * HOUR_MS]))
    if rng.random() < 0.3:
        configs |= {"cleanup_policy": "compact,delete", "retention_ms": str(4 * DAY_MS)}
    return configs


async def write(at: Stage, rng: random.Random) -> None:
    """Write records, close segments, and run rounds in between.

    Timestamps may be in the future unless whole segments are deleted: a round may remove the newest record of a segment.
    """
    is_ahead = not at.log.config.is_deleted
    for _ in range(rng.randrange(2, 12)):
        at.clock.advance_ms(rng.choice([1, 1000, HOUR_MS // 2]))
        step = rng.random()
        if step < 0.7:
            size = rng.choice([1, 30, 300])
            await at.put(
                *(f"{rng.choice(KEYS)}={'x' * size if rng.random() < 0.8 else ''}" for _ in range(rng.choice([1, 3]))),
                ahead_ms=rng.choice([0, 0, 0, HOUR_MS, 20 * DAY_MS]) if is_ahead else 0,
            )
        elif step < 0.9:
            await at.roll()
        else:
            await at.settle()
    await at.settle()


def text(one: RecordExplanation, moment_ms: int, start_ms: int) -> str:
    """Return a failure's text; times count from the question."""
    gates = [
        (gate.kind, None if gate.until_ms is None else gate.until_ms - start_ms, gate.detail) for gate in one.gates
    ]
    goes_ms = None if one.goes_ms is None else one.goes_ms - start_ms
    return f"{one.offset} {one.status} by {one.superseded_by} goes {goes_ms}, now {moment_ms - start_ms}: {gates}"


async def next_stop(at: Stage, ahead: set[int]) -> int | None:
    """Return the next time to check: a stated time, or the next round, which must occur at its own time."""
    now_ms = at.clock.now_ms()
    round_ms = (await at.partition()).next_round_ms
    times = [time_ms for time_ms in (*ahead, *([] if round_ms is None else [round_ms])) if time_ms > now_ms]
    return min(times, default=None)


@pytest.mark.parametrize("seed", range(effort.examples(60)))
async def test_explanations_come_true(tmp_path: Path, seed: int) -> None:
    """Each record exists a millisecond before its time and not at it, unless that is only the earliest; others stay."""
    rng = random.Random(seed)
    mode = rng.choice(["prompt", "prompt", "kafka"])
    configs = random_configs(rng)
    print(f"seed {seed}, mode {mode}, {configs}")
    settings: dict[str, Any] = {"diamant_cleaner_mode": mode}
    async with stage(tmp_path, broker=settings, **configs) as at:
        await write(at, rng)
        records = [
            one for key in KEYS for one in (await at.partition(key=key)).records if not one.segment.endswith(".deleted")
        ]
        assert sorted(one.offset for one in records) == await at.offsets()
        start_ms = at.clock.now_ms()
        times = {one.goes_ms for one in records} | {gate.until_ms for one in records for gate in one.gates}
        ahead = {time_ms for told_ms in times if told_ms is not None for time_ms in (told_ms - 1, told_ms)}
        while moment_ms := await next_stop(at, ahead):
            at.clock.set_ms(moment_ms)
            await at.settle()
            present = set(await at.offsets())
            for one in records:
                is_gone = one.goes_ms is not None and one.goes_ms <= moment_ms
                if not is_gone:
                    assert one.offset in present, text(one, moment_ms, start_ms)
                elif one.bound != explanation.EARLIEST:
                    assert one.offset not in present, text(one, moment_ms, start_ms)
        at.clock.advance_ms(100 * DAY_MS)
        await at.settle()
        present = set(await at.offsets())
        for one in records:
            if one.goes_ms is None:
                assert one.offset in present, one
