"""States, checkpoints and uncleanable partitions: the rows of Kafka's LogCleanerManagerTest about them.

Rows about ranges are in test_eligibility, those about the choice of a log in test_due_logs. Rows about several log directories
and about truncation have no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.service.partition_states import RETRY_FIRST_MS, RETRY_MAX_MS, PartitionStates
from tests.cleaner.service.several_logs import START_MS

TP = ("t", 0)


def paused() -> PartitionStates:
    """One partition, which is paused."""
    states = PartitionStates()
    states.abort_and_pause(TP)
    return states


def in_progress() -> PartitionStates:
    """One partition, which is being cleaned."""
    states = PartitionStates()
    states.acquire(TP)
    return states


def aborted() -> PartitionStates:
    """One partition, whose round was aborted for a pause."""
    states = in_progress()
    states.abort_and_pause(TP)
    return states


# -- the state machine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "makers", "expected"),
    [
        (lambda states: states.done_cleaning(TP, 1), (PartitionStates, paused), "in progress"),
        (lambda states: states.done_deleting(TP), (PartitionStates, paused), "in progress"),
        (lambda states: states.acquire(TP), (paused, in_progress, aborted), "none"),
        (lambda states: states.resume(TP), (PartitionStates, in_progress, aborted), "paused"),
        (lambda states: states.give_up_pause(TP), (PartitionStates, in_progress), "aborted or paused"),
    ],
    ids=["done cleaning", "done deleting", "acquire", "resume", "give up pause"],
)
def test_a_step_from_another_state_is_an_error(
    step: Callable[[PartitionStates], object], makers: Sequence[Callable[[], PartitionStates]], expected: str
) -> None:
    """testDoneCleaning, testDoneDeleting, and the rest of the state machine: the error names the expected state."""
    for make in makers:
        with pytest.raises(RuntimeError, match=f"t-0: expected state {expected}"):
            step(make())


def test_a_round_that_is_done_leaves_its_checkpoint() -> None:
    """A round in progress ends with its checkpoint; an aborted one leaves the log paused, without a checkpoint
    (testDoneCleaning).
    """
    states = in_progress()
    assert states.done_cleaning(TP, 1)
    assert (states.state(TP), states.checkpoint(TP)) == ("none", 1)
    states = aborted()
    assert not states.done_cleaning(TP, 1)
    assert (states.state(TP), states.checkpoint(TP)) == ("paused(1)", None)


def test_retention_that_is_done() -> None:
    """Retention in progress ends without a state; aborted, it leaves the log paused (testDoneDeleting)."""
    for states, state in ((in_progress(), "none"), (aborted(), "paused(1)")):
        states.done_deleting(TP)
        assert states.state(TP) == state


def test_a_round_that_failed_leaves_the_checkpoint_as_it_was() -> None:
    """The next one begins where this one began."""
    states = PartitionStates({TP: 5})
    states.acquire(TP)
    assert not states.done_cleaning(TP, None)
    assert (states.state(TP), states.checkpoint(TP)) == ("none", 5)


def test_only_a_free_partition_can_be_grabbed() -> None:
    """In progress, aborted and paused ones are not free."""
    assert not any(make().is_free(TP) for make in (paused, in_progress, aborted))
    assert PartitionStates().is_free(TP)


def test_pauses_add_up() -> None:
    """As many resumes as pauses free the partition (testConcurrentLogCleanupAndLogTruncation)."""
    states = paused()
    assert states.abort_and_pause(TP)
    assert states.state(TP) == "paused(2)"
    states.resume(TP)
    assert states.state(TP) == "paused(1)"
    states.resume(TP)
    assert states.state(TP) == "none"


def test_a_pause_may_be_given_up_before_the_round_has_ended() -> None:
    """The round still ends without effect, which frees the partition."""
    states = aborted()
    states.give_up_pause(TP)
    assert states.state(TP) == "aborted"
    assert not states.done_cleaning(TP, 7)
    assert (states.state(TP), states.checkpoint(TP)) == ("none", None)


def test_an_aborted_round_and_its_end_are_reported() -> None:
    """`check_done` raises once the round must stop; the end of the round wakes those who wait for the pause."""
    states = in_progress()
    told: list[object] = []
    states.on_paused = told.append
    states.check_done(TP)
    assert not states.abort_and_pause(TP)
    assert states.state(TP) == "aborted"
    with pytest.raises(CleaningAborted):
        states.check_done(TP)
    assert told == []
    states.done_cleaning(TP, None)
    assert told == [TP]
    states.check_done(TP)


def test_two_who_want_a_pause_at_the_same_time_both_get_it() -> None:
    """Kafka refuses the second one with an error while the first one waits."""
    states = aborted()
    assert not states.abort_and_pause(TP)
    states.done_cleaning(TP, 1)
    assert states.state(TP) == "paused(2)"


def test_abort_frees_the_partition_when_the_round_has_ended() -> None:
    """An abort has no effect without a round, and leaves no pause (abortCleaning)."""
    states = in_progress()
    states.abort(TP)
    with pytest.raises(CleaningAborted):
        states.check_done(TP)
    assert not states.done_cleaning(TP, 9)
    assert (states.state(TP), states.checkpoint(TP)) == ("none", None)
    states.abort(TP)
    assert states.state(TP) == "none"


def test_a_deletion_while_retention_has_paused_the_log() -> None:
    """testConcurrentLogCleanupAndTopicDeletion: the deletion drops the log's state; its pause remains until resumed."""
    states = paused()
    states.forget(TP)
    states.resume(TP)
    assert states.state(TP) == "none"


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoints_come_and_go() -> None:
    """testUpdateCheckpoints…: set checkpoints are returned, forgotten ones are not; each change raises the generation."""
    states = PartitionStates()
    states.set_checkpoint(TP, 999)
    assert (states.checkpoint(TP), states.generation) == (999, 1)
    states.set_checkpoint(TP, 999)
    assert states.generation == 1
    states.mark_uncleanable(TP, "broken", START_MS, is_retried=False)
    states.forget(TP)
    assert (states.checkpoint(TP), states.generation, states.uncleanable) == (None, 2, {})


