"""Retention during a round: deleted segments do not come back, and the round ends in an orderly way."""

from __future__ import annotations

import pytest

from diamant.cleaner.rules.modes import MODES
from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.rules.retention import deletable_segments
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.engines.engines import Engine


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("start", "bases"), [(8, [8]), (4, [4, 8]), (2, [0, 4, 8])], ids=["all", "group", "part"])
def test_segments_are_deleted_right_before_the_swap(engine: Engine, mode: str, start: int, bases: list[int]) -> None:
    """All sources of both groups, of the first one, or a part of it: only the remaining ones are replaced."""
    log = CleanerLog(engine=engine, cleanup_policy=frozenset({"compact", "delete"}), segment_bytes=180, retention_ms=-1)
    log.write("k0 only-0 | roll | k1 only-1 | roll | k2 only-2 | roll | k0 only-3 | roll | last")
    outputs: list[OutputSegment] = []

    def swap(output: OutputSegment) -> None:
        if not outputs:
            log.log.delete_records(start)
            delete_oldest(log.log, deletable_segments(log.log, log.now_ms))
        outputs.append(output)
        log.swap(output)

    try:
        engine(log.env, log.plan(mode=mode), swap)
    except FileNotFoundError:
        assert start == 8, "the engine was about to open a segment that is gone"
    else:
        assert [output.source_base_offsets for output in outputs] == [(0, 2), (4, 6)]
    for _ in range(2):
        assert [segment.base_offset for segment in log.log.segments] == bases
        assert (log.log.log_start_offset, log.log.log_end_offset) == (start, 9)
        kept = [offset for offset in log.offsets() if offset >= start]
        assert kept == [offset for offset in (2, 3, 4, 5, 6, 7, 8) if offset >= start]
        assert [name for name in log.files() if name.endswith((".cleaned", ".swap"))] == []
        log.reload()
