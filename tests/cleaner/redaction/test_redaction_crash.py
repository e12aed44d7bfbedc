"""A redaction of several segments, stopped at any of its file operations.

Strategy: as `test_round_crash`. A log with transactions and producers is redacted on `MemoryEnv`; each run stops at another
change or sync, with nothing, everything or a random part of the unsynced data lost. Then the directory is opened and the
redaction repeated.

Invariants: each segment is old or new; segments become new in order, so an older value never outlives the record that supersedes
it; nothing else in any segment changes; after the repetition the result is that of an uninterrupted run.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

from tests.cleaner.cleaner_log import DIRECTORY, CleanerLog
from tests.cleaner.redaction.redacted_log import redact
from tests.effort import some
from tests.memory_env import PowerOff
from tests.storage.log.test_replace_crash import MODES

WHERE = 'key == "b" or value == "me"'
"""On a compacted topic, the last `a` removes all older ones with it."""


@cache
def filled() -> CleanerLog:
    """Five segments and an active one, all on disk. The third has nothing to remove."""
    log = CleanerLog(index_interval_bytes=100)
    log.env.sync_dir("/")
    log.env.sync_dir("/data")
    for number in range(5):
        if number == 2:
            log.data("c", "d")
        else:
            log.data("a", "b", f"only-{number}", producer=7)
            log.data("b", producer=5, txn=True)
            log.marker(5, "abort" if number % 2 else "commit")
        log.roll()
    log.data("c", "a=me", "b")
    log.log.flush()
    return log


def segments(log: CleanerLog) -> list[tuple[int, bytes, tuple[object, ...]]]:
    """Base offset, bytes and aborted transactions of each segment that holds batches."""
    return [
        (one.base_offset, log.env.read_bytes(one.path)[: one.size], tuple(one.txn_index.all()))
        for one in log.log.segments
        if one.size
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_redaction_stopped_at_any_point(mode: str) -> None:
    """Every segment is old or new, in order; after a repetition all are new."""
    log = filled().in_another_machine()
    old = segments(log)
    changes, syncs = log.env.change_count, log.env.sync_count
    redact(log.log, WHERE)
    new = segments(log)
    changes, syncs = log.env.change_count - changes, log.env.sync_count - syncs
    assert [one[0] for one in new] == [one[0] for one in old]
    is_rewritten = [before != after for before, after in zip(old, new, strict=True)]
    assert is_rewritten == [True, True, False, True, True, True]
    recovery_point = filled().log.recovery_point
    seen = set()
    for kind, total in (("changes", changes), ("syncs", syncs)):
        for number in some(range(total + 1), every=3, seed=list(MODES).index(mode)):
            log = filled().in_another_machine()
            log.env.power_off_after(**{kind: number})
            with suppress(PowerOff):
                redact(log.log, WHERE)
            log.env.crash(MODES[mode])
            log.recover(recovery_point)
            found = segments(log)
            assert [one[0] for one in found] == [one[0] for one in old]
            is_new = []
            for one, before, after in zip(found, old, new, strict=True):
                assert one in (before, after)
                if before != after:
                    is_new.append(one == after)
            assert is_new == sorted(is_new, reverse=True), "a segment was replaced before an older one"
            assert not [name for name in log.env.list_dir(DIRECTORY) if name.endswith((".cleaned", ".swap"))]
            seen.add(sum(is_new))
            redact(log.log, WHERE)
            assert segments(log) == new
    assert seen == set(range(sum(is_rewritten) + 1))
