"""Failed rounds in the cleaner's loop: corrupt segments, full disks, dead workers, bugs."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OutputOverflow
from diamant.cleaner.runners.contract import NoRoom, RunnerFailed
from diamant.cleaner.service.partition_states import RETRY_FIRST_MS
from diamant.storage.log.log import Log
from tests.builder import make_batch
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import HOUR_MS, SeveralLogs
from tests.waiting import wait_until

ONCE = {"min_cleanable_dirty_ratio": 0.0}


def corrupt(logs: SeveralLogs, log: Log, segment: int = 0) -> None:
    """Write bytes into a segment that are not a batch."""
    logs.env.open(log.segments[segment].path).pwrite(b"\x00" * 17, 0)


async def test_in_mode_kafka_a_corrupt_log_is_left_alone_for_good(logs: SeveralLogs) -> None:
    """Other logs are cleaned; the reason and the bytes of the corrupt one are shown until it is deleted
    (testMarksPartitionsAsOffline…).
    """
    broken, _ = logs.filthy("broken", 20), logs.filthy("fine", 10)
    corrupt(logs, broken)
    service = await logs.settled(mode=KAFKA)
    logs.clock.advance_ms(100 * HOUR_MS)
    logs.change(broken, delete_retention_ms=1)
    await service.settled()
    assert logs.cleaned == ["fine"]
    status = service.status()
    assert status.uncleanable_partitions_count == 1
    assert status.uncleanable_bytes == sum(segment.size for segment in broken.segments[:-1])
    assert [one.topic for one in status.partitions if one.uncleanable_reason] == ["broken"]
    assert "00000000000000000000.log" in str(status.partitions[0].uncleanable_reason)
    logs.delete(broken)
    assert service.status().uncleanable_partitions_count == 0


async def test_in_mode_prompt_a_corrupt_segment_is_left_out(logs: SeveralLogs) -> None:
    """The segments before and after it are cleaned, it is shown, its records stay; repaired, it is cleaned with the rest."""
    log = logs.add("t", **ONCE)
    for start in range(3):
        logs.fill(log, 10, keys=3)
        if start == 1:
            bad = log.segments[-3]
    path, good = bad.path, logs.env.read_bytes(bad.path)
    middle = len(good) // 2
    logs.env.open(path).pwrite(b"\xff" * 4, middle)
    last = {key: offset for offset, key in [(offset, f"k{offset % 10 % 3}") for offset in range(30)]}
    service = await logs.settled()
    assert not service.states.uncleanable
    (shown,) = service.status().partitions[0].quarantined
    assert shown.startswith(f"{bad.base_offset:020}.log at ")
    assert logs.env.read_bytes(path)[: len(good)] == good[:middle] + b"\xff" * 4 + good[middle + 4 :]
    assert logs.checkpoints["t", 0] <= bad.base_offset
    assert len(log.segments) < 8
    logs.clock.advance_ms(1)
    logs.env.remove(path)
    logs.env.write_atomically(path, good)
    bad.close()
    await service.settled()
    assert service.status().partitions[0].quarantined == ()
    assert sorted(logs.values(log)) == sorted((offset, key) for key, offset in last.items())
    assert logs.checkpoints["t", 0] == log.active.base_offset


@pytest.mark.parametrize("kind", ["shorter", "longer"])
async def test_a_corrupt_segment_restored_with_another_size_stays_left_out(
    logs: SeveralLogs, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next round would drop the bytes beyond the size that the broker knows, or readers would read past the end.
    The error is logged once. A changed configuration does not help; the right size does.
    """
    log = logs.add("t", **ONCE)
    for start in range(3):
        logs.fill(log, 10, keys=3)
        if start == 1:
            bad = log.segments[-3]
    path, good = bad.path, logs.env.read_bytes(bad.path)
    corrupt(logs, log, log.segments.index(bad))
    service = await logs.settled()
    other = good[: len(good) // 2] if kind == "shorter" else good + good[: len(good) // 2]
    for change in ({}, {"delete_retention_ms": 1}):
        logs.clock.advance_ms(HOUR_MS)
        logs.env.write_atomically(path, other)
        logs.change(log, **change)
        await service.settled()
        (shown,) = service.quarantined(("t", 0))
        assert f"{len(other)} bytes, {len(good)} expected" in shown
        assert logs.env.read_bytes(path) == other
    told = [message for message in caplog.messages if f"{path} has {len(other)} bytes, {len(good)} expected" in message]
    assert len(told) == 1
    assert "restart the broker" in told[0]
    logs.env.write_atomically(path, good)
    await service.settled()
    assert service.quarantined(("t", 0)) == ()
    assert {key for _, key in logs.values(log)} == {"k0", "k1", "k2"}


@pytest.mark.parametrize("mode", MODES)
async def test_larger_records_than_now_allowed_keep_a_log_from_being_cleaned_until_the_limit_is_raised(
    logs: SeveralLogs, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is uncleanable, with the sizes and the remedy in its reason, and is not tried before. Nothing is in quarantine."""
    log = logs.add("t", **ONCE)
    for _ in range(3):
        log.append_as_leader(memoryview(make_batch("k=" + "v" * 100, codec=1, timestamp=logs.clock.now_ms())))
        log.roll()
    logs.change(log, max_decompressed_message_bytes=107)
    service = await logs.settled(mode=mode)
    logs.clock.advance_ms(100 * HOUR_MS)
    await service.settled()
    (shown,) = service.status().partitions
    assert "108 exceeds" in str(shown.uncleanable_reason)
    assert "once max.decompressed.message.bytes is raised" in str(shown.uncleanable_reason)
    assert (shown.quarantined, service.states.uncleanable["t", 0].failures) == ((), 1)
    assert len([one for one in caplog.messages if "uncleanable, not tried again" in one]) == 1
    logs.change(log, max_decompressed_message_bytes=108)
    logs.clock.advance_ms(HOUR_MS)
    await service.settled()
    assert not service.states.uncleanable
    assert [offset for offset, _ in logs.values(log)] == [2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
async def test_a_missing_index_is_no_hindrance(logs: SeveralLogs, mode: str, suffix: str) -> None:
    """The round does not need its sources' indexes, and its output has one."""
    log = logs.filthy("t", 20, index_interval_bytes=0)
    before = dict((key, offset) for offset, key in logs.values(log))
    for segment in log.segments[:-1]:
        path = segment.path.removesuffix(".log") + suffix
        segment.close()
        if logs.env.exists(path):
            logs.env.remove(path)
    service = await logs.settled(mode=mode)
    assert logs.cleaned == ["t"]
    assert not service.states.uncleanable
    assert service.quarantined(("t", 0)) == ()
    assert logs.is_clean(log)
    assert dict((key, offset) for offset, key in logs.values(log)) == before
    assert logs.env.file_size(log.segments[0].path.removesuffix(".log") + suffix) > 0


async def test_a_segment_without_a_readable_beginning_is_left_out(logs: SeveralLogs) -> None:
    """Without a readable beginning, not even the segment's age is known."""
    log = logs.filthy("t", 20, max_compaction_lag_ms=HOUR_MS)
    corrupt(logs, log, 1)
    for segment in log.segments:
        segment.close()
        segment._first_timestamp = None
    service = await logs.settled()
    assert not service.states.uncleanable
    assert len(service.status().partitions[0].quarantined) == 1
    assert logs.cleaned


@pytest.mark.parametrize("mode", MODES)
async def test_a_full_disk_is_tried_again(logs: SeveralLogs, mode: str) -> None:
    """Nothing is lost; after the wait the log is cleaned, in both modes: Kafka takes the whole log directory offline."""
    log = logs.filthy("t", 20)
    before = logs.values(log)
    fault = logs.env.fail("append", "*.cleaned", OSError(errno.ENOSPC, "No space left on device"))
    service = await logs.settled(mode=mode)
    assert logs.values(log) == before
    assert "No space left" in service.states.uncleanable["t", 0].reason
    assert not [name for name in logs.env.list_dir(log.path) if name.endswith(".cleaned")]
    fault.clear()
    await service.settled()
    assert logs.cleaned == []
    logs.clock.advance_ms(RETRY_FIRST_MS)
    await wait_until(lambda: logs.cleaned == ["t"])
    assert not service.states.uncleanable
    assert logs.is_clean(log)


async def test_a_changed_configuration_brings_the_next_try_at_once_in_mode_prompt(logs: SeveralLogs) -> None:
    """The user may have fixed the cause."""
    log = logs.filthy("t", 20)
    fault = logs.env.fail("append", "*.cleaned", OSError(errno.ENOSPC, "No space left on device"))
    await logs.settled()
    fault.clear()
    logs.change(log, delete_retention_ms=5)
    await wait_until(lambda: logs.cleaned == ["t"])


@pytest.mark.parametrize("mode", MODES)
async def test_a_round_that_failed_for_the_logs_sake_is_tried_again_in_mode_prompt(
    logs: SeveralLogs, held: HeldRunner, mode: str
) -> None:
    """If neither the disk nor a worker is at fault. Mode kafka does not clean the partition until a restart."""
    held.errors = {"t": OutputOverflow("a.index", "the index is full")}
    held.go_on.set()
    log = logs.filthy("t", 20)
    service = await logs.settled(mode=mode, new_process_runner=lambda: held)
    assert "index is full" in service.states.uncleanable["t", 0].reason
    held.errors.clear()
    logs.clock.advance_ms(RETRY_FIRST_MS)
    await service.settled()
    logs.change(log, delete_retention_ms=5)
    await service.settled()
    assert logs.cleaned == (["t"] if mode == PROMPT else [])
    await logs.stop()
    service = await logs.settled(mode=mode)
    assert logs.cleaned == ["t"]


@pytest.mark.parametrize(("mode", "is_deleted"), [(KAFKA, False), (PROMPT, True)])
async def test_retention_continues_where_cleaning_fails_in_mode_prompt(
    logs: SeveralLogs, mode: str, is_deleted: bool
) -> None:
    """Kafka stops retention of an uncleanable partition."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    logs.env.fail("append", "*.cleaned", OSError(errno.EIO, "Input/output error"))
    service = await logs.settled(mode=mode)
    assert service.states.uncleanable
    logs.clock.advance_ms(HOUR_MS + 1)
    # In mode kafka a failure of the disk is tried again after the wait as well, and fails again.
    await service.settled()
    assert (log.log_start_offset == log.log_end_offset) is is_deleted


@pytest.mark.parametrize("mode", MODES)
async def test_an_unexpected_error_is_a_failure_of_its_round_only(
    logs: SeveralLogs, held: HeldRunner, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """A bug in an engine is logged with its traceback; other logs are cleaned."""
    held.errors = {"bad": ZeroDivisionError("a bug")}
    held.go_on.set()
    logs.filthy("bad", 30)
    logs.filthy("good", 20)
    with caplog.at_level(logging.WARNING):
        service = await logs.settled(mode=mode, new_process_runner=lambda: held)
    assert logs.cleaned == ["good"]
    assert "a bug" in service.states.uncleanable["bad", 0].reason
    assert any(record.exc_info for record in caplog.records)


async def test_a_look_that_fails_does_not_end_the_cleaner(logs: SeveralLogs) -> None:
    """The next one comes after the backoff."""
    logs.filthy("t", 20)
    logs.logs.error = RuntimeError("a bug")
    service = await logs.start(mode=KAFKA, backoff_ms=1000)
    await wait_until(lambda: logs.logs.error is None)
    logs.clock.advance_ms(1000)
    await wait_until(lambda: logs.cleaned == ["t"])
    assert service.status().dead_thread_count == 0


async def test_a_log_that_changes_all_the_time_is_not_tried_for_ever(logs: SeveralLogs) -> None:
    """After some rounds that found their log changed it counts as a failure, with its reason."""
    log = logs.filthy("t", 20)

    class Changing(HeldRunner):
        async def run(self, plan: CleanPlan, **rest: Any) -> CleanResult:
            self.plans.append(plan)
            log.segments[1].size -= 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "somewhere.log")

    runner = Changing(logs.env)
    logs.max_inline_bytes = -1
    service = await logs.settled(new_process_runner=lambda: runner)
    assert len(runner.plans) == 6
    assert "somewhere.log" in service.states.uncleanable["t", 0].reason


@pytest.mark.parametrize("mode", MODES)
async def test_a_worker_that_was_killed_is_replaced_at_once(logs: SeveralLogs, held: HeldRunner, mode: str) -> None:
    """A killed worker is replaced once: if the next one is killed, too, the round has failed, and the log waits for its retry."""
    log = logs.filthy("t", 20)
    held.failures = [RunnerFailed("worker 7 was killed by signal 9") for _ in range(3)]
    held.go_on.set()
    service = await logs.settled(mode=mode, new_process_runner=lambda: held)
    assert len(held.failures) == 1
    assert "signal 9" in service.states.uncleanable["t", 0].reason
    logs.clock.advance_ms(RETRY_FIRST_MS)
    await service.settled()
    logs.clock.advance_ms(2 * RETRY_FIRST_MS)
    await service.settled()
    assert logs.is_clean(log)
    assert not service.states.uncleanable


async def test_a_map_that_takes_no_key_is_a_failure(logs: SeveralLogs) -> None:
    """A round that ends at its first offset would be repeated forever."""
    logs.filthy("t", 20)
    service = await logs.settled(mode=KAFKA, dedupe_buffer_bytes=24)
    assert "offset map is too small" in service.states.uncleanable["t", 0].reason
    assert not (await service.request(("t", 0))).is_cleaned


async def test_a_round_that_has_no_room_is_not_restarted_at_once(logs: SeveralLogs, held: HeldRunner) -> None:
    """Another runner would fill the disk. The log waits for its retry, and is cleaned then."""
    logs.filthy("t", 20)
    held.failures = [NoRoom("t-0: not cleaned on this machine")]
    held.go_on.set()
    service = await logs.settled(new_process_runner=lambda: held)
    found = service.states.uncleanable["t", 0]
    assert "not cleaned on this machine" in found.reason
    assert found.retry_ms is not None
    assert logs.cleaned == []
    logs.clock.advance_ms(found.retry_ms - found.since_ms)
    await wait_until(lambda: logs.cleaned == ["t"])


async def test_a_fallback_for_other_machines_needs_room(logs: SeveralLogs, held: HeldRunner) -> None:
    """A round meant for other machines begins on this one only if the disk has enough free space."""
    logs.filthy("t", 20)

    class Away(HeldRunner):
        """A runner on other machines that is unavailable now."""

        progress_bytes = 0
        progress_stage = ""

        def suits(self, _: CleanPlan) -> bool:
            return True

        def takes(self, _: CleanPlan) -> bool:
            return False

    held.go_on.set()
    total, free = logs.env.disk_usage("/")
    logs.env.capacity_bytes = total - free + 10_000
    service = await logs.settled(
        new_process_runner=lambda: held, new_offload_runner=lambda _: Away(logs.env), offload_from_bytes=0
    )
    assert held.plans == []
    found = service.states.uncleanable["t", 0]
    assert f"only {logs.env.disk_usage('/')[1]} are free" in found.reason
    logs.env.capacity_bytes = None
    assert found.retry_ms is not None
    logs.clock.advance_ms(found.retry_ms - found.since_ms)
    await wait_until(lambda: logs.cleaned == ["t"])
