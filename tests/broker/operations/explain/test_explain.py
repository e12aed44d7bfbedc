"""Reasons why records are still there: each gate is created in a real broker, and its time checked by moving the clock."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from diamant.broker.operation_errors import BadArgument, NotFound
from diamant.cleaner.explain import explanation
from diamant.cleaner.explain.explanation import RecordExplanation
from diamant.protocol.errors import ErrorCode
from tests.broker.compacted import produce
from tests.broker.operations.explain.explained import DAY_MS, HOUR_MS, START_MS, Stage, gate, kinds, stage
from tests.broker.wire import CREATE_PARTITIONS
from tests.waiting import wait_until


def flip(path: str, modified_s: int) -> None:
    """Flip a bit of the last record's value, or restore it, and set the file's time."""
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    os.utime(path, (modified_s, modified_s))


# -- gates of rounds -----------------------------------------------------------------------------------------------------


async def test_a_live_value_stays(tmp_path: Path) -> None:
    """The latest value of a key is kept for that reason alone, forever."""
    async with stage(tmp_path, segment_ms=str(HOUR_MS)) as at:
        await at.put("k=1")
        found = await at.record(0)
        assert (kinds(found), found.status, found.goes_ms) == ([explanation.LIVE], explanation.IS_LIVE, None)
        await at.stays(0)


@pytest.mark.parametrize(
    ("script", "gates", "configs"),
    [
        ("k=1 | +1000 | k=2", {explanation.ACTIVE_SEGMENT: START_MS + HOUR_MS + 1}, {"segment_ms": str(HOUR_MS)}),
        (
            f"k=1 a={'x' * 500} | roll | settle | +{HOUR_MS} | k=2 | roll",
            {explanation.DIRTY_RATIO: START_MS + 7 * HOUR_MS + 1},
            {"min_cleanable_dirty_ratio": "0.9", "max_compaction_lag_ms": str(6 * HOUR_MS)},
        ),
        (
            f"k=1 | +{HOUR_MS} | k=2 | roll",
            {explanation.MIN_LAG: START_MS + 3 * HOUR_MS},
            {"min_compaction_lag_ms": str(2 * HOUR_MS)},
        ),
        (
            "k=1 | k=2",
            {explanation.ACTIVE_SEGMENT: START_MS + HOUR_MS + 1, explanation.MIN_LAG: START_MS + 5 * HOUR_MS},
            {"segment_ms": str(HOUR_MS), "min_compaction_lag_ms": str(5 * HOUR_MS)},
        ),
        (
            "k=1 | +1000 | k=2",
            {explanation.NOT_COMPACTED: None, explanation.RETENTION_TIME: START_MS + 1000 + HOUR_MS + 1},
            {"cleanup_policy": "delete", "retention_ms": str(HOUR_MS)},
        ),
        (
            "k=1 | roll",
            {explanation.LIVE: None, explanation.RETENTION_TIME: START_MS + DAY_MS + 1},
            {"cleanup_policy": "compact,delete", "retention_ms": str(DAY_MS)},
        ),
    ],
    ids=["active segment", "dirty ratio", "shortest lag", "several", "only deleted", "live under both policies"],
)
async def test_a_record_goes_when_its_last_gate_opens(
    tmp_path: Path, script: str, gates: dict[str, int | None], configs: dict[str, str]
) -> None:
    """All closed gates are listed, each with its own time: mode prompt closes segments by time, max.compaction.lag.ms makes
    a round due, the superseding record's lag counts, and retention removes whole segments, also active ones and live values.
    """
    async with stage(tmp_path, **configs) as at:
        await at.play(script)
        found = await at.goes_exactly_when_told(0)
        assert {one.kind: one.until_ms for one in found.gates} == gates
        *_, last_ms = gates.values()
        assert found.goes_ms == last_ms
        assert found.leaves_disk_ms == found.goes_ms + 60_000


@pytest.mark.parametrize(("mode", "waits_ms"), [("prompt", HOUR_MS), ("kafka", 30 * DAY_MS + HOUR_MS)])
async def test_a_timestamp_in_the_future(tmp_path: Path, mode: str, waits_ms: int) -> None:
    """Mode prompt counts the shortest lag from the append; Kafka counts it from the timestamp, and the gate says that."""
    broker = {"diamant_cleaner_mode": mode}
    configs = {"message_timestamp_after_max_ms": str(40 * DAY_MS), "min_compaction_lag_ms": str(HOUR_MS)}
    async with stage(tmp_path, broker, **configs) as at:
        await at.put("k=1", ahead_ms=30 * DAY_MS)
        await at.put("k=2", ahead_ms=30 * DAY_MS)
        await at.roll()
        found = await at.goes_exactly_when_told(0)
        assert [(one.kind, one.until_ms) for one in found.gates] == [(explanation.MIN_LAG, START_MS + waits_ms)]
        assert found.gates[0].text.endswith("in the future") == (mode == "kafka")


@pytest.mark.parametrize(
    ("script", "kind", "closing", "configs"),
    [
        ("k=1 | k=2", explanation.ACTIVE_SEGMENT, "settle", {"internal_segment_bytes": "1000"}),
        (
            f"k=1 a={'x' * 500} | roll | settle | k=2 | roll",
            explanation.DIRTY_RATIO,
            "roll | settle",
            {"min_cleanable_dirty_ratio": "0.5"},
        ),
        (
            "k=1 | roll",
            explanation.RETENTION_SIZE,
            "settle",
            {"cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "1000"},
        ),
    ],
    ids=["active segment", "dirty ratio", "retention by size"],
)
async def test_a_record_goes_with_the_bytes_that_are_missing(
    tmp_path: Path, script: str, kind: str, closing: str, configs: dict[str, str]
) -> None:
    """With one byte less than stated it stays, with the stated number it goes; no time is stated."""
    async with stage(tmp_path, **{"segment_ms": str(400 * DAY_MS), **configs}) as at:
        await at.play(script)
        found = await at.record(0)
        missing = gate(found, kind)
        assert missing.bytes_more is not None
        assert (missing.until_ms, found.goes_ms) == (None, None) or kind == explanation.ACTIVE_SEGMENT
        assert kind != explanation.DIRTY_RATIO or 0 < missing.detail["dirty_ratio"] < 0.5
        await at.put_bytes(missing.bytes_more - 1)
        await at.play(closing)
        assert 0 in await at.offsets()
        assert gate(await at.record(0), kind).bytes_more == 1
        await at.play(f"z=1 | {closing}")
        assert 0 not in await at.offsets()


async def test_an_open_transaction(tmp_path: Path) -> None:
    """Nothing in its segment or after it is cleaned before it ends, whichever producer it belongs to."""
    async with stage(tmp_path) as at:
        await at.put("k=1")
        at.put_transactional("other", producer_id=5)
        await at.play("k=2 | roll | settle")
        found = await at.record(0)
        assert (kinds(found), found.goes_ms) == ([explanation.OPEN_TRANSACTION], None)
        assert gate(found, explanation.OPEN_TRANSACTION).detail["producer_id"] == 5
        assert gate(found, explanation.OPEN_TRANSACTION).detail["since_ms"] == START_MS
        assert (await at.record(1, "other")).status == explanation.IS_UNDECIDED
        await at.stays(0)
        at.end_transaction(is_commit=False)
        found = await at.record(0)
        assert (kinds(found), found.goes_ms) == ([explanation.DUE], at.clock.now_ms())
        assert (await at.record(1, "other")).status == explanation.IS_ABORTED
        await at.settle()
        assert await at.offsets() == [2, 3]


# -- tombstones ----------------------------------------------------------------------------------------------------------


async def test_a_tombstone_from_its_writing_to_its_horizon(tmp_path: Path) -> None:
    """Before its first round, the time of that round is stated, then the horizon; both come true."""
    async with stage(tmp_path, segment_ms=str(HOUR_MS), delete_retention_ms=str(DAY_MS)) as at:
        await at.play("k=1 | k= | z=1")
        before = await at.record(1)
        assert before.status == explanation.IS_TOMBSTONE
        assert kinds(before) == [explanation.ACTIVE_SEGMENT, explanation.NOT_STAMPED]
        assert before.goes_ms == START_MS + HOUR_MS + 1 + DAY_MS
        await at.is_there_until(START_MS + HOUR_MS + 1, 0)
        # The next round releases a file of the same name, which the removal of this one's must not meet.
        at.clock.advance_ms(at.log.config.file_delete_delay_ms)
        await wait_until(lambda: not [*Path(at.log.path).glob("*.deleted")])
        after = await at.goes_exactly_when_told(1)
        assert kinds(after) == [explanation.HORIZON]
        assert after.goes_ms == before.goes_ms == after.horizon_ms
        assert (await at.broker.explain("t", key="k")).records == 1, "in the .deleted file"


async def test_a_tombstone_in_mode_kafka_waits_for_another_round(tmp_path: Path) -> None:
    """In mode kafka the tombstone's horizon passes, but no round follows."""
    async with stage(tmp_path, broker={"diamant_cleaner_mode": "kafka"}) as at:
        await at.play("k=1 | k= | z=1 | roll | settle")
        found = await at.record(1)
        assert (kinds(found), found.goes_ms) == ([explanation.HORIZON, explanation.WAITS_FOR_ROUND], None)
        await at.stays(1)
        await at.play("k2=1 | roll")
        assert (await at.record(1)).goes_ms == at.clock.now_ms()
        await at.settle()
        assert 1 not in await at.offsets()


