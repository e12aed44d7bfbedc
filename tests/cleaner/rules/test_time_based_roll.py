"""Rolling a segment without an append, and the promise of max.compaction.lag.ms in mode prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diamant.cleaner.rules.eligibility import cleanable_range, old_enough_ms
from diamant.cleaner.rules.modes import PROMPT
from diamant.cleaner.rules.time_based_roll import BY_APPEND, due_ms, oldest_append_ms, roll_due_ms, should_roll
from diamant.storage import names
from diamant.storage.env.clocks import ManualClock
from diamant.storage.segments.log_config import LogConfig
from tests.cleaner.cleaner_log import DAY_MS, START_MS, CleanerLog

HOUR_MS = 3_600_000
WEEK_MS = 7 * DAY_MS


def loop(log: CleanerLog) -> None:
    """One cycle of the cleaner for one log, as described in `time_based_roll`."""
    if should_roll(log.log, log.now_ms):
        log.log.roll()
    found = cleanable_range(log.log, log.first_dirty, log.now_ms, ages=BY_APPEND)
    if found.is_eligible:
        log.clean(end=found.first_uncleanable_offset, mode=PROMPT)


def is_on_disk(log: CleanerLog, value: bytes) -> bool:
    """Whether any file in use has these bytes."""
    return any(value in content for name, content in log.files().items() if not name.endswith(".deleted"))


# -- the deadline ----------------------------------------------------------------------------------------------------


def test_a_quiet_segment_is_closed_when_its_first_append_is_older_than_the_limit() -> None:
    """At the limit the segment is not closed, a millisecond later it is; appends in between change nothing."""
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS)
    log.now_ms += 5
    log.data("a")
    log.now_ms += HOUR_MS // 2
    log.data("b", timestamp=START_MS)
    assert roll_due_ms(log.log, log.now_ms) == START_MS + 5 + HOUR_MS + 1
    log.now_ms = START_MS + 5 + HOUR_MS
    assert not should_roll(log.log, log.now_ms)
    log.now_ms += 1
    assert should_roll(log.log, log.now_ms)
    log.roll()
    assert roll_due_ms(log.log, log.now_ms) is None


@pytest.mark.parametrize(
    ("segment_ms", "lag_ms", "limit_ms"),
    [(WEEK_MS, 2**63 - 1, WEEK_MS), (WEEK_MS, HOUR_MS, HOUR_MS), (HOUR_MS, WEEK_MS, HOUR_MS)],
)
def test_the_limit_is_the_shorter_of_two(segment_ms: int, lag_ms: int, limit_ms: int) -> None:
    """segment.ms and max.compaction.lag.ms, as for rolls by an append."""
    log = CleanerLog("a", segment_ms=segment_ms, max_compaction_lag_ms=lag_ms)
    assert roll_due_ms(log.log, log.now_ms) == START_MS + limit_ms + 1


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup_policy": frozenset({"delete"}), "max_compaction_lag_ms": 1},
        {"cleanup_policy": frozenset(), "max_compaction_lag_ms": 1},
        {"segment_ms": 2**63 - 1},
    ],
)
def test_other_logs_are_not_closed(config: dict[str, int]) -> None:
    """Logs that are not compacted, and those without a limit, are not closed."""
    log = CleanerLog("a", **config)
    log.now_ms += 1000 * WEEK_MS
    assert roll_due_ms(log.log, log.now_ms) is None
    assert not should_roll(log.log, log.now_ms)


def test_a_log_that_refuses_writes_is_not_closed() -> None:
    """A roll could only fail."""
    log = CleanerLog("a", max_compaction_lag_ms=1)
    log.log.fail(OSError(5, "broken"))
    assert roll_due_ms(log.log, log.now_ms) is None


def test_jitter_takes_less_than_the_limit() -> None:
    """Jitter is limited even if it was drawn under a longer limit. Otherwise every append would close a segment."""
    log = CleanerLog("a", max_compaction_lag_ms=HOUR_MS)
    log.log.active.jitter_ms = 10
    assert roll_due_ms(log.log, log.now_ms) == START_MS + HOUR_MS - 10 + 1
    log.log.active.jitter_ms = HOUR_MS
    assert roll_due_ms(log.log, log.now_ms) == START_MS + HOUR_MS + 1
    config = LogConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=HOUR_MS, segment_jitter_ms=WEEK_MS)
    clamped = config.with_clamped_jitter()
    assert clamped == replace(config, segment_jitter_ms=HOUR_MS)
    assert clamped.with_clamped_jitter() is clamped


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows_births", [True, False])
@pytest.mark.parametrize("timestamp", [START_MS + 400 * DAY_MS, -1])
def test_daily_restarts_do_not_postpone_the_deadline(knows_births: bool, timestamp: int) -> None:
    """Timestamps in the future or none at all, daily appends, and missing birth times do not postpone it either."""
    log = CleanerLog(max_compaction_lag_ms=WEEK_MS)
    log.env.knows_births = knows_births
    log.write("first | roll")
    first_append_ms = log.now_ms
    days = 0
    while not should_roll(log.log, log.now_ms):
        log.data("k", timestamp=timestamp)
        log.now_ms += DAY_MS
        log.reload()
        days += 1
        assert days <= 8
    assert log.now_ms <= first_append_ms + 8 * DAY_MS
    assert days == 8


@pytest.mark.parametrize("knows_births", [True, False])
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("timestamp", [START_MS + 400 * DAY_MS, -1])
def test_the_time_in_which_a_segment_was_empty_does_not_count_after_an_orderly_restart(
    knows_births: bool, is_held: bool, timestamp: int
) -> None:
    """A quiet log, or a new one, has an empty segment; also if it is closed at the stop, and after several stops."""
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS)
    log.env.knows_births = knows_births
    for begin in range(2):
        log.now_ms += DAY_MS
        log.data(f"k{begin}", timestamp=timestamp)
        log.roll()
    log.first_dirty = 1
    log.now_ms += DAY_MS
    log.data("k", timestamp=timestamp)
    appended = [segment.first_append_ms for segment in log.log.segments]
    if is_held:
        log.roll()
        appended.append(None)
    log.now_ms += HOUR_MS + 515_000
    for _ in range(2):
        log.reload()
        assert [segment.first_append_ms for segment in log.log.segments] == appended
        oldest_ms = oldest_append_ms(log.log, 2, log.now_ms, with_active=True)
        assert oldest_ms == START_MS + 3 * DAY_MS
        assert BY_APPEND.overdue_ms(log.log, 2, log.now_ms) == (515_000 if is_held else 0)


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n1\n0 x\n", b"\xff", b"0\n1\n1 5\n"])
def test_without_a_noted_time_a_segment_is_as_old_as_its_file(content: bytes) -> None:
    """After a loss of power the file may be empty, or that of an earlier stop."""
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS)
    log.now_ms += DAY_MS
    log.data("a")
    log.log.close()
    log.env.write_atomically(f"{log.log.path}/{names.FIRST_APPENDS}", content)
    log.recover(0)
    assert oldest_append_ms(log.log, 0, log.now_ms, with_active=True) == START_MS


def test_a_noted_time_is_that_of_the_present_content() -> None:
    """A time noted before the file was last written, as that of a backup, does not count; a segment cut to nothing begins with
    the next append.
    """
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS)
    log.now_ms += DAY_MS
    log.data("a")
    log.reload()
    log.log.active.truncate_bytes(0)
    log.now_ms += DAY_MS
    log.data("a")
    assert oldest_append_ms(log.log, 0, log.now_ms, with_active=True) == START_MS + 2 * DAY_MS
    log.env.set_mtime_ms(log.log.active.path, START_MS + HOUR_MS)
    log.reload()
    assert oldest_append_ms(log.log, 0, log.now_ms, with_active=True) == START_MS


def test_after_a_crash_the_earliest_trace_counts() -> None:
    """The first batch's timestamp, the file's birth, its modification time: whichever is first."""
    log = CleanerLog(max_compaction_lag_ms=WEEK_MS)
    log.now_ms += HOUR_MS
    log.data("a", timestamp=START_MS + 100)
    log.now_ms += HOUR_MS
    log.recover(0)
    assert roll_due_ms(log.log, log.now_ms) == START_MS + WEEK_MS + 1
    log.env.set_mtime_ms(log.log.active.path, 1000)
    log.recover(0)
    assert roll_due_ms(log.log, log.now_ms) == 1000 + WEEK_MS + 1
    log.env.set_mtime_ms(log.log.active.path, log.now_ms)
    log.log.active.first_append_ms = None
    log.env._file(log.log.active.path).birth_ms = log.now_ms
    assert roll_due_ms(log.log, log.now_ms) == START_MS + 100 + WEEK_MS + 1


def test_a_clock_that_was_set_back_makes_no_age_negative() -> None:
    """A first append in the future counts as one of now."""
    log = CleanerLog("a", max_compaction_lag_ms=HOUR_MS)
    log.now_ms -= DAY_MS
    assert roll_due_ms(log.log, log.now_ms) == log.now_ms + HOUR_MS + 1


def test_a_log_cut_to_nothing_has_no_age() -> None:
    """The next append to a log cut to nothing is its first."""
    log = CleanerLog("a", max_compaction_lag_ms=HOUR_MS)
    log.log.active.truncate_bytes(0)
    assert roll_due_ms(log.log, log.now_ms) is None
    assert log.log.active.first_append_ms is None


# -- the lag of closed segments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp", [0, -1, START_MS + 400 * DAY_MS])
def test_closed_segments_are_overdue_by_the_wall_clock(timestamp: int) -> None:
    """Whatever their timestamps are; Kafka waits for those."""
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0)
    log.data("a=x", timestamp=timestamp)
    log.roll()
    for age_ms, delay_ms in ((HOUR_MS, 0), (HOUR_MS + 1, 1), (2 * HOUR_MS, HOUR_MS)):
        now_ms = START_MS + age_ms
        assert not cleanable_range(log.log, 0, now_ms).is_overdue
        found = cleanable_range(log.log, 0, now_ms, ages=BY_APPEND)
        assert found.delay_ms == delay_ms
        assert found.is_eligible == (delay_ms > 0)


def test_prompt_is_never_later_than_kafka() -> None:
    """Records with old timestamps are overdue as soon as their segment is closed, as in Kafka."""
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS)
    log.data("a", timestamp=START_MS - DAY_MS)
    log.roll()
    found = cleanable_range(log.log, 0, log.now_ms)
    assert found.delay_ms == DAY_MS - HOUR_MS
    assert cleanable_range(log.log, 0, log.now_ms, ages=BY_APPEND) == found


def test_clean_segments_are_never_overdue() -> None:
    """Only what lies above the checkpoint has a lag."""
    log = CleanerLog("a | roll", max_compaction_lag_ms=HOUR_MS)
    log.now_ms += DAY_MS
    assert BY_APPEND.overdue_ms(log.log, 0, log.now_ms) == DAY_MS - HOUR_MS
    assert BY_APPEND.overdue_ms(log.log, 1, log.now_ms) == 0
    assert due_ms(log.log, 1, log.now_ms) is None


def test_the_active_segment_counts_for_the_metrics() -> None:
    """Records of the active segment have the same age, cleanable or not; Kafka's gauge ignores it."""
    log = CleanerLog(max_compaction_lag_ms=HOUR_MS)
    log.data("a", timestamp=5)
    now_ms = START_MS + 2 * HOUR_MS
    assert oldest_append_ms(log.log, 0, now_ms, with_active=True) == START_MS
    assert BY_APPEND.overdue_ms(log.log, 0, now_ms) == 0


