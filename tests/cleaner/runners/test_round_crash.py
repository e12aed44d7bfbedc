"""A whole round, stopped at any of its file operations: map, rewrite, swap, group after group.

Strategy: a log with superseded records, tombstones and transactions is cleaned on `MemoryEnv` in groups of several sources, some
of them emptied at the end. Each run stops at a different change or sync, and loses nothing, everything or a random part of the
unsynced data. Then the directory is opened and the round repeated.

Invariants: each group is old or new; groups become new in order; keys always have their newest values, even after the repeated
round (which may change more than the first one: markers without remaining transactions get their horizon).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import NamedTuple

import pytest

from tests.cleaner.cleaner_log import DIRECTORY, CleanerLog
from tests.effort import some
from tests.memory_env import MemoryEnv, PowerOff
from tests.storage.log.test_replace_crash import MODES

SEGMENT_BYTES = 700


@cache
def filled() -> CleanerLog:
    """Eight segments and an active one; everything is on disk."""
    log = CleanerLog(index_interval_bytes=100)
    log.env.sync_dir("/")
    log.env.sync_dir("/data")
    for number in range(8):
        if number in (1, 5):
            # Nothing of this segment stays.
            log.write("a b c | a b=")
        else:
            log.data("a", "b", f"only-{number}")
            log.data("c", "a=" if number == 4 else "a", producer=5, txn=True)
            log.marker(5, "abort" if number % 3 == 0 else "commit")
        log.data("b", "c", producer=6 if number == 7 else -1)
        log.roll()
    log.data("a", "b", "c")
    log.log.flush()
    return log


def clean(log: CleanerLog) -> None:
    log.first_dirty = 0
    log.clean(segment_bytes=SEGMENT_BYTES)


def content(log: CleanerLog, start: int, end: int) -> tuple[tuple[int, ...], bytes, tuple[object, ...]]:
    segments = [segment for segment in log.log.segments if start <= segment.base_offset < end]
    return (
        tuple(segment.base_offset for segment in segments),
        b"".join(log.env.read_bytes(segment.path) for segment in segments),
        tuple(aborted for segment in segments for aborted in segment.txn_index.all()),
    )


def newest(log: CleanerLog) -> dict[bytes | None, bytes | None]:
    """Return the newest committed value of each key, as a consumer sees it."""
    aborted = log.aborted()
    found = {}
    for batch in log.stored():
        header = batch.header
        if header.is_control or any(
            producer == header.producer_id and first <= header.base_offset <= last for producer, first, last in aborted
        ):
            continue
        found.update({record.key: record.value for record in batch.records})
    return found


class Undisturbed(NamedTuple):
    """The groups of a round that nothing stopped: ranges of offsets with the old and the new content."""

    groups: list[tuple[int, int, object, object]]
    newest: dict[bytes | None, bytes | None]
    recovery_point: int
    changes: int
    syncs: int


def undisturbed() -> Undisturbed:
    log = filled().in_another_machine()
    before = newest(log)
    changes, syncs = log.env.change_count, log.env.sync_count
    old = filled().in_another_machine()
    clean(log)
    bases = [segment.base_offset for segment in log.log.segments]
    groups = [
        (first, end, content(old, first, end), content(log, first, end))
        for first, end in zip(bases, [*bases[1:], 1 << 62], strict=True)
    ]
    assert newest(log) == before
    return Undisturbed(
        groups, before, log.log.recovery_point, log.env.change_count - changes, log.env.sync_count - syncs
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_round_stopped_at_any_point(mode: str) -> None:
    """Every group is old or new, no guaranteed record is lost, and the round can be repeated."""
    expected = undisturbed()
    assert len(expected.groups) >= 4
    seen = set()
    for kind, total in (("changes", expected.changes), ("syncs", expected.syncs)):
        for number in some(range(total + 1), every=3, seed=list(MODES).index(mode)):
            log = filled().in_another_machine()
            log.env.power_off_after(**{kind: number})
            with suppress(PowerOff):
                clean(log)
            log.env.crash(MODES[mode])
            log.recover(expected.recovery_point)
            is_new = check(log, expected)
            seen.add(sum(is_new))
            if number % 5 == 0:
                clean(log)
                assert newest(log) == expected.newest
                assert not [name for name in log.env.list_dir(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
    print(mode, f"{expected.changes} changes, {expected.syncs} syncs, {len(expected.groups)} groups")
    changed = sum(old != new for _, _, old, new in expected.groups)
    assert seen == set(range(changed + 1))


def check(log: CleanerLog, expected: Undisturbed) -> list[bool]:
    """For each group that changes: whether it is new."""
    assert isinstance(log.env, MemoryEnv)
    is_new = []
    for first, end, old, new in expected.groups:
        found = content(log, first, end)
        assert found in (old, new), f"offsets {first} to {end}"
        if old != new:
            is_new.append(found == new)
    assert is_new == sorted(is_new, reverse=True)
    assert newest(log) == expected.newest
    assert not [name for name in log.env.list_dir(DIRECTORY) if name.endswith((".cleaned", ".swap", ".deleted"))]
    return is_new