async def test_mode_kafka_closes_a_segment_by_an_append_only(tmp_path: Path) -> None:
    """No time of removal is told in mode kafka; the timestamp of an append that would close the segment is stated."""
    async with stage(tmp_path, broker={"diamant_cleaner_mode": "kafka"}, segment_ms=str(HOUR_MS)) as at:
        await at.play("k=1 | k=2")
        found = await at.record(0)
        active = gate(found, explanation.ACTIVE_SEGMENT)
        assert (kinds(found), found.goes_ms, active.until_ms) == ([explanation.ACTIVE_SEGMENT], None, None)
        assert active.detail["closed_by_timestamp_above_ms"] == START_MS + HOUR_MS
        await at.stays(0)
        await at.play("z=1 | settle")
        assert 0 not in await at.offsets()


# -- what is wrong -------------------------------------------------------------------------------------------------------


async def test_a_segment_in_quarantine(tmp_path: Path) -> None:
    """Records of a segment in quarantine, and those that it would supersede, stay until it is readable; so do later
    tombstones.
    """
    async with stage(tmp_path, delete_retention_ms="1000") as at:
        await at.play("k=1 | roll")
        corrupt = await at.put("k=2")
        path = at.log.active.path
        await at.play("roll | d= | z=1 | roll")
        flip(path, 1000)
        await at.settle()
        found = await at.record(0)
        assert kinds(found) == [explanation.LIVE], "a record that cannot be read supersedes nothing that is known"
        whole = await at.partition(key="k")
        assert explanation.QUARANTINED in kinds(whole)
        assert str(corrupt) in gate(whole, explanation.QUARANTINED).text
        assert any("checksum" in problem for problem in whole.problems)
        tombstone = await at.record(2, "d")
        assert (kinds(tombstone), tombstone.goes_ms) == ([explanation.QUARANTINED], None)
        await at.stays(2, 10 * DAY_MS)
        flip(path, 2000)
        await at.settle()
        assert 0 not in await at.offsets()


