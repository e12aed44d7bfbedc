"""The check for superseded records reads the dirty part, and clean segments that may hold its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.facts.facts_file import file_facts
from diamant.cleaner.facts.segment_keys import read_key_facts
from diamant.cleaner.facts.superseded_check import BoundExceeded, LookedAtSegment, LookPlan, look
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from tests.builder import TIMESTAMP, make_log

HASH_KEY = bytes(range(16))
AHEAD_MS = 100


def plan_of(
    directory: Path,
    clean: bytearray,
    dirty: bytearray,
    first_dirty: int,
    *,
    last_append_ms: int = TIMESTAMP + 1000,
    **fields: Any,
) -> LookPlan:
    """Two segments on the disk, the second one dirty."""
    segments = []
    for base_offset, data in ((0, clean), (first_dirty, dirty)):
        path = directory / f"{base_offset:020d}.log"
        path.write_bytes(data)
        segments.append(LookedAtSegment(base_offset, str(path), len(data), 0, last_append_ms))
    given: dict[str, Any] = {"max_bytes": 1 << 20, "max_keys": 1000, **fields}
    return LookPlan(str(directory), segments, first_dirty, 0, AHEAD_MS, HASH_KEY, **given)


def test_the_filter_of_a_clean_segment_spares_reading_it(tmp_path: Path) -> None:
    """A clean segment is skipped if its filter is up to date and excludes the dirty keys; otherwise it is read."""
    env = RealEnv()
    clean, dirty = make_log([f"{key}={'x' * 11_000}" for key in "ab"] * 50), make_log(["c=1", "d=1"], base_offset=100)
    plan = plan_of(tmp_path, clean, dirty, 100, max_bytes=len(dirty))
    with pytest.raises(BoundExceeded):
        look(env, plan)
    facts, keys = read_key_facts(env, plan.segments[0].path, 0, len(clean), HASH_KEY)
    assert keys is not None
    file_facts(env, str(tmp_path), facts, keys.data)
    found = look(env, plan)
    assert (found.oldest_ms, found.bytes_read) == (None, len(dirty))
    other = make_log(["c=1", "a=2"], base_offset=100)
    plan = plan_of(tmp_path, clean, other, 100, max_bytes=1 << 21)
    assert look(env, plan).oldest_ms == TIMESTAMP + 1 - AHEAD_MS


def test_a_reported_time_is_early_enough(tmp_path: Path) -> None:
    """The reported time is early enough: timestamps may be ahead of appends, except those set by the broker."""
    clean = make_log(["a=1"])
    dirty = make_log(["a=2"], base_offset=1, timestamp=TIMESTAMP)
    assert look(RealEnv(), plan_of(tmp_path, clean, dirty, 1)).oldest_ms == TIMESTAMP - AHEAD_MS
    dirty = make_log(["a=2"], base_offset=1, timestamp=TIMESTAMP, log_append_time_ms=TIMESTAMP)
    assert look(RealEnv(), plan_of(tmp_path, clean, dirty, 1)).oldest_ms == TIMESTAMP


def test_a_timestamp_in_the_future_makes_no_record_younger(tmp_path: Path) -> None:
    """However far the timestamp is ahead, the record is as old as the segment's last append."""
    clean = make_log(["a=1"])
    dirty = make_log(["a=2"], base_offset=1, timestamp=TIMESTAMP + 30 * 86_400_000)
    assert look(RealEnv(), plan_of(tmp_path, clean, dirty, 1)).oldest_ms == TIMESTAMP + 1000
    dirty = make_log(["a=2"], base_offset=1, log_append_time_ms=TIMESTAMP + 30 * 86_400_000)
    assert look(RealEnv(), plan_of(tmp_path, clean, dirty, 1)).oldest_ms == TIMESTAMP + 1000


def test_a_damaged_segment_is_reported(tmp_path: Path) -> None:
    """The contents of a damaged segment are unknown, so the check fails."""
    dirty = make_log(["a=2"], base_offset=1)
    dirty[-1] ^= 1
    with pytest.raises(CorruptLog):
        look(RealEnv(), plan_of(tmp_path, make_log(["a=1"]), dirty, 1))
