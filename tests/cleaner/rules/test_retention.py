"""The segments that retention may remove, after the cleaner or with several rules (UnifiedLog.deleteOldSegments)."""

from __future__ import annotations

from dataclasses import replace

from diamant.cleaner.rules.retention import CLOCK_DIFFERENCE_MS, deletable_segments, future_hold_ms
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.cleaner_log import CleanerLog

BOTH = frozenset({"compact", "delete"})


def make_log(**config: object) -> CleanerLog:
    """Three segments with one batch each, and the active one."""
    log = CleanerLog(cleanup_policy=BOTH, **config)
    for key in ("a", "b", "c"):
        log.data(key)
        log.roll()
    log.data("d")
    return log


def test_a_segment_that_the_cleaner_emptied_does_not_hold_back_the_rest() -> None:
    """Such a segment is removed by size even without excess, and the ones after it with the excess."""
    log = make_log()
    log.write("a | roll")
    log.clean(segment_bytes=1)
    sizes = [segment.size for segment in log.log.segments]
    assert sizes[0] == 0
    for retention_bytes, count in [(sum(sizes), 1), (sum(sizes) - 1, 1), (sum(sizes[2:]), 2), (sum(sizes) + 1, 0)]:
        log.log.update_config(replace(log.config, retention_bytes=retention_bytes, retention_ms=-1))
        assert deletable_segments(log.log, log.now_ms) == count


def test_each_rule_continues_where_the_one_before_ended() -> None:
    """A young segment removed for another reason does not protect the old ones after it; otherwise it does."""
    log = CleanerLog(cleanup_policy=BOTH, retention_ms=1000)
    log.data("young", timestamp=log.now_ms + 5000)
    log.write("roll | old | roll")
    log.data("last", timestamp=log.now_ms + 5000)
    log.now_ms += 2000
    assert deletable_segments(log.log, log.now_ms) == 0
    log.log.delete_records(1)
    assert deletable_segments(log.log, log.now_ms) == 2
    delete_oldest(log.log, 2)
    assert (log.log.log_start_offset, deletable_segments(log.log, log.now_ms)) == (2, 0)


def test_size_counts_from_what_the_log_start_has_left() -> None:
    """Segments removed because of the log start do not count as excess again."""
    log = make_log(retention_ms=-1)
    total = log.log.size
    first = log.log.segments[0].size
    log.log.update_config(replace(log.config, retention_bytes=total - first, retention_ms=-1))
    log.log.delete_records(1)
    assert deletable_segments(log.log, log.now_ms) == 1


def test_all_segments_may_go_but_not_an_empty_active_one() -> None:
    """The active segment is counted if it has records, and never when it is empty."""
    log = make_log(retention_bytes=0)
    assert deletable_segments(log.log, log.now_ms) == 4
    delete_oldest(log.log, 4)
    assert [segment.size for segment in log.log.segments] == [0]
    assert deletable_segments(log.log, log.now_ms) == 0


def test_a_timestamp_in_the_future_holds_the_oldest_segment() -> None:
    """Up to a minute ahead is a difference between clocks. What retention by size removes is not held, nor what is behind it."""
    log = CleanerLog(cleanup_policy=frozenset({"delete"}), retention_ms=1000)
    assert future_hold_ms(log.log, log.now_ms) is None
    ahead_ms = log.now_ms + CLOCK_DIFFERENCE_MS + 1
    log.data("ahead", timestamp=ahead_ms)
    assert future_hold_ms(log.log, log.now_ms) == ahead_ms + 1000 + 1
    assert future_hold_ms(log.log, log.now_ms + 1) is None
    log.roll()
    log.data("now")
    for change, expected in (
        ({"retention_bytes": log.log.active.size}, None),
        ({"retention_ms": -1}, None),
        ({"cleanup_policy": frozenset({"compact"})}, None),
        ({"cleanup_policy": BOTH}, ahead_ms + 1000 + 1),
    ):
        log.log.update_config(replace(log.config, **change))
        assert future_hold_ms(log.log, log.now_ms) == expected
