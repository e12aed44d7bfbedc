"""The records in flight of a share partition, as ranges, beside a model that has a state for each record."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.broker.groups.share.acknowledgement import AcknowledgementBatch, AcknowledgeType, acknowledge
from diamant.broker.groups.share.acquisition import Acquirer, ShareLimits, acquire
from diamant.broker.groups.share.ranges import RecordState
from diamant.broker.groups.share.share_partition import SharePartition
from diamant.protocol.errors import KafkaError
from diamant.protocol.internal_topics.share_records import StateBatch
from tests.effort import examples

LOCK_MS = 10
MAX_DELIVERIES = 4
LIMITS = ShareLimits(30, MAX_DELIVERIES)
BATCHES = [(base, base + size - 1) for base, size in ((0, 1), (1, 4), (5, 10), (15, 3), (20, 5), (25, 15), (40, 20))]
"""The log: compaction has removed 18 and 19."""

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = RecordState
STATES = {0: ARCHIVED, 1: ACKNOWLEDGED, 2: AVAILABLE, 3: ARCHIVED}


class Model:
    """State, deliveries, member and end of the lock of each offset that was ever given out."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[RecordState, int, str, int]] = {}

    def give(self, member_id: str, offset: int, delivery_count: int, now_ms: int) -> None:
        state, count, _, _ = self.records.get(offset, (AVAILABLE, 0, "", 0))
        assert state is AVAILABLE, f"{offset} was given out in state {state.name}"
        assert delivery_count == count + 1 <= MAX_DELIVERIES
        self.records[offset] = (ACQUIRED, delivery_count, member_id, now_ms + LOCK_MS)

    def may_acknowledge(self, member_id: str, first: int, last: int, start: int) -> bool:
        known = [offset for offset in range(max(first, start), last + 1) if offset in self.records]
        return all(self.records[offset][0] is ACQUIRED and self.records[offset][2] == member_id for offset in known)

    def renew(self, offset: int, now_ms: int) -> None:
        self.records[offset] = (*self.records[offset][:3], now_ms + LOCK_MS)

    def freed(self, offset: int, state: RecordState) -> None:
        count = self.records[offset][1]
        is_over = state is AVAILABLE and count >= MAX_DELIVERIES
        self.records[offset] = (ARCHIVED if is_over else state, count, "", 0)

    def skip(self, first: int, end: int) -> None:
        """What compaction has removed is archived by a read that finds nothing of it."""
        for offset in range(first, end):
            if offset in self.records and self.records[offset][0] is AVAILABLE:
                self.records[offset] = (ARCHIVED, self.records[offset][1], "", 0)

    def release(self, member_id: str) -> None:
        for offset, (state, _, holder, _) in list(self.records.items()):
            if state is ACQUIRED and holder == member_id:
                self.freed(offset, AVAILABLE)

    def expire(self, now_ms: int) -> None:
        for offset, (state, _, _, ends_ms) in list(self.records.items()):
            if state is ACQUIRED and ends_ms <= now_ms:
                self.freed(offset, AVAILABLE)


def check(partition: SharePartition, model: Model) -> None:
    """The ranges say of each record in the window what the model says, and what is below the window is done."""
    seen = set()
    for run in partition.runs():
        for offset in range(max(run.first, partition.start_offset), run.last + 1):
            seen.add(offset)
            state, count, member_id, ends_ms = model.records.get(offset, (AVAILABLE, 0, "", 0))
            assert (run.state, run.delivery_count, run.member_id) == (state, count, member_id), offset
            assert state is not ACQUIRED or run.lock_ends_ms == ends_ms
    for offset, (state, _, _, _) in model.records.items():
        if offset < partition.start_offset:
            assert state.is_terminal, offset
        else:
            assert offset in seen
    for batch in partition.batches:
        assert all(left.last + 1 == right.first for left, right in zip(batch.runs, batch.runs[1:], strict=False))
    assert partition.in_flight_count <= LIMITS.max_in_flight + 20
    completed = sum(
        1 for offset, one in model.records.items() if offset >= partition.start_offset and one[0].is_terminal
    )
    assert partition.completed_count == completed
    ends = [ends_ms for state, _, _, ends_ms in model.records.values() if state is ACQUIRED]
    assert partition.next_lock_end_ms() == min(ends, default=None)