def test_the_next_deadline_is_known() -> None:
    """The next deadline is the roll of the active segment, or a closed segment's lag; nothing without limits."""
    log = CleanerLog("a | roll", max_compaction_lag_ms=HOUR_MS, segment_ms=DAY_MS)
    log.now_ms += 10
    log.data("b")
    assert due_ms(log.log, 0, log.now_ms) == START_MS + HOUR_MS + 1
    assert due_ms(log.log, 1, log.now_ms) == START_MS + 10 + HOUR_MS + 1
    assert due_ms(CleanerLog().log, 0, START_MS) is None


# -- the shortest lag ------------------------------------------------------------------------------------------------


def young_until_ms(log: CleanerLog) -> int:
    """Return the time from which the first closed segment is old enough for a round."""
    return old_enough_ms(log.log.segments[0], log.log.config, BY_APPEND)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("timestamp", "counts_from_ms"),
    [
        (START_MS + 30 * DAY_MS, START_MS + HOUR_MS),
        (START_MS + HOUR_MS + 1, START_MS + HOUR_MS),
        (START_MS + HOUR_MS - 1, START_MS + HOUR_MS - 1),
        (START_MS - DAY_MS, START_MS - DAY_MS),
        (-1, START_MS + HOUR_MS),
    ],
)
def test_the_shortest_lag_counts_from_the_append_at_the_latest(
    timestamp: int, counts_from_ms: int, is_restarted: bool
) -> None:
    """A timestamp after the append is not waited for, an earlier one counts as in Kafka; a restart changes nothing."""
    log = CleanerLog(min_compaction_lag_ms=2 * HOUR_MS, min_cleanable_dirty_ratio=0.0)
    log.data("a", timestamp=timestamp)
    log.now_ms += HOUR_MS
    log.data("a", timestamp=timestamp)
    log.now_ms += 7
    log.roll()
    if is_restarted:
        log.reload()
    assert young_until_ms(log) == counts_from_ms + 2 * HOUR_MS
    for now_ms, end in ((counts_from_ms + 2 * HOUR_MS - 1, 0), (counts_from_ms + 2 * HOUR_MS, 2)):
        assert cleanable_range(log.log, 0, now_ms, ages=BY_APPEND).first_uncleanable_offset == end
    kafka = cleanable_range(log.log, 0, counts_from_ms + 2 * HOUR_MS)
    assert kafka.first_uncleanable_offset == (0 if timestamp > counts_from_ms else 2)


