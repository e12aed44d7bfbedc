"""Cleanings of a partition directory without a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.cleaner.offline.offline_clean import (
    Engine,
    OfflineReport,
    PartitionSettings,
    clean_partition,
    inline_engine,
)
from diamant.cleaner.rules.modes import KAFKA, MODES
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.rules.result import OutputOverflow
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from diamant.storage.errors import StorageError
from tests.cleaner.cleaner_log import DAY_MS, DIRECTORY, START_MS, CleanerLog

CLEANER, LOG_START = "/data/cleaner-offset-checkpoint", "/data/log-start-offset-checkpoint"
KEY = ("topic", 0)


def closed_log(*batches: str, **config: Any) -> CleanerLog:
    """Return a log of one segment per batch of one-letter keys, and an empty active one, closed."""
    log = CleanerLog(**config)
    for batch in batches:
        log.data(*batch)
        log.roll()
    log.log.close()
    return log


def clean(log: CleanerLog, *, mode: str = KAFKA, max_keys: int = 1000, **fields: Any) -> OfflineReport:
    """Clean the log's directory, and reopen it for inspection."""
    report = clean_partition(
        log.env,
        DIRECTORY,
        PartitionSettings(log.config, CleanerSettings(mode=mode, map_max_entries=max_keys), DAY_MS),
        **fields,
    )
    log.log.log_start_offset = read_offset_checkpoint(log.env, LOG_START).get(KEY, 0)
    log.reload()
    return report


def test_a_dirty_log_is_cleaned_and_closed() -> None:
    """The log's checkpoint is updated beside those of others, old files are removed at once, and a start needs no recovery."""
    log = closed_log("ab", "ac")
    write_offset_checkpoint(log.env, CLEANER, {("other", 3): 9})
    report = clean(log)
    assert report.is_cleaned
    assert report.result is not None
    assert (report.range.first_dirty_offset, report.result.end_offset) == (0, 4)
    assert report.bytes_after < report.bytes_before
    assert read_offset_checkpoint(log.env, CLEANER) == {("other", 3): 9, KEY: 4}
    assert log.keys() == ["b", "a", "c"]
    assert [name for name in log.files() if name.endswith((".deleted", ".cleaned", ".swap"))] == []


def test_a_log_that_is_not_due_is_left_alone() -> None:
    """Such a log is cleaned only if forced, and if anything is cleanable."""
    log = closed_log("ab", "ac", min_cleanable_dirty_ratio=1.0)
    before = log.segment_files()
    assert not clean(log).is_cleaned
    assert (log.segment_files(), log.env.exists(CLEANER)) == (before, False)
    assert clean(log, force=True).is_cleaned
    assert not clean(log, force=True).is_cleaned


@pytest.mark.parametrize("mode", MODES)
def test_timestamps_in_the_future_hold_back_only_kafka(mode: str) -> None:
    """Mode prompt counts both lags from the append, as a broker does; mode kafka from the timestamps."""
    log = CleanerLog(min_compaction_lag_ms=DAY_MS - 1, max_compaction_lag_ms=DAY_MS - 1, min_cleanable_dirty_ratio=1.0)
    log.data("a", "a", timestamp=START_MS + 30 * DAY_MS)
    log.roll()
    log.log.close()
    log.now_ms += DAY_MS
    report = clean(log, mode=mode)
    why = "the whole log waits for the segment at offset 0, which is younger than min.compaction.lag.ms"
    assert (report.is_cleaned, report.why_nothing) == ((False, why) if mode == KAFKA else (True, None))


def test_a_topic_that_is_not_compacted_is_not_due() -> None:
    """A topic without compaction is not due at any dirty ratio."""
    assert not clean(closed_log("ab", "ac", cleanup_policy=frozenset({"delete"}))).is_cleaned


def test_a_forgotten_producer_protects_nothing() -> None:
    """The clock decides which producers of the snapshot have expired."""
    kept = {}
    for age_ms in (0, DAY_MS):
        log = CleanerLog("p1: a | a | roll")
        log.log.close()
        log.now_ms += age_ms
        clean(log)
        kept[age_ms] = log.lasts()
    assert kept == {0: [0, 1], DAY_MS: [1]}


def test_retention_comes_afterwards() -> None:
    """Retention runs after the round, as in the cleaner: segments below the log start, or by the policy, are removed."""
    log = closed_log(
        "ab", "cd", "ef", cleanup_policy=frozenset({"compact", "delete"}), segment_bytes=100, retention_ms=50
    )
    log.now_ms += 52
    report = clean(log, with_retention=True)
    assert report.is_cleaned
    assert report.deleted_segments == 3
    assert (report.log_start_offset, report.log_start_offset_after) == (0, 6)
    assert log.log.segments[0].base_offset == 6


def test_the_log_start_is_kept_in_its_checkpoint() -> None:
    """A log start within a segment is kept."""
    log = closed_log("abc", "a")
    write_offset_checkpoint(log.env, LOG_START, {KEY: 2})
    assert clean(log).log_start_offset == 2
    assert read_offset_checkpoint(log.env, LOG_START) == {KEY: 2}


def test_a_failed_round_leaves_the_checkpoint() -> None:
    """Finished groups stay in place, and the next round starts again at the old checkpoint."""
    log = closed_log("ab", "ab", "ab", segment_bytes=100)

    def failing(env: Any, plan: Any, on_output: Any) -> Any:
        taken = []

        def take(output: Any) -> None:
            if taken:
                raise OutputOverflow("somewhere", "no room")
            taken.append(output)
            on_output(output)

        return inline_engine(env, plan, take)

    engine: Engine = failing
    with pytest.raises(OutputOverflow):
        clean(log, engine=engine)
    log.reload()
    assert not log.env.exists(CLEANER)
    assert log.log.segments[0].size == 0
    log.log.close()
    clean(log)
    assert log.keys() == ["a", "b"]


def test_a_directory_without_a_log_is_refused() -> None:
    """An empty directory is refused, and nothing is created in it."""
    log = CleanerLog()
    log.env.make_dirs("/data/other-0")
    with pytest.raises(StorageError, match=r"no \.log file"):
        clean_partition(log.env, "/data/other-0", PartitionSettings(log.config, CleanerSettings(), DAY_MS))
    assert log.env.list_dir("/data/other-0") == []


def test_a_report_can_be_written_as_json() -> None:
    """The fields include the derived ones of the range."""
    fields = json.loads(json.dumps(clean(closed_log("ab", "ac")).to_fields()))
    assert fields["range"]["dirty_ratio"] == 1.0
    assert fields["result"]["stats"]["removed"] == {"superseded": 1}