async def test_a_cleaner_that_is_off(tmp_path: Path) -> None:
    """Nothing is removed automatically."""
    async with stage(tmp_path, broker={"log_cleaner_enable": "false"}) as at:
        await at.play("k=1 | k=2 | roll")
        found = await at.record(0)
        assert (kinds(found), found.goes_ms) == ([explanation.CLEANER_DISABLED], None)
        await at.stays(0)


async def test_a_pause_of_the_cleaner_is_a_reason(tmp_path: Path) -> None:
    """Nothing is removed while the cleaner is paused."""
    async with stage(tmp_path) as at:
        service = await at.service()
        await service.abort_and_pause(("t", 0))
        await at.play("k=1 | k=2 | roll")
        found = await at.record(0)
        assert (kinds(found), found.goes_ms) == ([explanation.PAUSED], None)
        await at.stays(0)
        service.resume(("t", 0))
        await at.settle()
        assert 0 not in await at.offsets()


@pytest.mark.parametrize(
    ("key", "option"),
    [("k", "--key k"), ("it's", """--key 'it'"'"'s'"""), ("-n", "--key-hex 2d6e"), ("\n", "--key-hex 0a")],
)
async def test_only_a_tombstone_is_told_to_be_erased_and_its_key_is_named(
    tmp_path: Path, key: str, option: str
) -> None:
    """The partition is told no erasure, and neither is a tombstone whose key is live again: its value would be erased."""
    async with stage(tmp_path, delete_retention_ms=str(DAY_MS)) as at:
        await at.play(f"{key}= | z=1 | roll | settle")
        kept = (await at.record(0, key)).change
        assert kept is not None
        assert kept.command == f"erase t {option} --reason REASON --now"
        clean = await at.partition()
        assert (kinds(clean), clean.change) == ([explanation.HORIZON], None)
        await at.put(f"{key}=2")
        superseded = await at.record(0, key)
        assert superseded.status == explanation.IS_SUPERSEDED
        dirty = await at.partition()
        assert explanation.HORIZON not in kinds(dirty)
        for one in (superseded, dirty):
            assert one.change is not None
            assert one.change.command == "compact t --partition 0"