def test_an_append_after_a_restart_counts() -> None:
    """The last append is known to the process that did it, whatever time the file has."""
    log = CleanerLog("a", min_compaction_lag_ms=HOUR_MS)
    log.reload()
    log.now_ms += DAY_MS
    log.data("b", timestamp=log.now_ms + 2 * DAY_MS)
    log.env.set_mtime_ms(log.log.active.path, 1000)
    log.roll()
    assert young_until_ms(log) == START_MS + DAY_MS + HOUR_MS


def test_a_copy_with_new_file_times_is_cleaned_no_sooner() -> None:
    """The modification time of a copied file is later than the append: the shortest lag is kept, and never the timestamp's."""
    log = CleanerLog(min_compaction_lag_ms=HOUR_MS)
    log.data("a", timestamp=START_MS + 30 * DAY_MS)
    log.roll()
    log.reload()
    log.env.set_mtime_ms(log.log.segments[0].path, START_MS + DAY_MS)
    assert young_until_ms(log) == START_MS + DAY_MS + HOUR_MS


def test_file_times_do_not_count_beside_a_manual_clock() -> None:
    """After a restart, a segment of a broker whose clock was moved ahead is as young as its timestamps, up to now."""
    log = CleanerLog(min_compaction_lag_ms=HOUR_MS)
    log.data("a")
    log.roll()
    log.data("b", timestamp=START_MS + 30 * DAY_MS)
    log.reload()
    log.env.set_mtime_ms(log.log.segments[0].path, 1000)
    log.env.clock = ManualClock(START_MS + DAY_MS, is_frozen=True)
    assert young_until_ms(log) == START_MS + HOUR_MS
    assert log.log.active.last_append_ms == START_MS + DAY_MS