MEMBERS = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("fetch"), MEMBERS, st.integers(1, 12), st.booleans(), st.sampled_from([1, 3, 100])),
    st.tuples(st.just("acknowledge"), MEMBERS, st.integers(0, 60), st.integers(0, 8), st.integers(0, 4)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
    st.tuples(st.just("release"), MEMBERS),
    st.tuples(st.just("restart")),
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_ranges_agree_with_a_state_for_each_record(steps: list[tuple[object, ...]]) -> None:
    """Acquisition, acknowledgement, expiry, release and restart do to ranges what they do to single records."""
    partition, model, now_ms = SharePartition(0), Model(), 0
    for step in steps:
        kind, *rest = step
        if kind == "fetch":
            member_id, room, is_limit, batch_size = rest
            offset = partition.next_fetch_offset()
            read = [batch for batch in BATCHES if batch[1] >= offset]
            asked = Acquirer(str(member_id), int(str(room)), int(str(batch_size)), bool(is_limit), now_ms + LOCK_MS)
            may_acquire = partition.can_acquire(LIMITS.max_in_flight)
            found = acquire(partition, asked, LIMITS, offset, read) if may_acquire else []
            if may_acquire and read:
                model.skip(offset, read[0][0])
            for first, last, count in found:
                for one in range(first, last + 1):
                    model.give(str(member_id), one, count, now_ms)
            assert not is_limit or sum(last - first + 1 for first, last, _ in found) <= int(str(room))
        elif kind == "acknowledge":
            member_id, first_offset, length, ack = str(rest[0]), int(str(rest[1])), int(str(rest[2])), int(str(rest[3]))
            last_offset = first_offset + length
            start = partition.start_offset
            try:
                batch = AcknowledgementBatch(first_offset, last_offset, [ack])
                acknowledge(partition, member_id, [batch], MAX_DELIVERIES, now_ms + LOCK_MS)
            except KafkaError:
                check(partition, model)
                continue
            assert model.may_acknowledge(member_id, first_offset, last_offset, start)
            for one in range(max(first_offset, start), last_offset + 1):
                if one in model.records and model.records[one][0] is ACQUIRED:
                    if ack == AcknowledgeType.RENEW:
                        model.renew(one, now_ms)
                    else:
                        model.freed(one, STATES[ack])
        elif kind == "wait":
            now_ms += int(str(rest[0]))
            partition.expire(now_ms, MAX_DELIVERIES)
            model.expire(now_ms)
        elif kind == "release":
            partition.release(str(rest[0]), MAX_DELIVERIES)
            model.release(str(rest[0]))
        else:
            partition, model = restarted(partition, model)
        partition.advance()
        check(partition, model)


def restarted(partition: SharePartition, model: Model) -> tuple[SharePartition, Model]:
    """What a start finds: the snapshot. A record that was acquired is as before that delivery."""
    after = Model()
    for offset, (state, count, _, _) in model.records.items():
        if state is not ACQUIRED:
            after.records[offset] = (state, count, "", 0)
        elif count > 1:
            after.records[offset] = (AVAILABLE, count - 1, "", 0)
    for offset in list(after.records):
        if offset >= partition.start_offset and after.records[offset][1] == 0:
            del after.records[offset]
    batches = [batch for batch in partition.state_batches() if batch.delivery_count or batch.delivery_state]
    return SharePartition(partition.start_offset, batches), after


def test_memory_is_by_ranges_and_not_by_records() -> None:
    """A batch of 2,000 records is one run while it is held, and nothing once it is acknowledged."""
    partition = SharePartition(0)
    asked = Acquirer("a", 2_000, 2_000, False, LOCK_MS)
    assert acquire(partition, asked, ShareLimits(2_000, 5), 0, [(0, 1_999)]) == [(0, 1_999, 1)]
    assert len(list(partition.runs())) == 1
    acknowledge(partition, "a", [AcknowledgementBatch(0, 999, [1])], 5, LOCK_MS)
    assert len(list(partition.runs())) == 2
    acknowledge(partition, "a", [AcknowledgementBatch(1_000, 1_999, [1])], 5, LOCK_MS)
    partition.advance()
    assert partition.batches == []
    assert partition.start_offset == 2_000


def test_a_batch_larger_than_the_window_is_given_out_whole() -> None:
    """100,000 records in one batch fill a window of 2,000: nothing more is given until it moves."""
    partition = SharePartition(0)
    asked = Acquirer("a", 500, 500, False, LOCK_MS)
    limits = ShareLimits(2_000, 5)
    assert acquire(partition, asked, limits, 0, [(0, 99_999)]) == [(0, 99_999, 1)]
    assert not partition.can_acquire(2_000)
    assert acquire(partition, asked, limits, 100_000, [(100_000, 100_009)]) == []


def test_a_moved_log_start_archives_what_is_available() -> None:
    """Records below the log start are given to nobody again, and those still held are archived when their lock ends."""
    partition = SharePartition(0)
    asked = Acquirer("a", 10, 100, False, LOCK_MS)
    acquire(partition, asked, LIMITS, 0, [(0, 9)])
    acknowledge(partition, "a", [AcknowledgementBatch(0, 4, [2])], 5, LOCK_MS)
    partition.begin_at(7)
    assert partition.start_offset == 7
    assert partition.expire(LOCK_MS, 5) == [(5, 6, 4, 1), (7, 9, 0, 1)]
    assert partition.next_fetch_offset() == 7


def test_a_compacted_batch_is_not_waited_for() -> None:
    """Released records whose batch the log no longer has are archived by the next read, so that the window moves on."""
    partition = SharePartition(0)
    acquire(partition, Acquirer("a", 20, 1, False, LOCK_MS), LIMITS, 0, [(0, 4), (5, 9), (10, 14)])
    acknowledge(partition, "a", [AcknowledgementBatch(0, 9, [2])], 5, LOCK_MS)
    again = acquire(partition, Acquirer("b", 20, 100, False, LOCK_MS), LIMITS, partition.next_fetch_offset(), [(5, 9)])
    assert again == [(5, 9, 2)]
    partition.advance()
    assert partition.start_offset == 5


def test_nothing_below_the_start_is_given_out_of_a_batch() -> None:
    """DeleteRecords in the middle of a batch that no member has had: the batch is read whole, and given from there on."""
    partition = SharePartition(0)
    acquire(partition, Acquirer("a", 20, 100, False, LOCK_MS), LIMITS, 0, [(0, 2)])
    partition.begin_at(6)
    asked = Acquirer("b", 1, 100, True, LOCK_MS)
    assert acquire(partition, asked, LIMITS, partition.next_fetch_offset(), [(3, 9)]) == [(6, 6, 1)]
    assert acquire(partition, asked, LIMITS, partition.next_fetch_offset(), [(3, 9)]) == [(7, 7, 1)]


def test_a_full_window_whose_last_records_the_log_lost_gives_nothing() -> None:
    """The window is full, what is available in it was compacted away, and what is read lies behind it."""
    partition, limits = SharePartition(0), ShareLimits(3, MAX_DELIVERIES)
    acquire(partition, Acquirer("a", 20, 1, False, LOCK_MS), limits, 0, [(0, 0), (1, 1), (2, 2)])
    acknowledge(partition, "a", [AcknowledgementBatch(2, 2, [2])], MAX_DELIVERIES, LOCK_MS)
    assert acquire(partition, Acquirer("b", 20, 100, False, LOCK_MS), limits, 2, [(5, 9)]) == []
    assert [(run.first, run.last, run.state) for run in partition.runs()] == [
        (0, 0, ACQUIRED),
        (1, 1, ACQUIRED),
        (2, 2, ARCHIVED),
    ]


def test_a_gap_of_the_state_topic_begins_at_the_start() -> None:
    """Records that the state topic did not know are given from the log's start on."""
    partition = SharePartition(0, [StateBatch(5, 9, int(AVAILABLE), 1)])
    assert partition.next_fetch_offset() == 0
    partition.begin_at(3)
    assert partition.next_fetch_offset() == 3
    asked = Acquirer("a", 100, 100, False, LOCK_MS)
    assert acquire(partition, asked, LIMITS, 3, [(0, 9)]) == [(3, 4, 1), (5, 9, 2)]


def test_records_often_delivered_that_another_member_holds_do_not_hold_back_the_rest() -> None:
    """Only what could be given on a late delivery is given alone."""
    partition, limits = SharePartition(0), ShareLimits(200, 2)
    one = Acquirer("a", 1, 1, False, LOCK_MS)
    for offset in range(3):
        acquire(partition, one, limits, offset, [(offset, offset)])
    partition.expire(LOCK_MS, 2)
    again = Acquirer("a", 1, 100, True, 3 * LOCK_MS)
    assert acquire(partition, again, limits, 0, [(0, 0), (1, 1), (2, 2)]) == [(0, 0, 2)]
    partition = SharePartition(0, [StateBatch(0, 0, int(AVAILABLE), 1), StateBatch(1, 1, int(AVAILABLE), 1)])
    acquire(partition, again, ShareLimits(200, 4), 0, [(0, 0)])
    partition.release("a", 4)
    acquire(partition, Acquirer("b", 1, 100, True, 3 * LOCK_MS), ShareLimits(200, 4), 0, [(0, 0)])
    assert partition.next_fetch_offset() == 1
    assert acquire(partition, Acquirer("c", 10, 100, False, LOCK_MS), ShareLimits(200, 4), 0, [(0, 0), (1, 9)]) == [
        (1, 1, 2),
        (2, 9, 1),
    ]


@pytest.mark.parametrize("order", ["random", "forwards", "backwards"])
@pytest.mark.parametrize("size", [1, 1_000])
def test_one_of_many_ranges_costs_as_much_as_one_of_few(order: str, size: int) -> None:
    """An acknowledgement looks at its own range, however many are in flight, in one batch or in many."""
    costs = [_cost_of_acknowledging(count, min(size, count), order) for count in (50, 1_000)]
    assert costs[1] < 1.3 * costs[0]


@pytest.mark.parametrize("order", ["random", "forwards", "backwards"])
@pytest.mark.parametrize("size", [1, 1_000])
def test_the_end_of_one_of_many_locks_costs_as_much_as_one_of_few(order: str, size: int) -> None:
    """A lock that ends is found at once, however many records are in flight, in one batch or in many."""
    costs = []
    for count in (50, 1_000):
        partition = _held(count, min(size, count))
        ends = [1 + offset for offset in _ordered(count, order)]
        for offset, ends_ms in enumerate(ends):
            acknowledge(partition, "a", [AcknowledgementBatch(offset, offset, [4])], 5, ends_ms)
        costs.append(_calls(partial(_end_all_locks, partition)) / count)
        assert all(run.state is AVAILABLE for run in partition.runs())
    assert costs[1] < 1.3 * costs[0]


def _end_all_locks(partition: SharePartition) -> None:
    now_ms = 0
    while (ends_ms := partition.next_lock_end_ms()) is not None:
        assert ends_ms > now_ms
        now_ms = ends_ms
        assert len(partition.expire(now_ms, 5)) == 1


def test_one_of_many_members_leaves_as_cheaply_as_one_of_few() -> None:
    """What a member held is found at once, however many members hold records."""
    costs = []
    for count in (50, 1_000):
        partition = SharePartition(0)
        members = [f"member {number}" for number in range(count)]
        for offset, member_id in enumerate(members):
            acquire(
                partition, Acquirer(member_id, 1, 1, False, LOCK_MS), ShareLimits(count, 5), offset, [(offset, offset)]
            )
        costs.append(_calls(partial(_release_all, partition, members)) / count)
        assert all(run.state is AVAILABLE for run in partition.runs())
    assert costs[1] < 1.3 * costs[0]


def _release_all(partition: SharePartition, members: list[str]) -> None:
    for member_id in members:
        assert len(partition.release(member_id, 5)) == 1


def test_what_was_acknowledged_leaves_no_locks_behind() -> None:
    """A partition whose records are acknowledged in time does not grow, however many they are."""
    partition, limits = SharePartition(0), ShareLimits(10, 5)
    sizes = []
    for count in (2_000, 6_000):
        for _ in range(count):
            offset = partition.next_fetch_offset()
            acquire(partition, Acquirer("a", 1, 1, False, LOCK_MS), limits, offset, [(offset, offset)])
            acknowledge(partition, "a", [AcknowledgementBatch(offset, offset, [1])], 5, None)
            partition.advance()
        sizes.append(len(pickle.dumps(partition)))
    assert sizes[1] < 2 * sizes[0]


@pytest.mark.parametrize("before", [0, 1_000, 1_500])
@pytest.mark.parametrize("is_renewed", [False, True], ids=["acquired", "renewed"])
def test_many_locks_of_one_request_all_end(before: int, is_renewed: bool) -> None:
    """However many locks were listed before, of records that are done."""
    partition, limits, count = SharePartition(0), ShareLimits(10_000, 5), 1_100
    for offset in range(before):
        acquire(partition, Acquirer("a", 1, 1, False, LOCK_MS), limits, offset, [(offset, offset)])
        acknowledge(partition, "a", [AcknowledgementBatch(offset, offset, [1])], 5, None)
        partition.advance()
    read = [(offset, offset) for offset in range(before, before + count)]
    acquire(partition, Acquirer("a", count, 1, False, LOCK_MS), limits, before, read)
    if is_renewed:
        acknowledge(partition, "a", [AcknowledgementBatch(before, before + count - 1, [4])], 5, 2 * LOCK_MS)
    ends_ms = partition.next_lock_end_ms()
    assert ends_ms == (2 * LOCK_MS if is_renewed else LOCK_MS)
    assert partition.expire(ends_ms, 5) == [StateBatch(before, before + count - 1, AVAILABLE, 1)]


def _held(count: int, size: int) -> SharePartition:
    """Return a partition whose records a member holds, in batches of a size."""
    partition, limits = SharePartition(0), ShareLimits(count, 5)
    for base in range(0, count, size):
        asked = Acquirer("a", size, size, False, LOCK_MS)
        acquire(partition, asked, limits, base, [(base, base + size - 1)])
    return partition


def _ordered(count: int, order: str) -> list[int]:
    offsets = list(range(count))
    if order == "random":
        Random(1).shuffle(offsets)
    elif order == "backwards":
        offsets.reverse()
    return offsets


def _cost_of_acknowledging(count: int, size: int, order: str) -> float:
    """Return the function calls for each record when `count` records are acknowledged one by one, in ranges that do not join."""
    partition = _held(count, size)

    def acknowledge_all() -> None:
        for offset in _ordered(count, order):
            acknowledge(partition, "a", [AcknowledgementBatch(offset, offset, [1 + offset % 3])], 5, LOCK_MS)
            assert partition.completed_count <= count
            partition.advance()
            partition.next_fetch_offset()

    return _calls(acknowledge_all) / count


def _calls(run: Callable[[], object]) -> int:
    """Return how many functions are called."""
    calls = 0

    def count_call(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls
