"""Rare reasons why records are still there: markers, old message formats, leftovers, failed writes.

As in test_explain.py, each reason is created in a real broker, and its time checked by moving the clock.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from diamant.cleaner.explain import explanation
from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from tests.broker.operations.explain.explained import DAY_MS, HOUR_MS, START_MS, gate, kinds, stage
from tests.builder import make_message
from tests.memory_env import MemoryEnv

DATA = Path("/data")
KAFKA = {"diamant_cleaner_mode": "kafka"}

# -- markers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_marker_from_its_transaction_to_its_horizon(tmp_path: Path, is_commit: bool) -> None:
    """While its transaction has records, its removal time is unknown; then its horizon is stated, and comes true."""
    async with stage(tmp_path, segment_ms=str(HOUR_MS), delete_retention_ms=str(DAY_MS)) as at:
        at.put_transactional("k")
        marker = at.end_transaction(is_commit=is_commit)
        at.put_transactional("another")  # the producer's last batch stays, at least its header
        at.end_transaction(is_commit=True)
        await at.put("k=2")
        data = await at.record(0)
        assert data.status == (explanation.IS_SUPERSEDED if is_commit else explanation.IS_ABORTED)
        before = await at.at_offset(marker)
        assert (before.status, kinds(before), before.goes_ms) == (
            explanation.IS_MARKER,
            [explanation.NOT_STAMPED],
            None,
        )
        assert data.goes_ms == START_MS + HOUR_MS + 1
        await at.is_there_until(data.goes_ms, 0)
        after = await at.at_offset(marker)
        assert kinds(after) == [explanation.HORIZON]
        assert after.goes_ms == after.horizon_ms == gate(after, explanation.HORIZON).until_ms == data.goes_ms + DAY_MS
        assert after.change is None, "no erase removes a marker"
        await at.is_there_until(after.goes_ms, marker)
        assert kinds(await at.at_offset(3)) == [explanation.NOT_STAMPED]
        await at.stays(3)


async def test_a_marker_in_mode_kafka_needs_three_rounds(tmp_path: Path) -> None:
    """One removes its transaction's records, the next stamps it, and none follows after its horizon."""
    async with stage(tmp_path, broker=KAFKA, delete_retention_ms=str(DAY_MS)) as at:
        at.put_transactional("k")
        marker = at.end_transaction(is_commit=True)
        at.put_transactional("another")
        at.end_transaction(is_commit=True)
        for value in "23":
            assert kinds(await at.at_offset(marker)) == [explanation.NOT_STAMPED]
            await at.put(f"k={value}")
            await at.roll()
            await at.settle()
        found = await at.at_offset(marker)
        assert (kinds(found), found.goes_ms) == ([explanation.HORIZON, explanation.WAITS_FOR_ROUND], None)
        assert gate(found, explanation.HORIZON).until_ms == found.horizon_ms == START_MS + DAY_MS
        at.clock.set_ms(START_MS + DAY_MS - 1)
        await at.play("k=4 | roll | settle")
        assert marker in await at.offsets()
        at.clock.set_ms(START_MS + DAY_MS)
        await at.settle()
        assert marker in await at.offsets()
        await at.play("k=5 | roll")
        assert (await at.at_offset(marker)).goes_ms == START_MS + DAY_MS
        await at.settle()
        assert marker not in await at.offsets()


# -- message formats 0 and 1 ---------------------------------------------------------------------------------------------


def old(magic: int, offset: int, word: str) -> bytes:
    """Return an entry of an old format: "key=value", "key=" for a tombstone."""
    key, _, value = word.partition("=")
    return make_message(magic, offset, key.encode(), value.encode() or None, timestamp=START_MS)


async def plant(path: Path, segments: dict[int, tuple[bytes, int]], checkpoint: int | None, **configs: str) -> None:
    """Create the topic, stop, and put these segments into its directory: base offset to content and time of the file."""
    async with stage(path, **configs):
        pass
    write_segments(path, segments, checkpoint)


def write_segments(path: Path, segments: dict[int, tuple[bytes, int]], checkpoint: int | None) -> None:
    """Write segments, and the cleaner's checkpoint, below a data directory."""
    for base_offset, (content, modified_ms) in segments.items():
        file = Path(names.log_file(str(path / "t-0"), base_offset))
        file.write_bytes(content)
        os.utime(file, (modified_ms / 1000, modified_ms / 1000))
    if checkpoint is not None:
        (path / names.CLEANER_CHECKPOINT).write_text(f"0\n1\nt 0 {checkpoint}\n")


@pytest.mark.parametrize("magic", [0, 1])
async def test_a_tombstone_of_an_old_format(tmp_path: Path, magic: int) -> None:
    """Its first round gives it a horizon, removes the value, and writes the present format; all told times come true."""
    content = old(magic, 0, "k=1") + old(magic, 1, "k=") + old(magic, 2, "z=1")
    await plant(tmp_path, {0: (content, START_MS)}, None, segment_ms=str(HOUR_MS), delete_retention_ms=str(DAY_MS))
    async with stage(tmp_path, is_there=True) as at:
        before = await at.record(1)
        assert (before.status, kinds(before)) == (
            explanation.IS_TOMBSTONE,
            [explanation.ACTIVE_SEGMENT, explanation.NOT_STAMPED],
        )
        assert before.goes_ms == START_MS + HOUR_MS + 1 + DAY_MS
        value = await at.record(0)
        assert (value.status, value.goes_ms) == (explanation.IS_SUPERSEDED, START_MS + HOUR_MS + 1)
        await at.is_there_until(START_MS + HOUR_MS + 1, 0)
        content = at.log.env.read_bytes(at.log.segments[0].path)
        assert [(header.base_offset, header.magic) for _, header in iter_headers(content)] == [(1, 2), (2, 2)]
        after = await at.goes_exactly_when_told(1)
        assert (kinds(after), after.goes_ms) == ([explanation.HORIZON], before.goes_ms)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("age_ms", [DAY_MS, DAY_MS - 1000])
