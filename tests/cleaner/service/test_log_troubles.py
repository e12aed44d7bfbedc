"""A log with a missing file, or that cannot be examined: cleaning and retention of others continue, and it is logged once."""

from __future__ import annotations

import errno
import logging

import pytest

from diamant.cleaner.rules.modes import MODES
from diamant.storage.segments.segment import Segment
from tests.cleaner.service.several_logs import HOUR_MS, SeveralLogs

BOTH = frozenset({"compact", "delete"})


def quarantined(logs: SeveralLogs) -> tuple[Segment, bytes]:
    """Return a log `bad` with a corrupt segment in the middle, and the segment's original content."""
    log = logs.add("bad", min_cleanable_dirty_ratio=0.0)
    for _ in range(3):
        logs.fill(log, 10, keys=3)
    segment = log.segments[4]
    content = logs.env.read_bytes(segment.path)
    logs.env.open(segment.path).pwrite(b"\xff" * 4, 70)
    return segment, content


def messages(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Lines from WARNING on that have all these words."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.parametrize("has_same_times", [False, True], ids=["repaired", "as it was"])
async def test_a_quarantined_file_may_be_moved_away(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture, has_same_times: bool
) -> None:
    """Others are cleaned and retained. Once the file is back it is examined again, whatever its modification time."""
    segment, good = quarantined(logs)
    path = segment.path
    mtime_ms = logs.env.mtime_ms(path)
    service = await logs.settled()
    assert service.quarantined(("bad", 0))
    logs.env.rename(path, "/data/taken-away")
    other = logs.filthy("other", 20, cleanup_policy=BOTH, retention_ms=HOUR_MS)
    logs.fill(logs.logs["bad", 0], 10)
    caplog.clear()
    for _ in range(3):
        logs.clock.advance_ms(1000)
        await service.settled()
    assert logs.is_clean(other)
    assert len(messages(caplog, path, "is missing: restore it")) == len(messages(caplog, path, "uncleanable")) == 1
    assert not messages(caplog, "failed to look")
    assert service.quarantined(("bad", 0))
    logs.clock.advance_ms(2 * HOUR_MS)
    await service.settled()
    assert other.log_start_offset == other.log_end_offset
    if has_same_times:
        logs.env.rename("/data/taken-away", path)
        assert logs.env.mtime_ms(path) == mtime_ms
    else:
        logs.env.write_atomically(path, good)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        await service.settled()
    assert [one for one in caplog.messages if "out of quarantine" in one]
    assert bool(service.quarantined(("bad", 0))) is has_same_times
    assert has_same_times or logs.is_clean(logs.logs["bad", 0])


@pytest.mark.parametrize("mode", MODES)
async def test_retention_of_the_others_continues(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Without timestamps the file's time counts. A missing file is logged once, and again if it is missing after a return."""
    gone = logs.fill(logs.add("gone", cleanup_policy=BOTH, retention_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0), 10)
    other = logs.filthy("other", 20, cleanup_policy=BOTH, retention_ms=HOUR_MS)
    service = await logs.settled(mode=mode)
    for segment in gone.segments:
        segment.max_timestamp = -1
    path = gone.segments[0].path
    for _ in range(2):
        caplog.clear()
        logs.env.rename(path, "/data/taken-away")
        logs.clock.advance_ms(20 * 60_000)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                logs.clock.advance_ms(15_000)
                await service.settled()
        assert len(messages(caplog, "retention failed", path)) == 1
        logs.env.rename("/data/taken-away", path)
        await service.settled()
        logs.clock.advance_ms(15_000)
        await service.settled()
    logs.env.rename(path, "/data/taken-away")
    logs.clock.advance_ms(2 * HOUR_MS)
    await service.settled()
    assert other.log_start_offset == other.log_end_offset


@pytest.mark.parametrize("mode", MODES)
async def test_a_bug_in_the_look_at_one_log_stops_no_other(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """The bug is logged once, with its traceback."""
    logs.filthy("bad", 30).producers = None  # type: ignore[assignment]
    logs.filthy("good", 20)
    with caplog.at_level(logging.WARNING):
        service = await logs.start(mode=mode)
        for _ in range(3):
            await service.settled()
    assert logs.cleaned == ["good"]
    (line,) = messages(caplog, "bad-0", "NoneType")
    assert any(record.exc_info for record in caplog.records if record.getMessage() == line)


async def test_a_segment_that_cannot_be_closed_is_reported_once(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as the error is the same; the segment is closed once the error is gone."""
    log = logs.add("t", max_compaction_lag_ms=HOUR_MS)
    logs.data(log, "k=v")
    service = await logs.start()
    logs.clock.advance_ms(HOUR_MS + 1)
    fault = logs.env.fail("open", "*t-0/*.log", OSError(errno.ENOSPC, "No space left on device"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await service.settled()
    assert len(messages(caplog, "cannot be rolled", "No space")) == 1
    fault.clear()
    await service.settled()
    assert len(log.segments) == 2
