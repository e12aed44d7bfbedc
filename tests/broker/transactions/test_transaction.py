"""The states of a transactional id as pure values: valid transitions and refusals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.broker.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ENDING,
    IDLE,
    LAST_CLIENT_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    NewProducerIdNeeded,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
    check_producer,
    completed,
    created,
    ended,
    fenced,
    from_value,
    initialized,
    to_value,
    with_partitions,
)
from diamant.protocol.errors import ErrorCode, KafkaError

PARTITIONS = frozenset({("t", 0), ("t", 1), ("u", 5)})
VALID_PREVIOUS = {
    EMPTY: IDLE,
    ONGOING: IDLE | {ONGOING},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: IDLE | {ONGOING},
    COMPLETE_COMMIT: {PREPARE_COMMIT},
    COMPLETE_ABORT: {PREPARE_ABORT},
}
"""Kafka's TransactionState.validPreviousStates, without the states that are never stored."""


def in_state(state: TransactionState, *, epoch: int = 3) -> Transaction:
    """Return a transaction of producer 10."""
    partitions = PARTITIONS if state not in IDLE else frozenset()
    return Transaction("id", 10, epoch, 60_000, state, partitions, start_ms=100, last_update_ms=200)


def code_of(call: object) -> str:
    """Return the name of the error that a call raises; NONE if none."""
    try:
        call()  # type: ignore[operator]
    except KafkaError as error:
        return error.code.name
    return "NONE"


ENDED_TV1 = {
    # state: (commit asked, abort asked)
    EMPTY: ("INVALID_TXN_STATE", "INVALID_TXN_STATE"),
    ONGOING: ("NONE", "NONE"),
    PREPARE_COMMIT: ("CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"),
    PREPARE_ABORT: ("INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"),
    COMPLETE_COMMIT: ("NONE", "INVALID_TXN_STATE"),
    COMPLETE_ABORT: ("INVALID_TXN_STATE", "NONE"),
}
ENDED_TV2 = {
    # state: (commit at the present epoch, abort at it, commit at the one before, abort at it)
    EMPTY: ("INVALID_TXN_STATE", "NONE", "PRODUCER_FENCED", "PRODUCER_FENCED"),
    ONGOING: ("NONE", "NONE", "PRODUCER_FENCED", "PRODUCER_FENCED"),
    PREPARE_COMMIT: ("PRODUCER_FENCED", "PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE"),
    PREPARE_ABORT: ("PRODUCER_FENCED", "PRODUCER_FENCED", "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"),
    COMPLETE_COMMIT: ("INVALID_TXN_STATE", "NONE", "NONE", "INVALID_TXN_STATE"),
    COMPLETE_ABORT: ("INVALID_TXN_STATE", "NONE", "INVALID_TXN_STATE", "NONE"),
}


def end(txn: Transaction, *, commit: bool, version: int, epoch: int | None = None) -> Transaction | None:
    """Send EndTxn at `epoch`, by default the present one, at 1000 ms."""
    producer = ProducerIdAndEpoch(txn.producer_id, txn.producer_epoch if epoch is None else epoch)
    return ended(txn, producer, is_commit=commit, client_version=version, now_ms=1000, new_producer_id=None)


@pytest.mark.parametrize("state", ENDED_TV1, ids=lambda state: state.label)
def test_end_by_tv1(state: TransactionState) -> None:
    """Each state accepts or refuses commit and abort as Kafka does; other epochs and ids are refused in all of them."""
    txn = in_state(state)
    assert (
        code_of(lambda: end(txn, commit=True, version=0)),
        code_of(lambda: end(txn, commit=False, version=0)),
    ) == ENDED_TV1[state]
    for epoch in (2, 4):
        assert code_of(lambda at=epoch: end(txn, commit=True, version=0, epoch=at)) == "PRODUCER_FENCED"
    other = ProducerIdAndEpoch(11, 3)
    assert (
        code_of(lambda: ended(txn, other, is_commit=True, client_version=0, now_ms=0, new_producer_id=None))
        == "INVALID_PRODUCER_ID_MAPPING"
    )


