"""How many records a topic has, by kind: exactly as a naive count, and at once within bounds that hold."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.client.errors import NotFound
from diamant.cleaner.queries.record_count import RecordCount, count_by_keys
from tests.broker.operations.explain.explained import Stage, stage
from tests.broker.operations.explain.test_explain_asking import HTTP, ask

KINDS = ("records", "live", "superseded", "tombstones", "other", "markers")


def exact(count: RecordCount) -> dict[str, int]:
    """The numbers of an exact count."""
    found = {name: getattr(count, name) for name in KINDS}
    assert all(one.least == one.most for one in found.values())
    return {name: one.least for name, one in found.items()}


class Written:
    """What was written, as a naive reader counts it."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str | None, str]] = []
        """Key, value and what became of it: committed, aborted or open."""
        self.markers = 0

    def end(self, outcome: str) -> None:
        """Decide what is open."""
        self.records = [(key, value, outcome if what == "open" else what) for key, value, what in self.records]
        self.markers += 1

    def count(self) -> dict[str, int]:
        """By kind."""
        committed = [(key, value) for key, value, what in self.records if what == "committed"]
        latest = dict(committed)
        tombstones = sum(value is None for value in latest.values())
        return {
            "records": len(self.records),
            "live": len(latest) - tombstones,
            "superseded": len(committed) - len(latest),
            "tombstones": tombstones,
            "other": len(self.records) - len(committed),
            "markers": self.markers,
        }


async def check(at: Stage, expected: dict[str, int]) -> dict[str, Any]:
    """Compare both counts with what is expected; returns the bounds."""
    (found,) = (await at.broker.count("t", is_exact=True)).partitions
    assert exact(found.count) == expected
    bounds = (await at.broker.count("t")).to_fields()
    for name in KINDS:
        assert bounds[name]["least"] <= expected[name] <= bounds[name]["most"], (name, bounds, expected)
    return bounds


@pytest.mark.parametrize("seed", range(6))
async def test_counts_are_those_of_the_records(tmp_path: Path, seed: int) -> None:
    """Values, deletions, aborted, committed and open transactions, in closed and active segments."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    written = Written()
    async with stage(tmp_path, max_compaction_lag_ms="9000000000", min_cleanable_dirty_ratio="1") as at:
        is_open = False
        for _ in range(40):
            key, action = f"k{chance.randrange(8)}", chance.random()
            if action < 0.45:
                await at.put(f"{key}=v")
                written.records.append((key, "v", "committed"))
            elif action < 0.6:
                await at.put(f"{key}=")
                written.records.append((key, None, "committed"))
            elif action < 0.75:
                at.put_transactional(key)
                written.records.append((key, "v", "open"))
                is_open = True
            elif action < 0.9 and is_open:
                is_commit = chance.random() < 0.5
                at.end_transaction(is_commit=is_commit)
                written.end("committed" if is_commit else "aborted")
                is_open = False
            else:
                await at.roll()
        await check(at, written.count())


async def test_after_a_compaction_the_count_at_once_is_exact(tmp_path: Path) -> None:
    """Nothing is dirty, so headers tell everything; each later record makes it uncertain by one."""
    async with stage(tmp_path, broker=HTTP) as at:
        await at.put("a=1", "b=1", "c=1")
        await at.put("a=2", "b=")
        await at.broker.compact("t")
        expected = {"records": 3, "live": 2, "superseded": 0, "tombstones": 1, "other": 0, "markers": 0}
        bounds = await check(at, expected)
        assert all(bounds[name] == {"least": count, "most": count} for name, count in expected.items())
        await at.put("a=3")
        bounds = await check(at, {**expected, "records": 4, "superseded": 1})
        assert bounds["records"] == {"least": 4, "most": 4}
        assert bounds["live"] == {"least": 1, "most": 3}
        status, found = await ask(at, "/v1/count", {"topic": "t", "exact": True})
        assert (status, found["superseded"], found["is_exact"]) == (200, {"least": 1, "most": 1}, True)
        at.log.delete_records(4)  # in the midst of a batch: b= is left of it
        await check(at, {**expected, "records": 2, "live": 1})


async def test_what_is_counted_is_of_one_moment(tmp_path: Path) -> None:
    """Rounds that replace the files meanwhile change nothing; keys that do not fit the memory are counted from files."""
    async with stage(tmp_path) as at:
        for turn in range(3):
            await at.put(*(f"k{index}={turn}" for index in range(2000)))
            await at.roll()
        taken, files = await at.broker.services.explain().open(at.log)
        with files:
            await at.broker.compact("t")
            assert len(await at.offsets()) == 2000
            found, problems = await asyncio.to_thread(
                count_by_keys, files.present(), taken.outcomes, 0, max_bytes=100_000
            )
        assert exact(found) == {**dict.fromkeys(KINDS, 0), "records": 6000, "live": 2000, "superseded": 4000}
        assert not problems


async def test_topics_that_are_not_compacted_and_not_there(tmp_path: Path) -> None:
    """Keys are counted all the same; at once nothing but the number of records is known."""
    async with stage(tmp_path, cleanup_policy="delete") as at:
        await at.put("a=1", "a=2")
        bounds = await check(at, {**dict.fromkeys(KINDS, 0), "records": 2, "live": 1, "superseded": 1})
        assert (bounds["records"], bounds["live"]) == ({"least": 2, "most": 2}, {"least": 0, "most": 2})
        with pytest.raises(NotFound):
            await at.broker.count("absent")
