"""Kept transaction events of a part: just enough to reach the same state in a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.spark.clean.transaction_cuts import DATA, RecordingTracker, ResumableTracker, TrackerState
from diamant.protocol.batches.control import ControlType
from diamant.storage.segments.txn_index import AbortedTxn
from tests.cleaner.facts.segment_history import SegmentHistory
from tests.effort import examples

ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
PRODUCERS = (1, 2, 3)

Event: TypeAlias = tuple[int, int]
"""Producer id and kind."""


def plan_with(aborted: list[AbortedTxn]) -> CleanPlan:
    """Return a plan with these aborted transactions."""
    history = SegmentHistory()
    history.batch([(b"k", b"v")])
    _, plan = history.stored()
    return replace(plan, later_aborted=tuple(aborted))


def tell(tracker: ResumableTracker | RecordingTracker, events: list[Event], start: int) -> None:
    """Feed a tracker batches with offsets from `start` on."""
    for offset, (producer_id, kind) in enumerate(events, start):
        if kind == DATA:
            tracker.drops_data(offset, producer_id, is_transactional=True)
        else:
            tracker.drops_control(offset, producer_id, kind)


def state_at(tracker: ResumableTracker, offset: int) -> TrackerState:
    """Return the state after all batches below `offset`, in a comparable form."""
    tracker._activate(offset - 1)
    state = tracker.state()
    return replace(state, aborted=tuple(sorted(state.aborted, key=lambda one: one[0])))


@given(
    st.lists(st.tuples(st.sampled_from(PRODUCERS), st.sampled_from((DATA, DATA, ABORT, COMMIT))), max_size=40),
    st.lists(st.tuples(st.sampled_from(PRODUCERS[:2]), st.integers(0, 45), st.integers(0, 15)), max_size=6),
    st.integers(0, 40),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_state_behind_a_part_is_that_of_all_its_events(
    events: list[Event], begins: list[tuple[int, int, int]], cut: int
) -> None:
    """The state is right for any earlier state, and any order of data, commits and aborts, announced or not."""
    aborted = [AbortedTxn(producer_id, first, first + length, -1) for producer_id, first, length in begins]
    plan = plan_with(aborted)
    whole = ResumableTracker()
    whole.add_aborted(aborted)
    tell(whole, events[:cut], 0)
    before = whole.state()
    part = events[cut:]
    recorder = RecordingTracker(plan)
    tell(recorder, part, cut)
    resumed = ResumableTracker.resume(before)
    resumed.replay(recorder.events)
    tell(whole, part, cut)
    end = cut + len(part)
    assert state_at(resumed, end) == state_at(whole, end)
    assert len(recorder.events) <= len(PRODUCERS) + 5 * (len(aborted) + 1)


def test_committed_transactions_cost_nothing() -> None:
    """The driver holds the state of each producer, not its history, for any number of committed transactions."""
    recorder = RecordingTracker(plan_with([AbortedTxn(2, 50, 60, -1)]))
    tell(
        recorder,
        [(producer_id, kind) for _ in range(10_000) for producer_id in PRODUCERS for kind in (DATA, COMMIT)],
        0,
    )
    assert len(recorder.events) <= 2 + 2 * 5
