"""Records that an earlier search has found are located without a second look at all others."""

from __future__ import annotations

import pytest

from diamant.cleaner.redaction.hits import Hits
from diamant.cleaner.redaction.locate import SearchedSegment, locate_records
from diamant.cleaner.redaction.where import YES
from diamant.protocol.batches.header import Record
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.redaction.redacted_log import locate

WHERE = 'key == "a"'


def a_log(policy: str) -> CleanerLog:
    """Records 0 to 5 in three segments."""
    return CleanerLog("a=1 b=2 | roll | b=3 c=4 | roll | a=5 d=6", cleanup_policy=frozenset({policy}))


def hits_of(log: CleanerLog, *offsets: int) -> Hits:
    """What a search of the whole log has found."""
    hits = Hits(log.log.log_end_offset)
    for offset in offsets:
        hits.add(offset)
    hits.records_in = {(one.base_offset, one.size): 2 for one in log.log.segments}
    return hits


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_hits_locate_the_same_as_a_search_of_everything(policy: str) -> None:
    """Counts and offsets are equal, older values of the keys included."""
    log = a_log(policy)
    whole, located = locate(log.log, WHERE), locate(log.log, WHERE, hits=hits_of(log, 4, 0, 4))
    assert [sorted(one.offsets) for one in (whole, located)] == [[0, 4], [0, 4]]
    assert (located.matched, located.superseded) == (whole.matched, whole.superseded)
    assert (located.records, located.kept) == (whole.records, whole.kept) == (6, 4)


def test_what_was_written_after_the_search_is_looked_at() -> None:
    """Also in the segment that was active then."""
    log = a_log("delete")
    hits = hits_of(log, 0, 4)
    log.write("a=7 | roll | e=8 a=9")
    located = locate(log.log, WHERE, hits=hits)
    assert (located.matched, located.records) == (4, 9)


def test_hits_are_candidates_and_not_trusted() -> None:
    """The condition decides about each of them; what is no hit is not read."""
    log = a_log("delete")
    assert locate(log.log, WHERE, hits=hits_of(log, 0, 2)).matched == 1
    file = log.env.open(log.log.segments[1].path)
    file.truncate(0)
    file.append(b"\xff" * log.log.segments[1].size)
    file.close()
    assert len(locate(log.log, WHERE).problems) == 1
    assert locate(log.log, WHERE, hits=hits_of(log, 0, 4)).problems == []


def test_other_records_of_a_batch_are_not_judged() -> None:
    """A batch has to be read for its hit, and may have thousands of other records, which nobody has to decode."""
    log, judged = a_log("delete"), []

    class Condition:
        def examine(self, record: Record) -> tuple[int, None]:
            judged.append(record.offset)
            return YES, None

        def may_be_in(self, _payload: bytes) -> bool:
            return True

    log.write("b=7 a=8 b=9")
    segments = [SearchedSegment(one.base_offset, one.path, one.size, ()) for one in log.log.segments]
    located = locate_records(
        log.env, segments, Condition(), log.log.log_end_offset, is_compacted=False, hits=hits_of(log, 7)
    )
    assert (judged, located.records, located.matched) == ([7], 9, 1)


def test_two_searches_join() -> None:
    """The earlier end counts."""
    one, other = Hits(10), Hits(8)
    one.add(3)
    other.add(5)
    one.join(other)
    assert [one.may_be_in(offset, offset) for offset in (3, 4, 5, 7, 8)] == [True, False, True, False, True]