async def test_a_record_whose_successor_is_in_the_active_segment(tmp_path: Path) -> None:
    """The record itself is in a closed segment, and that is told."""
    async with stage(tmp_path) as at:
        await at.play("k=1 | roll | settle | k=2 | k=3")
        closed, active = await at.record(0), await at.record(1)
        assert kinds(closed) == kinds(active) == [explanation.ACTIVE_SEGMENT]
        assert closed.gates[0].text == f"the later record is in the {active.gates[0].text}"


# -- retention -----------------------------------------------------------------------------------------------------------


async def test_no_policy_at_all(tmp_path: Path) -> None:
    """Nothing is ever removed."""
    async with stage(tmp_path, cleanup_policy="") as at:
        await at.put("k=1")
        found = await at.record(0)
        assert (kinds(found), found.goes_ms) == ([explanation.NOT_COMPACTED], None)
        assert "empty" in found.gates[0].text
        whole = (await at.partition()).change
        assert whole is not None
        assert (whole.command, whole.configs) == (None, {"cleanup.policy": "compact"}), "no redaction of a partition"


# -- what would have it go now -------------------------------------------------------------------------------------------


async def held_by(at: Stage, which: str, later_ms: int = 0) -> RecordExplanation:
    """Let one gate alone hold the superseded record at offset 1; return its explanation, with a suggested command."""
    await at.put("a=" + "x" * 300, "k=1")
    if which == explanation.DIRTY_RATIO:
        await at.roll()
        await at.settle()
    await at.play(f"k=2 | +{later_ms}")
    if which != explanation.ACTIVE_SEGMENT:
        await at.roll()
    await at.settle()
    found = await at.record(1)
    assert kinds(found) == [which]
    assert found.change is not None
    assert found.change.command is not None
    return found


@pytest.mark.parametrize("which", [explanation.ACTIVE_SEGMENT, explanation.DIRTY_RATIO, explanation.MIN_LAG])
async def test_the_configuration_that_is_proposed_is_enough(tmp_path: Path, which: str) -> None:
    """With the suggested setting, the cleaner's next pass removes the record."""
    configs = {
        explanation.ACTIVE_SEGMENT: {},
        explanation.DIRTY_RATIO: {"min_cleanable_dirty_ratio": "0.9"},
        explanation.MIN_LAG: {"min_compaction_lag_ms": str(DAY_MS)},
    }[which]
    async with stage(tmp_path, None, **configs) as at:
        found = await held_by(at, which, 10_000)
        assert found.change is not None
        assert found.change.configs
        await at.alter(**{name.replace(".", "_"): value for name, value in found.change.configs.items()})
        await at.settle()
        assert 1 not in await at.offsets()


@pytest.mark.parametrize(
    "which", [explanation.ACTIVE_SEGMENT, explanation.DIRTY_RATIO, explanation.MIN_LAG, explanation.CLEANER_DISABLED]
)
async def test_the_command_that_is_proposed_is_enough(tmp_path: Path, which: str) -> None:
    """The record is gone when the suggested command returns."""
    configs = {
        explanation.DIRTY_RATIO: {"min_cleanable_dirty_ratio": "0.9"},
        explanation.MIN_LAG: {"min_compaction_lag_ms": str(DAY_MS)},
    }
    broker = {"log_cleaner_enable": str(which != explanation.CLEANER_DISABLED).lower()}
    async with stage(tmp_path, broker, **configs.get(which, {})) as at:
        found = await held_by(at, which)
        assert found.change is not None
        assert found.change.command is not None
        verb, topic, _, partition, *force = found.change.command.split()
        assert verb == "compact"
        report = await at.broker.compact(topic, int(partition), force=force == ["--force"])
        assert report.is_reached
        assert 1 not in await at.offsets()


# -- questions -----------------------------------------------------------------------------------------------------------


async def test_every_record_of_a_key_and_what_the_log_has_let_go_of(tmp_path: Path) -> None:
    """Segment by segment, and in `.deleted` files until they leave the disk."""
    async with stage(tmp_path) as at:
        await at.play("k=1 other=1 | roll | k=2 | roll | settle | k=3")
        found = await at.partition(key="k")
        present = [one for one in found.records if not one.segment.endswith(".deleted")]
        removed = [one for one in found.records if one.segment.endswith(".deleted")]
        assert [(one.offset, one.status) for one in present] == [
            (2, explanation.IS_SUPERSEDED),
            (3, explanation.IS_LIVE),
        ]
        assert [(one.offset, kinds(one)) for one in removed] == [
            (0, [explanation.FILE_DELAY]),
            (2, [explanation.FILE_DELAY]),
        ]
        assert {one.leaves_disk_ms for one in removed} == {START_MS + 60_000}


