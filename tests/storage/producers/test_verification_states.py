"""Producers that await verification: sequences above a refused one, epochs, versions, markers, expiry and the bound."""

from __future__ import annotations

import pytest

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.producers.producer import DuplicateBatch
from diamant.storage.producers.producer_state import COMMIT, ProducerStateManager
from diamant.storage.producers.verification_states import VerificationStates
from tests.memory_env import MemoryEnv
from tests.storage.producers.test_producer_state import NOW, OUT_OF_ORDER, PID, append, make, mark, refused


def announce(state: ProducerStateManager, sequence: int, *, epoch: int = 0, is_tv2: bool = False) -> bool:
    return state.start_verification(PID, epoch, sequence, NOW, supports_epoch_bump=is_tv2)


def lowest(states: VerificationStates) -> list[tuple[int, int, int]]:
    """Producer id, epoch and lowest sequence of each entry."""
    return [(key, state.producer_epoch, state.lowest_sequence) for key, state in states.items()]


def test_nothing_gets_in_before_a_batch_that_was_announced(state: ProducerStateManager) -> None:
    """An entry blocks transactional and other batches of its producer, but not those of others or of our coordinators."""
    assert announce(state, 3)
    refused(state, OUT_OF_ORDER, 4)
    refused(state, OUT_OF_ORDER, 4, is_transactional=True)
    append(state, 4, 0, producer_id=PID + 1)
    append(state, 4, 1, producer_id=PID + 2, is_client=False)
    append(state, 3, 2, is_transactional=True)
    append(state, 4, 3, is_transactional=True)


def test_a_batch_outside_of_the_transaction_leaves_the_entry(state: ProducerStateManager) -> None:
    """Only a batch of the transaction removes the entry; resent batches are still recognised."""
    assert announce(state, 0)
    append(state, 0, 0)
    refused(state, OUT_OF_ORDER, 1)
    assert append(state, 0, 1) == DuplicateBatch(0, 0, NOW)
    assert announce(state, 1)
    refused(state, OUT_OF_ORDER, 1)


def test_an_open_transaction_is_not_announced(state: ProducerStateManager) -> None:
    """An open transaction of the same epoch needs no entry; a newer epoch gets one, an older one is refused."""
    append(state, 0, 0, epoch=1, is_transactional=True)
    assert not announce(state, 1, epoch=1)
    assert announce(state, 0, epoch=2)
    with pytest.raises(KafkaError) as caught:
        announce(state, 0, epoch=0)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    refused(state, ErrorCode.INVALID_PRODUCER_EPOCH, 0)


def test_version_2_begins_with_0(state: ProducerStateManager) -> None:
    """If the first request used version 2 and the producer has no batches, sequence 0 must come first, whatever follows."""
    assert announce(state, 5, is_tv2=True)
    assert announce(state, 5)
    refused(state, OUT_OF_ORDER, 5, is_transactional=True)
    append(state, 0, 0, is_transactional=True)
    other = make()
    assert announce(other, 5)
    assert announce(other, 5, is_tv2=True)
    append(other, 5, 0, is_transactional=True)


@pytest.mark.parametrize(("is_tv2", "epoch", "is_kept"), [(True, 1, True), (True, 0, False), (False, 1, False)])
def test_a_marker_removes_the_entry(state: ProducerStateManager, is_tv2: bool, epoch: int, is_kept: bool) -> None:
    """A marker removes the entry, unless its epoch is that of the next transaction, as under version 2."""
    append(state, 0, 0, is_transactional=True)
    assert announce(state, 0, epoch=1, is_tv2=is_tv2)
    mark(state, COMMIT, 1, epoch=epoch)
    append(state, 0, 2, epoch=1)
    if is_kept:
        refused(state, OUT_OF_ORDER, 1, epoch=1)
    else:
        append(state, 1, 3, epoch=1)


def test_the_lowest_sequence_of_the_newest_epoch_counts() -> None:
    """A newer epoch resets the entry, an older one is ignored; beyond the bound the oldest entry is dropped."""
    states = VerificationStates(most=3)
    for sequence, epoch in ((7, 0), (5, 0), (6, 0), (8, 1), (1, 0)):
        states.start(1, sequence, epoch, NOW, supports_epoch_bump=False)
    assert lowest(states) == [(1, 1, 8)]
    for producer_id in range(2, 6):
        states.start(producer_id, 0, 0, NOW, supports_epoch_bump=False)
    assert [key for key, _, _ in lowest(states)] == [3, 4, 5]


def test_entries_expire() -> None:
    """Entries expire with the producers, counted from the first request."""
    state = make(MemoryEnv())
    assert announce(state, 0)
    state.expire(NOW + 999, 1000)
    refused(state, OUT_OF_ORDER, 1)
    state.expire(NOW + 1000, 1000)
    append(state, 1, 0)