@pytest.mark.parametrize("state", ENDED_TV2, ids=lambda state: state.label)
def test_end_by_tv2(state: TransactionState) -> None:
    """Each state accepts or refuses commit and abort, first and retried, as Kafka does; all other epochs are refused."""
    txn = in_state(state)
    assert (
        tuple(
            code_of(lambda at=epoch, is_commit=commit: end(txn, commit=is_commit, version=2, epoch=at))
            for epoch in (3, 2)
            for commit in (True, False)
        )
        == ENDED_TV2[state]
    )
    for epoch in (1, 4):
        assert code_of(lambda at=epoch: end(txn, commit=True, version=2, epoch=at)) == "PRODUCER_FENCED"


@pytest.mark.parametrize(
    ("state", "commit", "version", "prepared", "epoch", "start_ms"),
    [
        (ONGOING, True, 0, PREPARE_COMMIT, 3, 100),
        (ONGOING, False, 2, PREPARE_ABORT, 4, 100),
        (COMPLETE_COMMIT, False, 2, PREPARE_ABORT, 4, 1000),
    ],
    ids=["by TV1", "by TV2", "of nothing, by TV2"],
)
def test_an_end_and_its_markers(
    state: TransactionState, commit: bool, version: int, prepared: TransactionState, epoch: int, start_ms: int
) -> None:
    """Partitions are kept for their markers, which by TV2 already have the next epoch. An abort of nothing starts with its
    request.
    """
    txn = in_state(state)
    after = end(txn, commit=commit, version=version)
    assert after is not None
    assert (after.state, after.partitions, after.producer_epoch, after.start_ms) == (
        prepared, txn.partitions, epoch, start_ms,
    )  # fmt: skip
    assert after.last_producer_epoch == (3 if version == 2 else -1)
    done = completed(after, 2000)
    assert (done.partitions, done.identity, done.start_ms) == (frozenset(), (10, epoch), start_ms)


def test_the_last_epoch_by_tv2() -> None:
    """The markers have the epoch that no client gets; then another producer id follows, and a retry is recognised."""
    txn = in_state(ONGOING, epoch=LAST_CLIENT_EPOCH)
    with pytest.raises(NewProducerIdNeeded):
        end(txn, commit=True, version=2)
    prepared = ended(txn, txn.identity, is_commit=True, client_version=2, now_ms=1, new_producer_id=77)
    assert prepared is not None
    assert (prepared.identity, prepared.next_producer_id) == ((10, 32_767), 77)
    done = completed(prepared, 2)
    assert (done.identity, done.previous_producer_id) == ((77, 0), 10)
    again = ProducerIdAndEpoch(10, LAST_CLIENT_EPOCH)
    assert ended(done, again, is_commit=True, client_version=2, now_ms=3, new_producer_id=None) is None
    assert (
        code_of(lambda: ended(done, again, is_commit=False, client_version=2, now_ms=3, new_producer_id=None))
        == "INVALID_TXN_STATE"
    )


def introduce(
    txn: Transaction, *, expected: tuple[int, int] | None = None, new_producer_id: int | None = None, server: int = 2
) -> Transaction:
    """Send InitProducerId at 5000 ms with another timeout."""
    as_who = None if expected is None else ProducerIdAndEpoch(*expected)
    return initialized(txn, as_who, 30_000, 5000, new_producer_id=new_producer_id, server_version=server)


@pytest.mark.parametrize("state", sorted(IDLE), ids=lambda state: state.label)
def test_a_producer_that_starts_gets_the_next_epoch(state: TransactionState) -> None:
    """A producer gets its own timeout and the next epoch; the producer with the previous epoch is fenced."""
    txn = introduce(in_state(state))
    assert (txn.state, txn.identity, txn.last_producer_epoch, txn.timeout_ms) == (EMPTY, (10, 4), -1, 30_000)
    assert code_of(lambda: introduce(txn, expected=(10, 3))) == "PRODUCER_FENCED"