def test_a_round_keeps_the_time_of_the_last_append() -> None:
    """A segment rewritten before its lag is over, as an erasure does, is not young again."""
    log = CleanerLog(min_compaction_lag_ms=HOUR_MS)
    log.data("a=1", "a=2", timestamp=START_MS + 30 * DAY_MS)
    log.roll()
    log.now_ms += HOUR_MS // 2
    log.clean(mode=PROMPT)
    assert log.keys() == ["a"]
    assert young_until_ms(log) == START_MS + HOUR_MS


def test_a_log_cut_to_nothing_has_no_last_append() -> None:
    """Its segment is as young as its file."""
    log = CleanerLog("a")
    log.now_ms += HOUR_MS
    log.log.active.truncate_bytes(0)
    assert log.log.active.last_append_ms == log.env.mtime_ms(log.log.active.path)


# -- the promise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart_every", [0, 1, 3])
@pytest.mark.parametrize("timestamp", [None, START_MS + 100 * DAY_MS, START_MS - 100 * DAY_MS])
@pytest.mark.parametrize("min_lag_ms", [0, 1, 10 * HOUR_MS])
def test_a_superseded_value_leaves_the_disk_within_the_lag_and_one_loop(
    restart_every: int, timestamp: int | None, min_lag_ms: int
) -> None:
    """The promise of KIP-354 holds without traffic after the deletion, with and without restarts, for any timestamps and
    shortest lag.
    """
    lag_ms, loop_ms = 10 * HOUR_MS, HOUR_MS
    log = CleanerLog(min_compaction_lag_ms=min_lag_ms, max_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=1.0)
    log.data("user=phone 5555555", "other", timestamp=timestamp)
    log.data("user=", timestamp=timestamp)
    assert is_on_disk(log, b"5555555")
    loops = 0
    while log.now_ms <= START_MS + lag_ms:
        loop(log)
        loops += 1
        if restart_every and loops % restart_every == 0:
            log.reload()
        log.now_ms += loop_ms
    loop(log)
    assert log.now_ms <= START_MS + lag_ms + loop_ms
    assert not is_on_disk(log, b"5555555")
    assert log.keys() == ["other", "user"]