async def test_by_an_offset(tmp_path: Path) -> None:
    """The record's key is determined, and all of its records are explained."""
    async with stage(tmp_path) as at:
        await at.play("k=1 j=1 | k=2")
        found = await at.broker.explain("t", partition=0, offset=2)
        assert found.key == b"k"
        assert [one.offset for one in found.partitions[0].records] == [0, 2]


async def test_the_partition_as_a_whole(tmp_path: Path) -> None:
    """The start of its dirty part, the reason why it is not cleaned, and the next round."""
    async with stage(tmp_path, segment_ms=str(HOUR_MS)) as at:
        empty = await at.partition()
        assert (kinds(empty), empty.next_round_ms) == ([], None)
        await at.play("k=1 | k=2")
        found = await at.partition()
        assert (kinds(found), found.next_round_ms) == ([explanation.ACTIVE_SEGMENT], START_MS + HOUR_MS + 1)
        assert (found.first_dirty_offset, found.first_uncleanable_offset, found.log_end_offset) == (0, 0, 2)
        at.clock.set_ms(START_MS + HOUR_MS + 1)
        await at.settle()
        clean = await at.partition()
        assert (kinds(clean), clean.next_round_ms, clean.first_dirty_offset) == ([], None, 2)


async def test_a_log_that_is_cleaned_while_it_is_explained(tmp_path: Path) -> None:
    """The explanation is of one moment: all records of the key, whatever the cleaner does during the read.

    Outputs of a round that exist at that moment are reported as not read.
    """
    async with stage(tmp_path, file_delete_delay_ms="0") as at:
        for number in range(20):
            await at.put(f"k={number}")
            await at.roll()
        asked = [at.partition(key="k") for _ in range(3)]
        settled = at.settle()
        *_, explained = await asyncio.gather(settled, asyncio.gather(*asked))
        for found in explained:
            present = [one for one in found.records if not one.segment.endswith(".deleted")]
            assert present[-1].status == explanation.IS_LIVE
            assert [one.offset for one in present][-1] == 19
            assert all("outputs of a round that is in progress" in one for one in found.problems)


async def test_questions_that_make_no_sense(tmp_path: Path) -> None:
    """An unknown topic, a missing partition, an offset without a partition, and two questions at once are refused."""
    async with stage(tmp_path) as at:
        for arguments, error in (
            ({"topic": "nope"}, NotFound),
            ({"topic": "t", "partition": 7}, NotFound),
            ({"topic": "t", "offset": 3}, BadArgument),
            ({"topic": "t", "partition": 0, "offset": -3}, BadArgument),
            ({"topic": "t", "key": "k", "tombstones": True}, BadArgument),
            ({"topic": "t", "partition": 0, "offset": 3}, NotFound),
        ):
            with pytest.raises(error):
                await at.broker.explain(**arguments)


# -- more partitions -------------------------------------------------------------------------------------------------------


async def test_a_key_that_goes_to_another_partition_by_now(tmp_path: Path) -> None:
    """The new partition is that of the default partitioners; it is proven once it has a later record. The old one has no such
    note.
    """
    async with stage(tmp_path) as at:
        await at.put("k=1")
        assert kinds(await at.record(0)) == [explanation.LIVE]
        grown = {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout_ms": 1000, "validate_only": False}
        assert (await at.wire.call(CREATE_PARTITIONS, 3, grown)).results[0].error_code == ErrorCode.NONE
        by_java, by_librdkafka = 2, 1
        found = await at.record(0)
        assert kinds(found) == [explanation.STRANDED]
        assert gate(found, explanation.STRANDED).detail == {"partitions": sorted([by_java, by_librdkafka])}
        assert kinds(await at.at_offset(0)) == [explanation.STRANDED]
        at.clock.advance_ms(1)
        await produce(at.wire, "t", "k=2", partition=by_java, timestamp=at.clock.now_ms())
        partitions = (await at.broker.explain("t", key="k")).partitions
        (here,), (there,) = partitions[0].records, partitions[by_java].records
        assert (
            f"partition {by_java} takes this key now and has a later record of it (offset 0)"
            in gate(here, explanation.STRANDED).text
        )
        assert here.change is not None
        assert "into partition 0 itself" in here.change.text
        assert kinds(there) == [explanation.LIVE]