def test_a_producer_that_raises_its_own_epoch() -> None:
    """The producer may retry after a lost answer, but not with an older epoch (KIP-360)."""
    txn = introduce(in_state(EMPTY), expected=(10, 3))
    assert (txn.identity, txn.last_producer_epoch) == ((10, 4), 3)
    assert introduce(txn, expected=(10, 3)).identity == (10, 4)
    assert introduce(txn, expected=(10, 4)).identity == (10, 5)
    for expected in ((10, 2), (10, 5), (9, 4)):
        assert code_of(lambda who=expected: introduce(txn, expected=who)) == "PRODUCER_FENCED"
    # With the id before, only a producer that has used its last epoch may be the present one.
    assert code_of(lambda: introduce(txn._replace(previous_producer_id=9), expected=(9, 4))) == "PRODUCER_FENCED"


@pytest.mark.parametrize("state", sorted(ENDING), ids=lambda state: state.label)
def test_a_producer_waits_for_markers(state: TransactionState) -> None:
    """While a transaction ends, new producers and new partitions are refused."""
    txn = in_state(state)
    assert code_of(lambda: introduce(txn)) == "CONCURRENT_TRANSACTIONS"
    assert code_of(lambda: introduce(txn, expected=(10, 3))) == "CONCURRENT_TRANSACTIONS"
    assert code_of(lambda: introduce(txn, expected=(9, 3))) == "PRODUCER_FENCED"
    assert code_of(lambda: check_producer(txn, txn.identity)) == "CONCURRENT_TRANSACTIONS"
    assert (
        code_of(lambda: with_partitions(txn, txn.identity, PARTITIONS, 1, client_version=0))
        == "CONCURRENT_TRANSACTIONS"
    )


def test_used_up_epochs() -> None:
    """A starting or continuing producer gets another id with epoch 0, and may retry."""
    txn = in_state(COMPLETE_ABORT, epoch=LAST_CLIENT_EPOCH)
    with pytest.raises(NewProducerIdNeeded):
        introduce(txn)
    assert introduce(txn, new_producer_id=50).identity == (50, 0)
    rotated = introduce(txn, expected=(10, LAST_CLIENT_EPOCH), new_producer_id=50)
    assert introduce(rotated, expected=(10, LAST_CLIENT_EPOCH)).identity == (50, 0)


@pytest.mark.parametrize(("server", "last_epoch"), [(0, -1), (1, -1), (2, 3)])
def test_an_open_transaction_is_fenced_in_the_next_epoch(server: int, last_epoch: int) -> None:
    """An open transaction is aborted in the next epoch; with TV2 its producer may initialize with the old one."""
    txn = introduce(in_state(ONGOING), server=server)
    assert (txn.state, txn.identity, txn.partitions, txn.last_producer_epoch) == (
        PREPARE_ABORT, (10, 4), PARTITIONS, last_epoch,
    )  # fmt: skip


def test_fencing_at_the_last_epoch() -> None:
    """With TV1 the reserved epoch fences, and the next producer gets another id; TV2 changes the id at once."""
    txn = in_state(ONGOING, epoch=LAST_CLIENT_EPOCH)
    by_tv1 = completed(fenced(txn, 1, server_version=1, new_producer_id=None), 2)
    assert by_tv1.identity == (10, 32_767)
    assert introduce(by_tv1, new_producer_id=60).identity == (60, 0)
    with pytest.raises(NewProducerIdNeeded):
        fenced(txn, 1, server_version=2, new_producer_id=None)
    assert completed(fenced(txn, 1, server_version=2, new_producer_id=60), 2).identity == (60, 0)


def test_partitions_are_collected() -> None:
    """The first begins the transaction, known ones change nothing, and no other producer may add any."""
    begun = with_partitions(in_state(COMPLETE_COMMIT), ProducerIdAndEpoch(10, 3), [("t", 0)], 700, client_version=2)
    assert (begun.state, begun.start_ms, begun.client_version) == (ONGOING, 700, 2)
    more = with_partitions(begun, begun.identity, [("t", 0), ("t", 1)], 800, client_version=0)
    assert (more.partitions, more.start_ms, more.last_update_ms) == ({("t", 0), ("t", 1)}, 700, 800)
    assert with_partitions(more, more.identity, [("t", 1)], 900, client_version=0) is more
    for producer, code in (((10, 2), "PRODUCER_FENCED"), ((11, 3), "INVALID_PRODUCER_ID_MAPPING")):
        assert (
            code_of(lambda who=producer: with_partitions(more, ProducerIdAndEpoch(*who), [], 1, client_version=0))
            == code
        )


