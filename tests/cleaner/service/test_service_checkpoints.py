"""The files of the cleaner's loop, its stop and its start."""

from __future__ import annotations

import errno

import pytest

from diamant.cleaner.rules.modes import KAFKA, PROMPT
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import CHECKPOINT, HOUR_MS, START_MS, SeveralLogs
from tests.waiting import wait_until

LAST_CLEANED = "/data/diamant-last-cleaned-checkpoint"


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_the_key_of_hashes_is_kept(logs: SeveralLogs, held: HeldRunner, mode: str) -> None:
    """In mode prompt the key survives a restart, as the filters on disk need it. In mode kafka there is no key on disk."""
    logs.filthy("t", 20)
    for count in (1, 2):
        held.is_closed = False
        await logs.start(mode=mode, new_process_runner=lambda: held)
        await wait_until(lambda count=count: len(held.plans) == count)  # type: ignore[misc]
        await logs.stop()
    keys = {plan.hash_key for plan in held.plans}
    assert len(keys) == (1 if mode == PROMPT else 2)
    assert logs.env.exists("/data/diamant-hash-key") is (mode == PROMPT)


async def test_a_restart_continues_at_the_checkpoint(logs: SeveralLogs) -> None:
    """The next write drops the entries of deleted partitions."""
    log = logs.filthy("t", 20)
    logs.write_checkpoints(gone=7)
    await logs.start()
    assert logs.service is not None
    await logs.service.settled()
    first_end = log.active.base_offset
    await logs.stop()
    assert logs.checkpoints == {("t", 0): first_end}
    logs.fill(log, 5)
    service = await logs.start()
    report = await service.request(("t", 0))
    if report.range is not None and report.result is not None:
        assert report.range.first_dirty_offset == first_end
    await service.settled()
    assert logs.checkpoints == {("t", 0): log.active.base_offset}


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_when_a_log_was_cleaned_is_known_after_a_restart(logs: SeveralLogs, mode: str) -> None:
    """The times are known for existing logs, after a restart and after a kill. An empty or damaged file is not an error."""
    log = logs.filthy("t", 20)
    logs.filthy("gone", 20)
    service = await logs.settled(mode=mode)
    logs.delete(logs.logs["gone", 0])
    await logs.stop()
    logs.clock.advance_ms(HOUR_MS)
    service = await logs.start(mode=mode)
    assert [(one.topic, one.last_cleaned_ms) for one in service.status().partitions] == [("t", START_MS)]
    logs.fill(log, 20)
    await service.settled()
    assert logs.env.read_bytes(LAST_CLEANED) == f"0\n1\nt 0 {START_MS + HOUR_MS}\n".encode(), "before the stop"
    for content in (b"", b"0\nmany\n"):
        await logs.stop()
        logs.env.write_atomically(LAST_CLEANED, content)
        service = await logs.settled(mode=mode)
        assert service.status().partitions[0].last_cleaned_ms is None
        assert logs.checkpoints == {("t", 0): log.active.base_offset}


async def test_a_deleted_log_leaves_the_checkpoint_file_soon(logs: SeveralLogs) -> None:
    """The file is written before the next cycle: after a crash, a new log of that name would otherwise count as clean."""
    log = logs.filthy("t", 20)
    await logs.settled(backoff_ms=HOUR_MS)
    assert list(logs.checkpoints) == [("t", 0)]
    logs.delete(log)
    await wait_until(lambda: logs.checkpoints == {})


async def test_a_broken_checkpoint_file_counts_as_empty(logs: SeveralLogs) -> None:
    """Everything is cleaned once more."""
    log = logs.filthy("t", 20)
    logs.env.write_atomically(CHECKPOINT, b"0\nmany\n")
    await logs.settled()
    assert logs.checkpoints == {("t", 0): log.active.base_offset}


async def test_a_checkpoint_that_cannot_be_written_is_written_later(logs: SeveralLogs) -> None:
    """The round succeeds nevertheless: without the entry the next start would only clean more."""
    logs.filthy("t", 20)
    fault = logs.env.fail("create", f"{CHECKPOINT}*", OSError(errno.ENOSPC, "No space left on device"))
    service = await logs.settled()
    assert logs.cleaned == ["t"]
    assert logs.checkpoints == {}
    fault.clear()
    await service.settled()
    assert list(logs.checkpoints) == [("t", 0)]


async def test_a_stop_ends_a_round_and_loses_nothing(logs: SeveralLogs, held: HeldRunner) -> None:
    """The log is as it was; stopping twice is harmless; the next start cleans it."""
    log = logs.filthy("t", 20)
    before = logs.values(log)
    service = await logs.start(new_process_runner=lambda: held)
    await wait_until(lambda: len(held.plans) == 1)
    await logs.stop()
    await service.stop()
    assert (logs.values(log), logs.checkpoints) == (before, {})
    service = await logs.settled()
    assert logs.is_clean(log)
