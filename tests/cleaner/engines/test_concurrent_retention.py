"""Retention during a round: deleted segments do not come back, and the round ends in an orderly way."""

from __future__ import annotations

import pytest

from diamant.cleaner.rules.modes import MODES
from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.rules.retention import deletable_segments
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.engines.engines import Engine


def make_log(engine: Engine) -> CleanerLog:
    """Four segments of one batch, two to a group, and the active one."""
    log = CleanerLog(engine=engine, cleanup_policy=frozenset({"compact", "delete"}), segment_bytes=180, retention_ms=-1)
    for number in range(4):
        log.data(f"k{number % 3}", f"only-{number}")
        log.roll()
    log.data("last")
    return log


def delete_below(log: CleanerLog, offset: int) -> None:
    """DeleteRecords, and the retention that follows it."""
    log.log.delete_records(offset)
    delete_oldest(log.log, deletable_segments(log.log, log.now_ms))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("offset", "bases", "keys"),
    [
        (8, [8], ["last"]),
        (4, [4, 8], ["k2", "only-2", "k0", "only-3", "last"]),
        (2, [0, 4, 8], ["k1", "only-1", "k2", "only-2", "k0", "only-3", "last"]),
    ],
)
def test_segments_are_deleted_right_before_the_swap(
    engine: Engine, mode: str, offset: int, bases: list[int], keys: list[str]
) -> None:
    """All sources of both groups, of the first one, or a part of it: only the remaining ones are replaced."""
    log = make_log(engine)
    outputs: list[OutputSegment] = []

    def swap(output: OutputSegment) -> None:
        if not outputs:
            delete_below(log, offset)
        outputs.append(output)
        log.swap(output)

    try:
        result = engine(log.env, log.plan(mode=mode), swap)
    except FileNotFoundError:
        # The engine was about to open a segment that is gone.
        assert offset == 8
    else:
        assert result.end_offset == 8
        assert [output.source_base_offsets for output in outputs] == [(0, 2), (4, 6)]
    assert [segment.base_offset for segment in log.log.segments] == bases
    found = log.keys()
    assert [key for key in found if key in keys] == keys
    assert (log.log.log_start_offset, log.log.log_end_offset) == (offset, 9)
    assert [name for name in log.files() if name.endswith((".cleaned", ".swap"))] == []
    log.reload()
    assert [segment.base_offset for segment in log.log.segments] == bases