def test_partitions_that_are_no_more_are_dropped() -> None:
    """Checkpoints and failures of partitions that no longer exist are dropped."""
    other = ("other", 1)
    states = PartitionStates({TP: 1, other: 2})
    states.mark_uncleanable(other, "broken", START_MS, is_retried=False)
    states.keep_only({TP})
    assert states.checkpoints() == {TP: 1}
    assert not states.uncleanable


# -- uncleanable partitions --------------------------------------------------------------------------------------------


def test_tries_come_later_each_time() -> None:
    """The wait doubles from a minute to an hour; a success resets it."""
    states = PartitionStates()
    now_ms, waits = START_MS, []
    for _ in range(20):
        found = states.mark_uncleanable(TP, "broken", now_ms, is_retried=True)
        assert found.retry_ms is not None
        waits.append(found.retry_ms - now_ms)
        assert states.is_uncleanable(TP, found.retry_ms - 1)
        assert not states.is_uncleanable(TP, found.retry_ms)
        now_ms = found.retry_ms
    assert waits[:4] == [RETRY_FIRST_MS, 2 * RETRY_FIRST_MS, 4 * RETRY_FIRST_MS, 8 * RETRY_FIRST_MS]
    assert waits[-1] == RETRY_MAX_MS == max(waits)
    assert (found.failures, found.since_ms) == (20, START_MS)
    states.acquire(TP)
    states.done_cleaning(TP, 1)
    assert not states.uncleanable


def test_a_change_brings_the_next_try_at_once() -> None:
    """The error is shown until a round succeeds, and the waits start again at a minute."""
    states = PartitionStates()
    for _ in range(5):
        states.mark_uncleanable(TP, "broken", START_MS, is_retried=True)
    assert states.retry_now(TP, START_MS)
    assert not states.is_uncleanable(TP, START_MS)
    assert states.uncleanable[TP].reason == "broken"
    again = states.mark_uncleanable(TP, "still", START_MS, is_retried=True)
    assert again.retry_ms == START_MS + RETRY_FIRST_MS
    assert not states.retry_now(("other", 0), START_MS)
