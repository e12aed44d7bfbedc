"""Idempotence and transactions of one partition (ProducerStateManagerTest)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.checkpoints.producer_snapshot import ProducerEntry, read_snapshot, write_snapshot
from diamant.storage.producers.open_transactions import CompletedTxn
from diamant.storage.producers.producer import DuplicateBatch
from diamant.storage.producers.producer_state import (
    ABORT,
    COMMIT,
    ProducerStateManager,
)
from tests.memory_env import MemoryEnv

PID = 1
MAX = 2**31 - 1
NOW = 1_700_000_000_000
EXPIRATION = 86_400_000
DIR = "/t-0"


def make(env: MemoryEnv | None = None) -> ProducerStateManager:
    env = MemoryEnv() if env is None else env
    env.make_dirs(DIR)
    return ProducerStateManager(env, DIR, "t", 0, expiration_ms=EXPIRATION)


def header(
    sequence: int,
    offset: int,
    count: int = 1,
    *,
    producer_id: int = PID,
    epoch: int = 0,
    timestamp: int = NOW,
    is_transactional: bool = False,
    is_control: bool = False,
) -> BatchHeader:
    attributes = (0x10 if is_transactional else 0) | (0x20 if is_control else 0)
    return BatchHeader(
        offset, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    )


def append(
    state: ProducerStateManager, sequence: int, offset: int, count: int = 1, *, is_client: bool = True, **fields: Any
) -> DuplicateBatch | None:
    update = state.check(header(sequence, 0, count, **fields), is_client=is_client)
    if isinstance(update, DuplicateBatch):
        return update
    state.apply(update, offset)
    return None


def mark(
    state: ProducerStateManager, control_type: int, offset: int, *, coordinator_epoch: int = 0, **fields: Any
) -> CompletedTxn | None:
    marker = header(-1, offset, is_transactional=True, is_control=True, **fields)
    completed = state.append_marker(marker, control_type, coordinator_epoch, offset)
    if completed is not None:
        state.transactions.complete(completed)
    return completed


def refused(state: ProducerStateManager, code: ErrorCode, sequence: int, offset: int = 99, **options: int) -> None:
    before = state.active_producers
    with pytest.raises(KafkaError) as caught:
        append(state, sequence, offset, **options)
    assert caught.value.code == code
    assert state.active_producers == before


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_basic_sequences(state: ProducerStateManager) -> None:
    """Sequences follow each other; gaps are refused, a new epoch begins at 0, an old one is fenced."""
    append(state, 0, 0)
    append(state, 1, 1)
    assert append(state, 1, 2) == DuplicateBatch(1, 1, NOW)
    refused(state, OUT_OF_ORDER, 5)
    refused(state, OUT_OF_ORDER, 1, epoch=1)
    append(state, 0, 2, epoch=1)
    refused(state, ErrorCode.INVALID_PRODUCER_EPOCH, 0, epoch=0)
    refused(state, ErrorCode.INVALID_PRODUCER_EPOCH, 2, epoch=0)


def test_an_unknown_producer_may_begin_anywhere(state: ProducerStateManager) -> None:
    """Without state any first sequence is accepted (KIP-360)."""
    append(state, 1234, 0, epoch=7)
    append(state, 1235, 1, epoch=7)
    refused(state, OUT_OF_ORDER, 1237, epoch=7)


def test_the_last_five_batches_are_recognised(state: ProducerStateManager) -> None:
    """A batch sent again gets its old offsets back; the sixth last, and a partial overlap, are out of order."""
    for number in range(6):
        append(state, number * 3, 100 + number * 3, count=3, timestamp=NOW + number)
    for number in range(1, 6):
        assert append(state, number * 3, 999, count=3) == DuplicateBatch(
            100 + number * 3, 102 + number * 3, NOW + number
        )
    refused(state, OUT_OF_ORDER, 0, count=3)
    refused(state, OUT_OF_ORDER, 15, count=2)
    refused(state, OUT_OF_ORDER, 16, count=2)
    append(state, 18, 118)


def test_sequences_wrap(state: ProducerStateManager) -> None:
    """After 2147483647 comes 0, between batches and inside of one; duplicates are found across the wrap."""
    append(state, MAX, 0)
    refused(state, OUT_OF_ORDER, 1)
    append(state, 0, 1)
    other = make()
    append(other, MAX - 10, 0, count=20)
    assert other.active_producers[0].last_sequence == 8
    assert append(other, MAX - 10, 50, count=20) == DuplicateBatch(0, 19, NOW)
    append(other, 9, 20)


def test_check_changes_nothing(state: ProducerStateManager) -> None:
    """A batch or marker that was checked but never written has left no trace."""
    state.check(header(0, 0, is_transactional=True), is_client=True)
    assert state.active_producers == []
    append(state, 0, 0)
    state.check(header(1, 0, is_transactional=True), is_client=True)
    state.check(header(0, 0, epoch=5), is_client=True)
    assert state.transactions.first_unstable_offset is None
    assert state.active_producers == [ProducerEntry(PID, 0, 0, 0, 0, NOW, -1, -1)]
    append(state, 1, 1, is_transactional=True)
    before = state.active_producers
    state.check_marker(header(-1, 2, is_transactional=True, is_control=True), 0)
    with pytest.raises(KafkaError):
        state.check_marker(header(-1, 2, epoch=-1, is_transactional=True, is_control=True), 0)
    assert state.active_producers == before


def test_the_brokers_timestamp_counts(state: ProducerStateManager) -> None:
    """Under LogAppendTime the time to keep is the one the broker has set."""
    update = state.check(header(0, 0, timestamp=5), is_client=True)
    assert not isinstance(update, DuplicateBatch)
    state.apply(update, 10, NOW + 9)
    assert append(state, 0, 11) == DuplicateBatch(10, 10, NOW + 9)
    assert state.map_end_offset == 11


def test_marker_without_state(state: ProducerStateManager) -> None:
    """A marker alone makes an entry: it fences older epochs and wants sequence 0."""
    assert mark(state, ABORT, 0, epoch=2) is None
    refused(state, ErrorCode.INVALID_PRODUCER_EPOCH, 0, epoch=0)
    refused(state, OUT_OF_ORDER, 17, epoch=2)
    append(state, 0, 1, epoch=2)


def test_a_marker_with_a_higher_epoch_clears_the_batches(state: ProducerStateManager) -> None:
    """After a fencing abort no transaction is open, no batch is remembered, and only sequence 0 follows."""
    append(state, 0, 0, is_transactional=True)
    assert mark(state, ABORT, 1, epoch=1) == CompletedTxn(PID, 0, 1, True)
    assert state.active_producers == [ProducerEntry(PID, 1, -1, -1, 0, NOW, 0, -1)]
    refused(state, OUT_OF_ORDER, 1, epoch=1)
    append(state, 0, 2, epoch=1)


def test_a_marker_of_the_same_epoch_keeps_the_batches(state: ProducerStateManager) -> None:
    """Sequences go on after a commit in the same epoch, and duplicates are still found."""
    append(state, 0, 0, is_transactional=True)
    mark(state, COMMIT, 1, timestamp=NOW + 5)
    assert append(state, 0, 9, is_transactional=True) == DuplicateBatch(0, 0, NOW)
    assert state.active_producers[0].timestamp == NOW + 5
    append(state, 1, 2, is_transactional=True)


def test_markers_of_old_epochs_and_zombie_coordinators_are_fenced(state: ProducerStateManager) -> None:
    """A marker of an older producer epoch or coordinator is refused unseen, also when no transaction is open."""
    append(state, 0, 0, epoch=1, is_transactional=True)
    mark(state, COMMIT, 1, epoch=1, coordinator_epoch=1)
    state.transactions.on_high_watermark(2)
    for is_open in (False, True):
        if is_open:
            append(state, 1, 2, epoch=1, is_transactional=True)
        before = state.active_producers
        for code, epochs in (
            (ErrorCode.INVALID_PRODUCER_EPOCH, {"epoch": 0, "coordinator_epoch": 1}),
            (ErrorCode.TRANSACTION_COORDINATOR_FENCED, {"epoch": 1, "coordinator_epoch": 0}),
        ):
            with pytest.raises(KafkaError) as caught:
                mark(state, COMMIT, 3, **epochs)
            assert caught.value.code == code
            assert state.active_producers == before
    assert state.transactions.first_unstable_offset == 2


def test_plain_batch_inside_a_transaction(state: ProducerStateManager) -> None:
    """A batch that is not transactional while a transaction is open is refused."""
    append(state, 0, 0, is_transactional=True)
    refused(state, ErrorCode.INVALID_TXN_STATE, 1)
    mark(state, COMMIT, 1)
    append(state, 1, 2)


def test_first_unstable_offset(state: ProducerStateManager) -> None:
    """The earliest open transaction holds back the LSO, then the earliest completed one until the high watermark passes."""
    assert state.transactions.first_unstable_offset is None
    append(state, 0, 100, producer_id=1, is_transactional=True)
    append(state, 0, 105, producer_id=2, is_transactional=True)
    append(state, 1, 108, producer_id=1, is_transactional=True)
    assert state.transactions.first_unstable_offset == 100
    mark(state, ABORT, 110, producer_id=2)
    mark(state, COMMIT, 112, producer_id=1)
    assert state.transactions.first_unstable_offset == 100
    state.transactions.on_high_watermark(112)
    assert state.transactions.first_unstable_offset == 100
    state.transactions.on_high_watermark(113)
    assert state.transactions.first_unstable_offset is None


def test_last_stable_offset_of_a_completed_transaction(state: ProducerStateManager) -> None:
    """The LSO is the first offset of another open transaction, else the offset after the marker."""
    append(state, 0, 0, producer_id=1, is_transactional=True)
    append(state, 0, 5, producer_id=2, is_transactional=True)
    append(state, 0, 7, producer_id=3, is_transactional=True)
    marker = header(-1, 8, producer_id=2, is_transactional=True, is_control=True)
    completed = state.append_marker(marker, ABORT, 0, 8)
    assert completed == CompletedTxn(2, 5, 8, True)
    assert state.transactions.last_stable_offset_after(completed) == 0
    state.transactions.complete(completed)
    first = CompletedTxn(1, 0, 9, False)
    assert state.transactions.last_stable_offset_after(first) == 7
    state.transactions.complete(first)
    assert state.transactions.last_stable_offset_after(CompletedTxn(3, 7, 10, True)) == 11


def test_empty_transactions_complete_nothing(state: ProducerStateManager) -> None:
    """A marker for a producer without data here ends no transaction; neither do other control records."""
    assert mark(state, COMMIT, 0) is None
    assert mark(state, ABORT, 1) is None
    assert mark(state, 2, 2, producer_id=77) is None
    assert state.producer_count == 1


def test_coordinators_batches_have_no_sequence(state: ProducerStateManager) -> None:
    """Batches of the group coordinator carry sequence -1 and are only checked for the epoch."""
    append(state, -1, 0, epoch=1, is_transactional=True, is_client=False)
    append(state, -1, 2, epoch=1, is_transactional=True, is_client=False)
    assert state.active_producers[0].last_sequence == -1
    assert state.active_producers[0].current_txn_first_offset == 0
    refused(state, ErrorCode.INVALID_PRODUCER_EPOCH, -1, epoch=0, is_transactional=True, is_client=False)


def test_replay_believes_what_is_stored(state: ProducerStateManager) -> None:
    """Gaps, epochs and coordinator epochs that go back are accepted from the log."""
    state.replay(header(5, 0, 3, epoch=4))
    state.replay(header(90, 10, epoch=4))
    state.replay(header(7, 11, epoch=3, is_transactional=True))
    assert state.active_producers == [ProducerEntry(PID, 3, 7, 11, 0, NOW, -1, 11)]
    state.replay(header(8, 12, epoch=3))
    marker = header(-1, 13, epoch=2, is_transactional=True, is_control=True)
    assert state.replay(marker) is None
    assert state.transactions.first_unstable_offset == 11
    completed = state.replay(marker, control_type=ABORT, coordinator_epoch=5)
    assert completed == CompletedTxn(PID, 11, 13, True)
    state.transactions.complete(completed)
    assert state.replay(marker, control_type=COMMIT, coordinator_epoch=1) is None
    assert state.active_producers[0].coordinator_epoch == 1
    assert state.map_end_offset == 14


def test_a_silent_producer_is_forgotten(state: ProducerStateManager) -> None:
    """A producer last heard of too long ago is forgotten and may begin anywhere, unless its transaction is open."""
    append(state, 0, 0, producer_id=1)
    append(state, 0, 1, producer_id=2, is_transactional=True)
    assert state.expire(NOW + EXPIRATION - 1) == 0
    assert state.expire(NOW + EXPIRATION) == 1
    append(state, 17, 2, producer_id=1)
    assert state.expire(NOW + 10, expiration_ms=5) == 1
    assert [entry.producer_id for entry in state.active_producers] == [2]


def test_snapshot_and_load(memory: MemoryEnv) -> None:
    """A snapshot keeps the last batch of each producer, and open transactions; an empty log gets none."""
    state = make(memory)
    assert state.take_snapshot(0) is None
    append(state, 0, 0)
    append(state, 1, 1)
    append(state, 0, 2, producer_id=2, epoch=3, is_transactional=True)
    append(state, 0, 3, producer_id=3, is_transactional=True)
    mark(state, ABORT, 4, producer_id=3, coordinator_epoch=9)
    assert state.take_snapshot(5) == "/t-0/00000000000000000005.snapshot"
    assert state.take_snapshot(5) is None
    again = make(memory)
    assert again.snapshots.offsets
    again.load(NOW, 5, log_start_offset=0)
    assert again.is_loaded
    assert again.map_end_offset == 5
    assert sorted(again.active_producers) == sorted(state.active_producers)
    assert again.transactions.first_unstable_offset == 2
    assert append(again, 1, 9) == DuplicateBatch(1, 1, NOW)
    refused(again, OUT_OF_ORDER, 0)
    append(again, 2, 5)
    with pytest.raises(KafkaError):
        mark(again, COMMIT, 6, producer_id=3, coordinator_epoch=8)


def test_loading_forgets_the_expired(memory: MemoryEnv) -> None:
    """Expired producers are not loaded from a snapshot, unless a transaction is open."""
    state = make(memory)
    append(state, 0, 0, timestamp=NOW)
    append(state, 0, 1, producer_id=2, timestamp=NOW, is_transactional=True)
    state.take_snapshot(2)
    again = make(memory)
    again.load(NOW + EXPIRATION, 2, log_start_offset=0)
    assert [entry.producer_id for entry in again.active_producers] == [2]


def snapshots(env: MemoryEnv) -> list[int]:
    return [int(name.split(".")[0]) for name in env.list_dir(DIR)]


def test_load_removes_what_is_out_of_range(memory: MemoryEnv) -> None:
    """Snapshots at or below the log start and above the log end are removed; the newest remaining one is loaded."""
    state = make(memory)
    for sequence in range(5):
        append(state, sequence, sequence)
        state.take_snapshot(sequence + 1)
    state.load(NOW, 3, log_start_offset=1)
    assert snapshots(memory) == [2, 3]
    assert state.map_end_offset == 3
    assert state.active_producers[0].last_sequence == 2


@pytest.mark.parametrize("damage", ["empty", "short", "garbled"])
def test_a_broken_snapshot_gives_way_to_an_older_one(memory: MemoryEnv, damage: str) -> None:
    """A corrupt snapshot is removed, and the log must be replayed instead."""
    state = make(memory)
    append(state, 0, 0)
    state.take_snapshot(1)
    append(state, 1, 1)
    path = state.take_snapshot(2)
    assert path is not None
    file = memory.open(path)
    if damage == "garbled":
        file.pwrite(b"\xff", 20)
    else:
        file.truncate(0 if damage == "empty" else 30)
    again = make(memory)
    again.load(NOW, 2, log_start_offset=0)
    assert again.map_end_offset == 1
    assert again.active_producers[0].last_sequence == 0
    assert snapshots(memory) == [1]
    assert again.take_snapshot(2) == path


def test_nothing_to_load(state: ProducerStateManager) -> None:
    """Without a snapshot the state is empty and begins at the log start."""
    append(state, 0, 50)
    state.load(NOW, 100, log_start_offset=40)
    assert state.map_end_offset == 40
    assert state.active_producers == []


def test_a_snapshot_that_is_gone_is_passed_over(memory: MemoryEnv) -> None:
    """Files already removed by another caller are not an error."""
    state = make(memory)
    append(state, 0, 0)
    state.take_snapshot(1)
    state.take_snapshot(2)
    memory.rename("/t-0/00000000000000000002.snapshot", "/t-0/00000000000000000002.snapshot.deleted")
    state.load(NOW, 2, log_start_offset=0)
    assert state.map_end_offset == 1
    state.snapshots.remove_strays([2])
    assert memory.list_dir(DIR) == ["00000000000000000002.snapshot.deleted"]


@pytest.mark.parametrize(
    ("present", "bases", "left"),
    [
        ([2, 5, 42], [5], [5, 42]),
        ([2, 5, 42], [42], [42]),
        ([1, 2, 3, 4], [1, 2, 4], [1, 2, 4]),
        ([2, 5], [], [5]),
        ([3], [10], []),
    ],
)
def test_stray_snapshots(memory: MemoryEnv, present: list[int], bases: list[int], left: list[int]) -> None:
    """Snapshots of no segment are removed, except the newest if it is at or above the last segment."""
    memory.make_dirs(DIR)
    for offset in present:
        memory.write_atomically(f"{DIR}/{offset:020d}.snapshot", write_snapshot([]))
    make(memory).snapshots.remove_strays(bases)
    assert snapshots(memory) == left


def test_a_longer_file_of_the_same_name_is_replaced(memory: MemoryEnv) -> None:
    """A snapshot does not keep the tail of an earlier file of the same name."""
    memory.make_dirs(DIR)
    state = make(memory)
    assert not state.snapshots.offsets
    memory.write_atomically(f"{DIR}/{7:020d}.snapshot", bytes(1000))
    state.take_snapshot(7)
    assert memory.file_size(f"{DIR}/{7:020d}.snapshot") == 10


def test_log_start_moves(state: ProducerStateManager) -> None:
    """Finished transactions below the log start no longer hold the last stable offset."""
    append(state, 0, 0, is_transactional=True)
    mark(state, ABORT, 5)
    assert state.transactions.first_unstable_offset == 0
    state.on_log_start_offset(6)
    assert state.transactions.first_unstable_offset is None
    assert state.state_of(PID) is not None
    state.clear(6)
    assert state.state_of(PID) is None
    assert state.map_end_offset == 6


@pytest.mark.parametrize("seed", range(20))
def test_replaying_gives_the_same_state(seed: int) -> None:
    """Whatever was appended, replaying the log, from the start or after any snapshot, ends in the same state."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    env = MemoryEnv()
    state = make(env)
    stored: list[tuple[BatchHeader, int | None]] = []
    sequences: dict[int, int] = {}
    offset = 0
    for _ in range(150):
        producer_id = chance.randrange(4)
        is_open = (found := state.state_of(producer_id)) is not None and found.current_txn_first_offset >= 0
        if is_open and chance.random() < 0.3:
            control_type = chance.choice((ABORT, COMMIT))
            assert mark(state, control_type, offset, producer_id=producer_id) is not None
            marker = header(-1, offset, producer_id=producer_id, is_transactional=True, is_control=True)
            stored.append((marker, control_type))
            offset += 1
        else:
            count = chance.randint(1, 4)
            sequence = sequences.get(producer_id, 0)
            is_transactional = is_open or chance.random() < 0.5
            assert (
                append(state, sequence, offset, count, producer_id=producer_id, is_transactional=is_transactional)
                is None
            )
            stored.append(
                (header(sequence, offset, count, producer_id=producer_id, is_transactional=is_transactional), None)
            )
            sequences[producer_id] = sequence + count
            offset += count
        state.transactions.on_high_watermark(offset)
        if chance.random() < 0.1:
            state.take_snapshot(offset)
    for start in (0, *state.snapshots.offsets):
        again = make(env)
        if start:
            # Loading with a lower end drops later snapshots, so each one is tried on a copy of its own.
            again.restore(_read(env, start), NOW)
        for batch, control_type in stored:
            if batch.base_offset >= start:
                completed = again.replay(batch, control_type=control_type, coordinator_epoch=0)
                if completed is not None:
                    again.transactions.complete(completed)
        again.transactions.on_high_watermark(offset)
        assert sorted(again.active_producers) == sorted(state.active_producers)
        assert again.transactions.first_unstable_offset == state.transactions.first_unstable_offset


def _read(env: MemoryEnv, offset: int) -> list[ProducerEntry]:
    return read_snapshot(env.read_bytes(f"{DIR}/{offset:020d}.snapshot"))
