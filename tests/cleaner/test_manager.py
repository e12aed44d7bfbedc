"""States, checkpoints and uncleanable partitions, and which log is picked: the rows of Kafka's LogCleanerManagerTest.

Rows about ranges alone are in test_eligibility; those about several log directories have no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diamant.cleaner.due_logs import DueLogs
from diamant.cleaner.manager import RETRY_FIRST_MS, RETRY_MAX_MS, CleanerManager
from diamant.cleaner.modes import KAFKA, PROMPT
from diamant.cleaner.result import CleaningAborted
from tests.cleaner.several_logs import START_MS, SeveralLogs

TP = ("t", 0)


def paused() -> CleanerManager:
    """A manager whose partition is paused."""
    manager = CleanerManager()
    manager.abort_and_pause(TP)
    return manager


def in_progress() -> CleanerManager:
    """A manager whose partition is being cleaned."""
    manager = CleanerManager()
    manager.grab(TP)
    return manager


def aborted() -> CleanerManager:
    """A manager whose partition is being cleaned and was told to stop and pause."""
    manager = in_progress()
    manager.abort_and_pause(TP)
    return manager


# -- the state machine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [CleanerManager, paused])
def test_only_what_is_in_progress_can_be_done(make: Callable[[], CleanerManager]) -> None:
    """testDoneCleaning, testDoneDeleting: an error from none and paused."""
    with pytest.raises(RuntimeError, match="t-0: expected state in progress"):
        make().done_cleaning(TP, 1)
    with pytest.raises(RuntimeError):
        make().done_deleting(TP)


def test_a_round_that_is_done_leaves_its_checkpoint() -> None:
    """testDoneCleaning: in progress → none with the checkpoint; aborted → paused without."""
    manager = in_progress()
    assert manager.done_cleaning(TP, 1)
    assert (manager.state(TP), manager.checkpoint(TP)) == ("none", 1)
    manager = aborted()
    assert not manager.done_cleaning(TP, 1)
    assert (manager.state(TP), manager.checkpoint(TP)) == ("paused(1)", None)


def test_retention_that_is_done() -> None:
    """testDoneDeleting: in progress → none, aborted → paused."""
    for manager, state in ((in_progress(), "none"), (aborted(), "paused(1)")):
        manager.done_deleting(TP)
        assert manager.state(TP) == state


def test_a_round_that_failed_leaves_the_checkpoint_as_it_was() -> None:
    """The next one begins where this one began."""
    manager = CleanerManager({TP: 5})
    manager.grab(TP)
    assert not manager.done_cleaning(TP, None)
    assert (manager.state(TP), manager.checkpoint(TP)) == ("none", 5)


def test_only_a_free_partition_can_be_grabbed() -> None:
    """In progress, aborted and paused ones are not free."""
    for make in (paused, in_progress, aborted):
        manager = make()
        assert not manager.is_free(TP)
        with pytest.raises(RuntimeError, match="expected state none"):
            manager.grab(TP)
    assert CleanerManager().is_free(TP)


def test_pauses_add_up() -> None:
    """As many resumes as pauses free the partition; one more is an error."""
    manager = paused()
    assert manager.abort_and_pause(TP)
    assert manager.state(TP) == "paused(2)"
    manager.resume(TP)
    assert manager.state(TP) == "paused(1)"
    manager.resume(TP)
    assert manager.state(TP) == "none"
    with pytest.raises(RuntimeError):
        manager.resume(TP)


def test_what_is_in_progress_cannot_be_resumed() -> None:
    """Neither before nor after it was told to stop."""
    for make in (in_progress, aborted):
        with pytest.raises(RuntimeError, match="expected state paused"):
            make().resume(TP)


def test_an_aborted_round_is_told_and_its_end_is_told() -> None:
    """`check_done` raises once it is to stop; who waits for the pause hears when it stands still."""
    manager = in_progress()
    told: list[object] = []
    manager.on_paused = told.append
    manager.check_done(TP)
    assert not manager.abort_and_pause(TP)
    assert manager.state(TP) == "aborted"
    with pytest.raises(CleaningAborted):
        manager.check_done(TP)
    assert told == []
    manager.done_cleaning(TP, None)
    assert told == [TP]
    manager.check_done(TP)


def test_two_who_want_a_pause_at_the_same_time_both_get_it() -> None:
    """Kafka refuses the second one with an error while the first one waits."""
    manager = aborted()
    assert not manager.abort_and_pause(TP)
    manager.done_cleaning(TP, 1)
    assert manager.state(TP) == "paused(2)"


def test_abort_frees_the_partition_when_the_round_has_ended() -> None:
    """abortCleaning: no effect on what stands still, and no pause is left behind."""
    manager = in_progress()
    manager.abort(TP)
    with pytest.raises(CleaningAborted):
        manager.check_done(TP)
    assert not manager.done_cleaning(TP, 9)
    assert (manager.state(TP), manager.checkpoint(TP)) == ("none", None)
    manager.abort(TP)
    assert manager.state(TP) == "none"


def test_a_truncation_while_retention_has_paused_the_log() -> None:
    """testConcurrentLogCleanupAndLogTruncation: pauses of two come and go in any order."""
    manager = paused()
    manager.abort_and_pause(TP)
    manager.resume(TP)
    manager.resume(TP)
    assert manager.state(TP) == "none"


def test_a_deletion_while_retention_has_paused_the_log() -> None:
    """testConcurrentLogCleanupAndTopicDeletion: the deletion forgets the log, its pause is still there to be resumed."""
    manager = paused()
    manager.forget(TP)
    manager.resume(TP)
    assert manager.state(TP) == "none"


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoints_come_and_go() -> None:
    """testUpdateCheckpoints…: what was set is told, what was forgotten is not; each change counts."""
    manager = CleanerManager()
    manager.set_checkpoint(TP, 999)
    assert (manager.checkpoint(TP), manager.generation) == (999, 1)
    manager.set_checkpoint(TP, 999)
    assert manager.generation == 1
    manager.forget(TP)
    assert (manager.checkpoint(TP), manager.generation) == (None, 2)


def test_a_truncation_lowers_the_checkpoint() -> None:
    """testMaybeTruncateCheckpointShouldTruncateData: only if it is higher."""
    manager = CleanerManager({TP: 999})
    manager.truncate_checkpoint(TP, 1000)
    assert manager.checkpoint(TP) == 999
    manager.truncate_checkpoint(TP, 1)
    assert manager.checkpoint(TP) == 1
    manager.truncate_checkpoint(("other", 0), 1)
    assert manager.checkpoint(("other", 0)) is None


def test_partitions_that_are_no_more_are_dropped() -> None:
    """Their checkpoints and their failures."""
    other = ("other", 1)
    manager = CleanerManager({TP: 1, other: 2})
    manager.mark_uncleanable(other, "broken", START_MS, is_retried=False)
    manager.keep_only({TP})
    assert manager.checkpoints() == {TP: 1}
    assert not manager.uncleanable


# -- uncleanable partitions --------------------------------------------------------------------------------------------


def test_in_mode_kafka_a_failure_is_for_good() -> None:
    """Only a restart or the partition's deletion ends it."""
    manager = CleanerManager()
    found = manager.mark_uncleanable(TP, "broken", START_MS, is_retried=False)
    assert found.retry_ms is None
    assert manager.is_uncleanable(TP, START_MS + 10**12)
    manager.forget(TP)
    assert not manager.is_uncleanable(TP, START_MS)


