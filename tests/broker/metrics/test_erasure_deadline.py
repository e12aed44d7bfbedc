"""The deadline of erasure: superseded values can exceed it, uncleaned records that nothing supersedes cannot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.node.superseded_checks import SupersededChecks
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import File, RealEnv
from tests.broker.operations.explain.explained import DAY_MS, HOUR_MS, START_MS, Stage, stage
from tests.broker.operations.explain.test_explain_asking import HTTP, ask, scrape

BROKER = HTTP | {"diamant_erasure_deadline_ms": str(30 * DAY_MS)}
LAZY: dict[str, Any] = {"min_cleanable_dirty_ratio": "1", "segment_ms": str(400 * DAY_MS)}


async def health(at: Stage) -> tuple[int, str]:
    status, fields = await ask(at, "/healthz?erasure")
    return status, fields["status"]


async def days_left(at: Stage) -> Any:
    return (await scrape(at))['diamant_erasure_deadline_days_left{topic="t"}']


@pytest.mark.parametrize("mode", ["prompt", "kafka"])
async def test_distinct_keys_miss_no_deadline(tmp_path: Path, mode: str) -> None:
    """At any age no deadline is missed: the age counts only until a check. A superseding record counts from its own append."""
    async with stage(tmp_path, broker=BROKER | {"diamant_cleaner_mode": mode}, **LAZY) as at:
        await at.put(*(f"key-{index}=v" for index in range(22)))
        at.clock.advance_ms(20 * DAY_MS)
        assert await days_left(at) == 10
        at.clock.advance_ms(20 * DAY_MS)
        assert (await health(at), await days_left(at)) == ((200, "ok"), 30)
        await at.put("key-7=w")
        at.clock.advance_ms(29 * DAY_MS)
        # By the record's timestamp, which may be an hour later than its append.
        assert (await health(at), await days_left(at)) == ((200, "ok"), pytest.approx(1 - HOUR_MS / DAY_MS))
        at.clock.advance_ms(DAY_MS)
        assert await health(at) == (503, "late")


@pytest.mark.parametrize(
    "words", [["a=1", "a=2"], ["a=1", "b="], ["only-a-tombstone="]], ids=["value", "tombstone", "alone"]
)
async def test_a_superseded_value_past_its_deadline_is_late(tmp_path: Path, words: list[str]) -> None:
    """A superseded value past its deadline, and a tombstone in the uncleaned part, are late."""
    async with stage(tmp_path, broker=BROKER, **LAZY) as at:
        await at.put(*words)
        at.clock.advance_ms(31 * DAY_MS)
        assert await health(at) == (503, "late")


async def test_a_value_in_the_clean_part_that_a_dirty_record_supersedes_is_late(tmp_path: Path) -> None:
    """The clean part is checked, too; keys that occur once do not count."""
    async with stage(tmp_path, broker=BROKER, **LAZY) as at:
        await at.put("a=1", "b=1")
        await at.broker.compact("t")
        await at.put("c=1")
        at.clock.advance_ms(31 * DAY_MS)
        assert await health(at) == (200, "ok")
        await at.put("a=2")
        at.clock.advance_ms(31 * DAY_MS)
        assert await health(at) == (503, "late")
        await at.broker.compact("t")
        assert await health(at) == (200, "ok")


async def test_aborted_records_are_late(tmp_path: Path) -> None:
    """Nothing supersedes them, but they must be removed."""
    async with stage(tmp_path, broker=BROKER, **LAZY) as at:
        at.put_transactional("k")
        at.end_transaction(is_commit=False)
        at.clock.advance_ms(31 * DAY_MS)
        assert await health(at) == (503, "late")
    async with stage(tmp_path / "committed", broker=BROKER, **LAZY) as at:
        at.put_transactional("k")
        at.end_transaction(is_commit=True)
        at.clock.advance_ms(31 * DAY_MS)
        assert await health(at) == (200, "ok")


async def test_an_unchecked_partition_is_named_and_is_not_late(tmp_path: Path) -> None:
    """With too many keys or bytes to check, status is 200 with a text of its own, the partitions, and a metric."""
    async with stage(tmp_path, broker=BROKER, **LAZY) as at:
        await at.put("a=1", "a=2", "b=1")
        at.clock.advance_ms(31 * DAY_MS)
        cleaning = at.broker.services.cleaning
        cleaning.superseded = SupersededChecks(max_keys=1)
        status, fields = await ask(at, "/healthz?erasure")
        assert (status, fields["status"]) == (200, "cannot-be-told")
        assert fields["not_told"] == [{"topic": "t", "partitions": [0]}]
        shown = await scrape(at)
        assert shown['diamant_erasure_deadline_not_told{topic="t"}'] == 1
        assert shown['diamant_oldest_superseded_age_seconds{topic="t"}'] == 31 * DAY_MS / 1000
        cleaning.superseded = SupersededChecks(max_bytes=10)
        assert await health(at) == (200, "cannot-be-told")
        cleaning.superseded = SupersededChecks()
        assert await health(at) == (503, "late")
        assert (await scrape(at))['diamant_erasure_deadline_not_told{topic="t"}'] == 0


@pytest.mark.parametrize("days", [1, 31])
async def test_a_segment_that_is_being_replaced_is_named(tmp_path: Path, days: int) -> None:
    """While a round renames a segment whose age is not known yet, its partition is named; the scrape has all else."""
    async with stage(tmp_path, broker=BROKER, **LAZY) as at:
        await at.put("a=1", "b=1")
        at.clock.advance_ms(days * DAY_MS)
        path = at.log.active.path
        os.rename(path, f"{path}.aside")
        at.log.active.first_append_ms = None  # as after a start
        shown = await scrape(at)
        assert shown['diamant_erasure_deadline_not_told{topic="t"}'] == 1
        assert shown['diamant_erasure_deadline_days_left{topic="t"}'] == 30
        assert await health(at) == (200, "cannot-be-told")
        os.rename(f"{path}.aside", path)
        assert (await scrape(at))['diamant_erasure_deadline_not_told{topic="t"}'] == 0
        assert await health(at) == (200, "ok")


async def test_a_log_is_not_read_again_while_nothing_can_be_late(tmp_path: Path) -> None:
    """Records appended after a check are younger than the check."""
    read: list[str] = []

    class Counting(RealEnv):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
            if read_only and path.endswith(".log"):
                read.append(path)
            return super().open(path, create=create, read_only=read_only)

    async with stage(tmp_path, env=Counting(SettableClock(START_MS)), broker=BROKER, **LAZY) as at:
        await at.put("a=1")
        at.clock.advance_ms(31 * DAY_MS)
        for index in range(5):
            assert await health(at) == (200, "ok")
            await at.put(f"b{index}=1")
            at.clock.advance_ms(DAY_MS)
        assert read == [at.log.active.path]
        at.clock.advance_ms(30 * DAY_MS)
        assert (await health(at), len(read)) == ((200, "ok"), 2)
