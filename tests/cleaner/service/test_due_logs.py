"""The choice of the next log: the rows of Kafka's LogCleanerManagerTest about it."""

from __future__ import annotations

import pytest

from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.service.log_picker import LogPicker
from diamant.cleaner.service.partition_states import PartitionStates
from tests.cleaner.service.several_logs import START_MS, SeveralLogs

TP = ("t", 0)


def three_logs() -> tuple[SeveralLogs, PartitionStates]:
    """Logs of 20, 25 and 30 batches, cleaned up to offset 20."""
    logs = SeveralLogs()
    for batches in (20, 25, 30):
        logs.filthy(f"t{batches}", batches)
    return logs, PartitionStates({(f"t{batches}", 0): 20 for batches in (20, 25, 30)})


async def topic_of(due: LogPicker) -> str | None:
    """Topic of the log that is next."""
    log = await due.next()
    return None if log is None else log.topic


async def test_the_dirtiest_log_is_next() -> None:
    """The log with the largest dirty ratio is picked (testGrabFilthiestCompactedLogReturnsLogWithDirtiestRatio)."""
    logs, states = three_logs()
    assert await topic_of(logs.due(states)) == "t30"


async def test_uncleanable_and_occupied_logs_are_passed_over() -> None:
    """Logs that are uncleanable, in progress, or both are passed over (testGrabFilthiestCompactedLogIgnores…)."""
    logs, states = three_logs()
    states.mark_uncleanable(("t30", 0), "broken", START_MS, is_retried=False)
    assert await topic_of(logs.due(states)) == "t25"
    states.acquire(("t25", 0))
    assert await topic_of(logs.due(states)) is None
    logs, states = three_logs()
    states.acquire(("t30", 0))
    assert await topic_of(logs.due(states)) == "t25"


async def test_a_log_that_cannot_be_looked_at_is_uncleanable_and_the_others_continue() -> None:
    """testGrabFilthiestCompactedLogThrowsException: Kafka gives up the scan, and finds the others in the next one."""
    logs, states = three_logs()
    log = logs.logs["t30", 0]
    logs.change(log, max_compaction_lag_ms=1)
    for segment in log.segments:
        segment.close()
        segment._first_timestamp = None
    logs.env.fail("pread", "*t30-0/*.log", OSError(5, "Input/output error"))
    assert await topic_of(logs.due(states)) == "t25"
    assert "Input/output error" in states.uncleanable["t30", 0].reason


@pytest.mark.parametrize("other", [None, "dirtier"])
async def test_a_replaced_checkpoint_is_kept_even_if_the_log_is_not_picked(other: str | None) -> None:
    """TestCheckpointUpdatedForInvalidOffsetNoCleaning, …NotSelected: nothing is cleaned, or another log."""
    logs = SeveralLogs()
    logs.filthy("t", 20, min_cleanable_dirty_ratio=0.9).delete_records(15)
    if other is not None:
        logs.filthy(other, 20)
    states = PartitionStates({TP: 10, ("dirtier", 0): 5})
    assert await topic_of(logs.due(states)) == other
    assert states.checkpoint(TP) == 15


async def test_an_overdue_log_comes_first_in_mode_prompt_only() -> None:
    """Kafka sorts by ratio alone, so an overdue log may wait forever."""
    logs = SeveralLogs()
    overdue = logs.filthy("overdue", 25, max_compaction_lag_ms=60_000)
    logs.filthy("dirtier", 30)
    checkpoints = {("overdue", 0): 20, ("dirtier", 0): 20}
    logs.clock.advance_ms(60_001 + 1000)
    assert await topic_of(logs.due(PartitionStates(checkpoints), KAFKA)) == "dirtier"
    assert await topic_of(logs.due(PartitionStates(checkpoints), PROMPT)) == "overdue"
    assert overdue.config.max_compaction_lag_ms == 60_000


@pytest.mark.parametrize("mode", MODES)
async def test_one_scan_serves_several_rounds_in_mode_prompt(mode: str) -> None:
    """The logs found are taken in order, each checked again; Kafka scans for each round."""
    logs, states = three_logs()
    states = PartitionStates()
    due = logs.due(states, mode)
    taken = []
    for _ in range(3):
        topic = await topic_of(due)
        assert topic is not None
        taken.append(topic)
        states.set_checkpoint((topic, 0), logs.logs[topic, 0].active.base_offset)
    assert sorted(taken) == ["t20", "t25", "t30"]
    assert logs.logs.scans == (3 if mode == KAFKA else 1)
    assert await topic_of(due) is None