def test_tries_come_later_each_time() -> None:
    """From a minute to an hour, twice as long each time; success ends the row."""
    manager = CleanerManager()
    now_ms, waits = START_MS, []
    for _ in range(20):
        found = manager.mark_uncleanable(TP, "broken", now_ms, is_retried=True)
        assert found.retry_ms is not None
        waits.append(found.retry_ms - now_ms)
        assert manager.is_uncleanable(TP, found.retry_ms - 1)
        assert not manager.is_uncleanable(TP, found.retry_ms)
        now_ms = found.retry_ms
    assert waits[:4] == [RETRY_FIRST_MS, 2 * RETRY_FIRST_MS, 4 * RETRY_FIRST_MS, 8 * RETRY_FIRST_MS]
    assert waits[-1] == RETRY_MAX_MS == max(waits)
    assert (found.failures, found.since_ms) == (20, START_MS)
    manager.grab(TP)
    manager.done_cleaning(TP, 1)
    assert not manager.uncleanable


def test_a_change_brings_the_next_try_at_once() -> None:
    """It is still shown until a round succeeds, and the waits begin anew."""
    manager = CleanerManager()
    for _ in range(5):
        manager.mark_uncleanable(TP, "broken", START_MS, is_retried=True)
    assert manager.retry_now(TP, START_MS)
    assert not manager.is_uncleanable(TP, START_MS)
    assert manager.uncleanable[TP].reason == "broken"
    again = manager.mark_uncleanable(TP, "still", START_MS, is_retried=True)
    assert again.retry_ms == START_MS + RETRY_FIRST_MS
    assert not manager.retry_now(("other", 0), START_MS)


# -- which log is next -------------------------------------------------------------------------------------------------


def three_logs() -> tuple[SeveralLogs, CleanerManager]:
    """Logs of 20, 25 and 30 batches, cleaned up to offset 20."""
    logs = SeveralLogs()
    for batches in (20, 25, 30):
        logs.filthy(f"t{batches}", batches)
    return logs, CleanerManager({(f"t{batches}", 0): 20 for batches in (20, 25, 30)})


async def topic_of(due: DueLogs) -> str | None:
    """Topic of the log that is next."""
    log = await due.next()
    return None if log is None else log.topic


async def test_the_dirtiest_log_is_next() -> None:
    """TestGrabFilthiestCompactedLogReturnsLogWithDirtiestRatio."""
    logs, manager = three_logs()
    assert await topic_of(logs.due(manager)) == "t30"