async def test_a_tombstone_of_an_old_format_in_the_clean_part(tmp_path: Path, magic: int, age_ms: int) -> None:
    """If its file is older than the clean part's end by delete.retention.ms the next round removes it, else stamps it."""
    segments = {
        0: (old(magic, 0, "k=") + old(magic, 1, "a=1"), START_MS - age_ms),
        2: (old(magic, 2, "b=1"), START_MS),
        3: (b"", START_MS),
    }
    await plant(tmp_path, segments, 3, segment_ms=str(HOUR_MS), delete_retention_ms=str(DAY_MS))
    async with stage(tmp_path, is_there=True) as at:
        idle = await at.record(0)
        assert (kinds(idle)[0], idle.goes_ms) == (explanation.DIRTY_RATIO, None)
        await at.put("z=1")
        found = await at.record(0)
        round_ms = START_MS + HOUR_MS + 1
        assert gate(found, explanation.ACTIVE_SEGMENT).until_ms == round_ms
        if age_ms >= DAY_MS:
            assert (kinds(found), found.goes_ms) == ([explanation.ACTIVE_SEGMENT], round_ms)
        else:
            assert (kinds(found), found.goes_ms) == (
                [explanation.ACTIVE_SEGMENT, explanation.NOT_STAMPED],
                round_ms + DAY_MS,
            )
            at.clock.set_ms(round_ms)
            await at.settle()
        assert found.goes_ms is not None
        await at.is_there_until(found.goes_ms, 0)


# -- left behind ---------------------------------------------------------------------------------------------------------


async def test_a_record_superseded_within_the_clean_part_stays(tmp_path: Path) -> None:
    """No round maps the superseding record, so it stays; a later record of the key removes it at the stated time."""
    async with stage(tmp_path, segment_ms=str(HOUR_MS)) as at:
        await at.play("k=1 | roll | k=2 | roll")
        (await at.service()).states.set_checkpoint(("t", 0), 2)
        found = await at.record(0)
        assert (kinds(found), found.goes_ms, found.superseded_by) == ([explanation.BEHIND], None, 1)
        assert found.change is not None
        assert found.change.command == "compact t --partition 0"
        assert "a later record of the key" in found.change.text
        await at.stays(0)
        await at.put("k=3")
        found = await at.goes_exactly_when_told(0)
        assert (kinds(found), found.superseded_by) == ([explanation.ACTIVE_SEGMENT], 2)


async def test_a_record_superseded_within_the_clean_part_expires_under_both_policies(tmp_path: Path) -> None:
    """The record's segment is removed by age, at the stated time."""
    async with stage(tmp_path, cleanup_policy="compact,delete", retention_ms=str(DAY_MS)) as at:
        await at.play("k=1 | roll | k=2 | roll")
        # The clock has not moved since, so the cleaner has not looked.
        (await at.service()).states.set_checkpoint(("t", 0), 2)
        found = await at.goes_exactly_when_told(0)
        assert kinds(found) == [explanation.BEHIND, explanation.RETENTION_TIME]
        assert found.goes_ms == START_MS + DAY_MS + 1


# -- failed writes -------------------------------------------------------------------------------------------------------


async def test_a_round_that_could_not_write(tmp_path: Path) -> None:
    """The file, the reason and the time of the retry are stated; each failure doubles the pause, and then it succeeds."""
    env = MemoryEnv(SettableClock(START_MS))
    async with stage(DATA, env=env) as at:
        await at.play("k=1 | k=2 | roll")
        fault = env.fail("append", "/data/t-0/*.cleaned", errno.ENOSPC)
        await at.settle()
        found = await at.record(0)
        assert kinds(found) == [explanation.UNCLEANABLE]
        reason = gate(found, explanation.UNCLEANABLE).detail["reason"]
        assert "No space left on device" in reason
        assert ".log.cleaned" in reason
        assert found.goes_ms == START_MS + 60_000
        at.clock.set_ms(START_MS + 60_000)
        await at.settle()
        assert 0 in await at.offsets()
        fault.clear()
        found = await at.goes_exactly_when_told(0)
        assert gate(found, explanation.UNCLEANABLE).detail["failures"] == 2
        assert found.goes_ms == START_MS + 60_000 + 120_000
        assert fault.hits == 2


async def test_a_partition_that_refuses_writes(tmp_path: Path) -> None:
    """No round may touch it before a restart of the broker; then one does."""
    env = MemoryEnv(SettableClock(START_MS))
    async with stage(DATA, env=env) as at:
        await at.play("k=1 | k=2 | roll")
        path = at.log.active.path
        env.fail("append", path, errno.EIO, times=1, partial_bytes=60)
        env.fail("truncate", path, errno.EIO, times=1)
        with pytest.raises(AssertionError):
            await at.put("k=3")
        found = await at.record(0)
        assert (kinds(found), found.goes_ms, found.change) == ([explanation.BROKEN], None, None)
        assert "restart the broker" in gate(found, explanation.BROKEN).text
        assert kinds(await at.partition()) == [explanation.BROKEN]
        await at.stays(0)
    async with stage(DATA, env=env, is_there=True) as at:
        await at.settle()
        assert await at.offsets() == [1]
