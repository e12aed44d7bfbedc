"""Transactions in the cleaner: the tracker alone, and whole rounds over transactional logs.

The rounds are scenarios of Kafka's LogCleanerTest, in our words. Keys are numbers, each call is one batch.
"""

from __future__ import annotations

from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.protocol.batches.control import ControlType
from diamant.storage.segments.txn_index import AbortedTxn
from tests.cleaner.cleaner_log import CleanerLog

ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)


# -- the tracker -----------------------------------------------------------------------------------------------------


def test_data_outside_of_transactions_stays() -> None:
    """An idempotent producer's plain batch is not part of that producer's aborted transaction."""
    tracker = TransactionTracker()
    tracker.add_aborted([AbortedTxn(1, 0, 9, 10)])
    assert not tracker.drops_data(3, 1, is_transactional=False)


def test_an_aborted_transaction_begins_at_its_first_offset() -> None:
    """Earlier batches, and those of other producers, are kept; from there on all its batches are removed."""
    tracker = TransactionTracker()
    tracker.add_aborted([AbortedTxn(1, 5, 9, 10)])
    assert not tracker.drops_data(4, 1, is_transactional=True)
    assert not tracker.drops_data(6, 2, is_transactional=True)
    assert tracker.drops_data(7, 1, is_transactional=True)


def test_an_abort_marker_stays_as_long_as_there_is_data() -> None:
    """If a batch of the transaction was read, the marker and its index entry stay; the next marker may be removed."""
    tracker = TransactionTracker()
    aborted = AbortedTxn(1, 0, 9, 10)
    tracker.add_aborted([aborted])
    tracker.drops_data(3, 1, is_transactional=True)
    assert tracker.drops_control(9, 1, ABORT) == (False, aborted)
    assert tracker.drops_control(20, 1, ABORT) == (True, None)


def test_an_abort_marker_without_data_may_go() -> None:
    """The marker's index entry goes at once."""
    tracker = TransactionTracker()
    tracker.add_aborted([AbortedTxn(1, 0, 9, 10)])
    assert tracker.drops_control(9, 1, ABORT) == (True, None)


def test_a_commit_marker_stays_as_long_as_there_is_data() -> None:
    """Batches count since the producer's previous marker."""
    tracker = TransactionTracker()
    tracker.drops_data(3, 1, is_transactional=True)
    assert tracker.drops_control(4, 1, COMMIT) == (False, None)
    assert tracker.drops_control(5, 1, COMMIT) == (True, None)
    assert tracker.drops_control(6, 2, COMMIT) == (True, None)


def test_other_control_records_always_stay() -> None:
    """Leader changes and what later versions may add are never dropped; a control batch without a record may be."""
    tracker = TransactionTracker()
    assert tracker.drops_control(1, -1, ControlType.LEADER_CHANGE) == (False, None)
    assert tracker.drops_control(2, -1, ControlType.UNKNOWN) == (False, None)
    assert tracker.drops_control(3, 1, None) == (True, None)


def test_a_transaction_announced_for_each_segment_counts_once() -> None:
    """A repeated entry during the transaction changes nothing, and none remains after its marker."""
    tracker = TransactionTracker()
    aborted = AbortedTxn(1, 0, 9, 10)
    tracker.add_aborted([aborted])
    tracker.drops_data(3, 1, is_transactional=True)
    tracker.add_aborted([aborted])
    assert tracker.drops_control(9, 1, ABORT) == (False, aborted)
    assert not tracker.drops_data(11, 1, is_transactional=True)


# -- rounds ----------------------------------------------------------------------------------------------------------


def txn(log: CleanerLog, producer: int, *keys: int) -> None:
    """One transactional batch."""
    log.data(*map(str, keys), producer=producer, txn=True)


def test_aborted_data_neither_stays_nor_supersedes() -> None:
    """The aborted batches go; an older value of their keys stays (testBasicTransactionAwareCleaning)."""
    log = CleanerLog("t1: 1 2 | t2: 2 3 | t1: 3 4 | abort 1 | commit 2 | t1: 2 | commit 1")
    index = log.aborted()
    log.roll()
    result = log.clean()
    assert log.keys() == ["3", "2"]
    assert log.offsets() == [3, 6, 7, 8, 9]
    assert log.aborted() == index
    assert result.stats.removed == {"aborted": 4, "superseded": 1}


def test_transactions_over_segments_whose_markers_are_not_cleanable_yet() -> None:
    """Data in a cleanable segment is dropped for a marker that lies behind the round's end (KAFKA-8351)."""
    log = CleanerLog()
    log.write(
        "t1: 1 2 | t3: 2 3 | t2: 3 4 | roll | t2: 5 6 | t3: 6 7 | t1: 7 8 | abort 2 | t3: 8 9 | commit 3 | "
        "t1: 9 10 | abort 1"
    )
    log.clean()
    assert log.keys() == ["2", "3", "5", "6", "6", "7", "7", "8", "8", "9", "9", "10"]
    log.write("roll | t2: 11 | t1: 12")
    log.clean()
    assert log.keys() == ["2", "3", "6", "7", "8", "9", "11", "12"]


def test_a_commit_marker_leaves_after_its_data() -> None:
    """With data it is kept; without data it gets a horizon; after the horizon it is removed (testCommitMarkerRemoval)."""
    log = CleanerLog("t1: 1 | t1: 2 3 | commit 1 | t1: 2 | commit 1 | roll")
    log.clean()
    assert (log.keys(), log.offsets()) == (["1", "3", "2"], [0, 2, 3, 4, 5])
    log.write("t1: 1 3 | commit 1 | roll")
    log.clean()
    assert (log.keys(), log.offsets(), log.horizon(3)) == (["2", "1", "3"], [3, 4, 5, 6, 7, 8], None)
    log.clean()
    assert (log.offsets(), log.horizon(3)) == ([3, 4, 5, 6, 7, 8], log.now_ms + log.config.delete_retention_ms)
    log.now_ms = 2**61
    log.clean()
    assert log.offsets() == [4, 5, 6, 7, 8]


def test_an_expired_marker_is_gone_at_its_horizon_and_not_before() -> None:
    """A later round does not extend the horizon; at exactly the horizon the marker goes."""
    log = CleanerLog("t1: 1 | commit 1 | 1 | roll | t1: 9 | roll", delete_retention_ms=1000)
    start = log.now_ms
    log.clean(end=3)
    log.now_ms = start + 5
    log.clean(end=3)
    assert log.horizon(1) == start + 1005
    log.now_ms = start + 1004
    log.clean(end=3)
    assert log.horizon(1) == start + 1005
    log.now_ms = start + 1005
    log.clean(end=3)
    assert log.lasts() == [2, 3]


def test_a_key_like_a_markers_does_not_supersede_it() -> None:
    """Markers are never looked up in the map (KAFKA-14055)."""
    log = CleanerLog("t1: 1 | commit 1")
    log.data((b"\x00\x00\x00\x01", b"v"), producer=2, txn=True)
    log.write("commit 2 | roll")
    log.clean()
    assert (log.lasts(), log.offsets()) == ([0, 1, 2, 3], [0, 1, 2, 3])