async def test_uncleanable_and_occupied_logs_are_passed_over() -> None:
    """testGrabFilthiestCompactedLogIgnores…: uncleanable, in progress, both."""
    logs, manager = three_logs()
    manager.mark_uncleanable(("t30", 0), "broken", START_MS, is_retried=False)
    assert await topic_of(logs.due(manager)) == "t25"
    manager.grab(("t25", 0))
    assert await topic_of(logs.due(manager)) is None
    logs, manager = three_logs()
    manager.grab(("t30", 0))
    assert await topic_of(logs.due(manager)) == "t25"


async def test_a_log_that_cannot_be_looked_at_is_uncleanable_and_the_others_go_on() -> None:
    """testGrabFilthiestCompactedLogThrowsException: Kafka gives up the scan, and finds the others in the next one."""
    logs, manager = three_logs()
    log = logs.logs["t30", 0]
    logs.change(log, max_compaction_lag_ms=1)
    for segment in log.segments:
        segment.close()
        segment._first_timestamp = None
    logs.env.fail("pread", "*t30-0/*.log", OSError(5, "Input/output error"))
    assert await topic_of(logs.due(manager)) == "t25"
    assert "Input/output error" in manager.uncleanable["t30", 0].reason


@pytest.mark.parametrize(("checkpoint", "start", "first_dirty"), [(200, 0, 0), (0, 10, 10)])
async def test_a_checkpoint_outside_of_the_log_is_replaced(checkpoint: int, start: int, first_dirty: int) -> None:
    """testDirtyOffsetResetIfLargerThanEndOffset, …SmallerThanStartOffset."""
    logs = SeveralLogs()
    log = logs.filthy("t", 20)
    log.delete_records(start)
    manager = CleanerManager({TP: checkpoint})
    assert await topic_of(logs.due(manager)) == "t"
    assert manager.checkpoint(TP) == first_dirty


@pytest.mark.parametrize(("checkpoint", "start"), [(0, 2), (3, 0)])
async def test_a_log_of_one_segment_is_not_picked(checkpoint: int, start: int) -> None:
    """testLogStartOffsetLargerThanActiveSegmentBaseOffset, testDirtyOffsetLargerThanActiveSegmentBaseOffset."""
    logs = SeveralLogs()
    log = logs.add("t", min_cleanable_dirty_ratio=0.0)
    for _ in range(5):
        logs.data(log, "k=v")
    log.delete_records(start)
    assert await topic_of(logs.due(CleanerManager({TP: checkpoint}))) is None


async def test_a_replaced_checkpoint_is_kept_even_if_nothing_is_cleaned() -> None:
    """TestCheckpointUpdatedForInvalidOffsetNoCleaning."""
    logs = SeveralLogs()
    log = logs.add("t")
    for _ in range(30):
        logs.data(log, "k=v")
    log.delete_records(20)
    manager = CleanerManager({TP: 15})
    assert await topic_of(logs.due(manager)) is None
    assert manager.checkpoint(TP) == 20


async def test_a_replaced_checkpoint_is_kept_even_if_another_log_is_picked() -> None:
    """TestCheckpointUpdatedForInvalidOffsetNotSelected."""
    logs = SeveralLogs()
    logs.filthy("t", 20).delete_records(15)
    logs.filthy("dirtier", 20)
    manager = CleanerManager({TP: 10, ("dirtier", 0): 5})
    assert await topic_of(logs.due(manager)) == "dirtier"
    assert manager.checkpoint(TP) == 15


async def test_an_open_transaction_keeps_everything_behind_it() -> None:
    """testUndecidedTransactionalDataNotCleanable: from its first offset on, until its marker is there."""
    logs = SeveralLogs()
    log = logs.add("t", min_cleanable_dirty_ratio=0.0)
    logs.data(log, "a=1", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.roll()
    assert await topic_of(logs.due(CleanerManager())) is None
    logs.marker(log, 1, is_commit=False)
    log.roll()
    assert await topic_of(logs.due(CleanerManager())) == "t"


async def test_what_is_overdue_comes_first_in_mode_prompt_only() -> None:
    """Kafka goes by the ratio alone, so that the overdue log may wait for ever."""
    logs = SeveralLogs()
    overdue = logs.filthy("overdue", 25, max_compaction_lag_ms=60_000)
    logs.filthy("dirtier", 30)
    checkpoints = {("overdue", 0): 20, ("dirtier", 0): 20}
    logs.clock.advance_ms(60_001 + 1000)
    assert await topic_of(logs.due(CleanerManager(checkpoints), KAFKA)) == "dirtier"
    assert await topic_of(logs.due(CleanerManager(checkpoints), PROMPT)) == "overdue"
    assert overdue.config.max_compaction_lag_ms == 60_000


async def test_one_scan_serves_several_rounds_in_mode_prompt() -> None:
    """What was found is taken in order, each checked again; Kafka scans for each round."""
    logs, manager = three_logs()
    manager = CleanerManager()
    due = logs.due(manager, PROMPT)
    taken = []
    for _ in range(3):
        topic = await topic_of(due)
        assert topic is not None
        taken.append(topic)
        manager.set_checkpoint((topic, 0), logs.logs[topic, 0].active.base_offset)
    assert sorted(taken) == ["t20", "t25", "t30"]
    assert await topic_of(due) is None