def test_transactions_time_out_and_ids_expire() -> None:
    """A transaction times out after its timeout, an unused id expires; the two are independent."""
    ongoing, idle = in_state(ONGOING), in_state(COMPLETE_COMMIT)
    assert not ongoing.is_timed_out(60_100)
    assert ongoing.is_timed_out(60_101)
    assert not idle.is_timed_out(10**12)
    assert not idle.is_expired(1199, 1000)
    assert idle.is_expired(1200, 1000)
    assert not ongoing.is_expired(10**12, 1)


def test_states_have_the_names_of_kafkas_tools() -> None:
    """States have the names in Kafka's tools and filters."""
    assert [state.label for state in TransactionState] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip


@pytest.mark.parametrize("state", sorted(VALID_PREVIOUS), ids=lambda state: state.label)
def test_the_stored_value_is_restored(state: TransactionState) -> None:
    """The stored value is restored, except for the last epoch, which Kafka does not store either."""
    next_one = {"next_producer_id": 12, "next_producer_epoch": 3}
    txn = in_state(state)._replace(previous_producer_id=9, client_version=2, last_producer_epoch=2, **next_one)
    assert from_value("id", to_value(txn)) == txn._replace(last_producer_epoch=-1)
    assert (to_value(txn).partitions is None) == (state is EMPTY)


def test_records_of_states_that_are_not_stored() -> None:
    """A dead id is None; a stored fence, if Kafka ever wrote one, continues with its abort; others are refused."""
    value = to_value(in_state(ONGOING))
    assert from_value("id", value._replace(status=6)) is None
    fence = from_value("id", value._replace(status=7))
    assert fence is not None
    assert fence.state is PREPARE_ABORT
    with pytest.raises(ValueError, match="8"):
        from_value("id", value._replace(status=8))


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["init", "bump", "add", "commit", "abort", "complete", "fence"]),
        st.sampled_from([0, 2]),
        st.integers(-2, 1),
    ),
    max_size=60,
)


@given(requests=REQUESTS)
def test_any_order_of_requests(requests: list[tuple[str, int, int]]) -> None:
    """Only Kafka's transitions occur, epochs never decrease, partitions are kept until the markers are written."""
    history = [created("id", 10, 60_000, 0)]
    for now_ms, (request, version, shift) in enumerate(requests, start=1):
        txn = history[-1]
        producer = ProducerIdAndEpoch(txn.producer_id, txn.producer_epoch + shift)
        try:
            if request == "init":
                following = initialized(txn, None, 1000, now_ms, new_producer_id=99, server_version=version)
            elif request == "bump":
                following = initialized(txn, producer, 1000, now_ms, new_producer_id=99, server_version=version)
            elif request == "add":
                following = with_partitions(txn, producer, [("t", now_ms % 5)], now_ms, client_version=version)
            elif request == "complete":
                following = completed(txn, now_ms) if txn.state in ENDING else txn
            elif request == "fence":
                is_open = txn.state is ONGOING
                following = fenced(txn, now_ms, server_version=version, new_producer_id=99) if is_open else txn
            else:
                following = (
                    ended(
                        txn,
                        producer,
                        is_commit=request == "commit",
                        client_version=version,
                        now_ms=now_ms,
                        new_producer_id=99,
                    )
                    or txn
                )
        except KafkaError as error:
            assert error.code in (  # noqa: PT017
                ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE,
            )  # fmt: skip
            continue
        history.append(following)
    for before, after in pairwise(history):
        if after is before:
            continue
        assert before.state in VALID_PREVIOUS[after.state]
        assert after.producer_epoch >= before.producer_epoch
        assert after.last_update_ms > before.last_update_ms or before is history[0]
        if after.state in ENDING:
            assert after.partitions == before.partitions
        elif after.state in IDLE:
            assert not after.partitions
