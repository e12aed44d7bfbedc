"""The differences of the two modes: each one in docs/explanation/cleaner-modes.md, tested in both.

Differences of the service's loop are in test_service.py and test_service_due.py, those of every engine in test_rounds.py, those
of corrupt and of untouched segments in tests/cleaner/prompt.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diamant.cleaner.rules.eligibility import CleanableRange, by_urgency, cleanable_range
from diamant.cleaner.rules.grouping import expiry_slice_ms
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.rules.time_based_roll import ages_in, should_roll
from diamant.cleaner.service.partition_states import PartitionStates
from tests.cleaner.cleaner_log import DAY_MS, START_MS, CleanerLog

HOUR_MS = 3_600_000

in_both_modes = pytest.mark.parametrize("mode", MODES)


def found_in(log: CleanerLog, mode: str) -> CleanableRange:
    """Return the result of a scan."""
    return cleanable_range(log.log, log.first_dirty, log.now_ms, ages=ages_in(mode))


def loop(log: CleanerLog, mode: str) -> None:
    """One cycle of the cleaner for one log."""
    if mode == PROMPT and should_roll(log.log, log.now_ms):
        log.log.roll()
    found = found_in(log, mode)
    if found.is_eligible:
        log.clean(end=found.first_uncleanable_offset, mode=mode)


def is_on_disk(log: CleanerLog, value: bytes) -> bool:
    """Whether any file has these bytes."""
    return any(value in content for content in log.files().values())


# -- when ------------------------------------------------------------------------------------------------------------


@in_both_modes
def test_a_deleted_value_leaves_a_quiet_log(mode: str) -> None:
    """Three records, then no traffic: kafka keeps all three forever, prompt for max.compaction.lag.ms and one cycle."""
    log = CleanerLog("k=secret-1 | k=secret-2 | k=", max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    for _ in range(12):
        log.now_ms += 500
        loop(log, mode)
    assert is_on_disk(log, b"secret") == (mode == KAFKA)
    assert len(log.log.segments) == (1 if mode == KAFKA else 2)
    assert log.bases() == ([0, 1, 2] if mode == KAFKA else [2])


@in_both_modes
def test_an_overdue_log_comes_first(mode: str) -> None:
    """D (ratio 0.45) is longest overdue, then B (0.23); A (0.9) and C (0.6) are not. Kafka goes by the ratio alone."""

    def log(dirty: int, delay_ms: int = 0) -> CleanableRange:
        return CleanableRange(0, False, 10, 1000 - dirty, dirty, delay_ms, 0.3)

    found = [("A", log(900)), ("B", log(231, 5)), ("C", log(600)), ("D", log(450, 9)), ("E", log(200))]
    order = [name for name, _ in by_urgency(found, mode)]
    assert order == (["A", "C", "D", "B"] if mode == KAFKA else ["D", "B", "A", "C"])


@in_both_modes
def test_a_failed_log_is_tried_again(mode: str) -> None:
    """Kafka waits for a restart. Prompt retries after a minute, doubling each time, or after a change of configuration."""
    states = PartitionStates()
    partition = ("topic", 0)
    states.mark_uncleanable(partition, "broken", START_MS, is_retried=mode == PROMPT)
    assert states.is_uncleanable(partition, START_MS + 59_999)
    assert states.is_uncleanable(partition, START_MS + 60_000) == (mode == KAFKA)
    states.mark_uncleanable(partition, "broken", START_MS + 60_000, is_retried=mode == PROMPT)
    assert states.is_uncleanable(partition, START_MS + 179_999)
    assert states.is_uncleanable(partition, START_MS + 180_000) == (mode == KAFKA)
    assert states.is_uncleanable(partition, START_MS + 1000 * DAY_MS) == (mode == KAFKA)


# -- what ------------------------------------------------------------------------------------------------------------


@in_both_modes
def test_one_round_cleans_the_whole_dirty_range(mode: str) -> None:
    """Twelve keys with a map for nine: kafka cleans up to offset 9 and needs another round."""
    log = CleanerLog()
    for start in (0, 6):
        log.data(*[f"k{number}" for number in range(start, start + 6)])
        log.roll()
    result = log.clean(mode=mode, max_keys=9)
    assert result.end_offset == (9 if mode == KAFKA else 12)
    assert len(log.keys()) == 12


@in_both_modes
def test_merging_does_not_postpone_the_expiry(mode: str) -> None:
    """Policy compact,delete, a record that is due after 24 hours: kafka keeps it for 20 hours more."""
    log = CleanerLog(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=24 * HOUR_MS)
    for key, hours in (("old", 0), ("mid", 20), ("new", 21)):
        log.data(key, timestamp=START_MS + hours * HOUR_MS)
        if key != "new":
            log.roll()
    log.now_ms = START_MS + 22 * HOUR_MS
    log.clean(mode=mode)
    assert len(log.log.segments) == (2 if mode == KAFKA else 3)
    at_25 = START_MS + 25 * HOUR_MS
    assert deletable_segments(log.log, at_25) == (0 if mode == KAFKA else 1)
    assert deletable_segments(log.log, START_MS + 44 * HOUR_MS) == (0 if mode == KAFKA else 1)
    assert deletable_segments(log.log, START_MS + 44 * HOUR_MS + 1) == (1 if mode == KAFKA else 2)


@in_both_modes
def test_segments_of_about_an_age_are_still_merged(mode: str) -> None:
    """Segments within a twentieth of retention.ms are merged; without policy delete, or without a limit, segments of any age."""
    log = CleanerLog(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=20 * HOUR_MS)
    for minutes in (0, 60, 61, 90):
        log.data(f"k{minutes}", timestamp=START_MS + minutes * 60_000)
        log.roll()
    log.clean(mode=mode)
    bases = [segment.base_offset for segment in log.log.segments]
    assert bases == ([0, 4] if mode == KAFKA else [0, 2, 4])
    assert expiry_slice_ms(log.config, mode) == (None if mode == KAFKA else HOUR_MS)
    assert expiry_slice_ms(replace(log.config, retention_ms=-1), mode) is None
    assert expiry_slice_ms(replace(log.config, cleanup_policy=frozenset({"compact"})), mode) is None
