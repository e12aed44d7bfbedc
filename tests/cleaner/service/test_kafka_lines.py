"""Kafka's log lines in mode kafka, compared with those of Apache Kafka 4.3.1."""

from __future__ import annotations

import logging
import re

import pytest

from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.result import CleanResult, CleanStats
from diamant.cleaner.service.kafka_log_lines import log_round
from tests.cleaner.service.several_logs import SeveralLogs
from tests.cleaner.service.test_summary import plan_of

LOGGER = "org.apache.kafka.storage.internals.log.LogCleaner"

ROUND = """[kafka-log-cleaner-thread-0]:\x20
	Log cleaner thread 0 cleaned log full-0 (dirty section = [0, 78642])
	10.0 MB of log processed in 0.9 seconds (11.0 MB/sec).
	Indexed 4.4 MB in 0.6 seconds (6.8 Mb/sec, 71.3% of total time)
	Buffer utilization: 90.0%
	Cleaned 10.0 MB in 0.3 seconds (38.5 Mb/sec, 28.7% of total time)
	Start size: 10.0 MB (177,000 messages)
	End size: 10.0 MB (177,000 messages)
	0.0% size reduction (0.0% fewer messages)
"""
"""Of a Kafka 4.3.1 whose map was full: log.cleaner.dedupe.buffer.size=2097152, one segment of 177,000 keys."""


def _masked(text: str) -> str:
    return re.sub(r"[\d,]+(\.\d+)?", lambda number: "1.0" if number[1] else "1", text)


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == LOGGER]


def test_a_round_is_reported_in_kafkas_words(caplog: pytest.LogCaptureFixture) -> None:
    """Each line has Kafka's words, and its figures in Kafka's format."""
    stats = CleanStats(
        *(0.0, 0.6, 0.9, 4_600_000),
        bytes_read=10_485_760,
        messages_read=177_000,
        bytes_written=10_485_760,
        messages_written=177_000,
        map_utilization=0.9,
    )
    plan = plan_of(0, 177_000, 354_000, map_max_entries=78_642)
    with caplog.at_level(logging.INFO):
        log_round(0, plan, CleanResult(78_642, (), stats, "inline"))
    full, told = _told(caplog)
    assert _masked(told).replace("topic-1", "full-1") == _masked(ROUND)
    assert "Buffer utilization: 90.0%" in told
    assert (
        full == "Cleaner 0: Offset map is full, 0 segments fully mapped, segment with base offset 0 is partially mapped"
    )


def test_an_empty_round_has_figures_without_meaning(caplog: pytest.LogCaptureFixture) -> None:
    """Figures without meaning are printed as by Java; nothing is divided by zero here."""
    plan = plan_of(0, 10)
    with caplog.at_level(logging.INFO):
        log_round(
            3, plan, CleanResult(plan.first_uncleanable_offset, (), CleanStats(invalid_messages_read=2), "inline")
        )
    told, invalid = _told(caplog)
    assert "0.0 MB of log processed in 0.0 seconds (NaN MB/sec)." in told
    assert "NaN% size reduction (NaN% fewer messages)" in told
    assert invalid == "[kafka-log-cleaner-thread-3]: \tFound 2 invalid messages during compaction."


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_a_full_map_is_ninety_percent_of_its_table(
    logs: SeveralLogs, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In mode kafka the log and the metric show this, as in Kafka. Other modes do not log these lines."""
    log = logs.add("t", min_cleanable_dirty_ratio=0.0)
    for number in range(100):
        logs.data(log, f"key{number}=v")
    log.roll()
    with caplog.at_level(logging.INFO):
        await logs.settled(mode=mode, dedupe_buffer_bytes=24 * 100)
    assert logs.cleaned[0] == "t"
    told = "\n".join(_told(caplog))
    if mode == PROMPT:
        assert not told
        return
    assert "Log cleaner thread 0 cleaned log t-0 (dirty section = [0, 90])" in told
    assert "\tBuffer utilization: 90.0%\n" in told
    assert "Offset map is full, 0 segments fully mapped, segment with base offset 0 is partially mapped" in told
    assert "\tBuffer utilization: 10.0%\n" in told


async def test_an_uncleanable_partition(logs: SeveralLogs, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when it is marked, with the log as Kafka prints it."""
    logs.filthy("t", 20)
    logs.env.fail("append", "*.cleaned", RuntimeError("broken"))
    with caplog.at_level(logging.INFO):
        await logs.settled(mode=KAFKA)
    (told,) = _told(caplog)
    assert re.fullmatch(
        r"Unexpected exception thrown when cleaning log Log\(dir=.*, topicId=.*, topic=t, partition=0, highWatermark=\d+, "
        r"lastStableOffset=\d+, logStartOffset=0, logEndOffset=\d+\)\. Marking its partition \(t-0\) as uncleanable",
        told,
    )
