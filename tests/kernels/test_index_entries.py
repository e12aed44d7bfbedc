"""Index entries made by the kernel equal the plain writer's."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.rules.result import OutputOverflow
from diamant.cleaner.segments.compiled_segment_writer import CompiledWriter
from diamant.cleaner.segments.segment_writer import SegmentWriter
from diamant.storage.env.clocks import SettableClock
from tests.effort import examples
from tests.memory_env import MemoryEnv


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(61, 300), st.integers(1, 9), st.integers(-1, 50)), min_size=1, max_size=40),
    st.sampled_from([0, 100, 10_000]),
    st.sampled_from([8, 30, 1 << 20]),
    st.integers(1, 7),
)
def test_index_entries_are_those_of_the_plain_writer(
    batches: list[tuple[int, int, int]], interval: int, index_bytes: int, at_once: int
) -> None:
    """Entries are equal for any sizes, offsets, timestamps and run lengths; entries without room are omitted."""
    offset = 10
    columns = []
    for size, step, timestamp in batches:
        offset += step
        columns.append((size, offset, timestamp))
    contents = []
    for writer_type in (SegmentWriter, CompiledWriter):
        env = MemoryEnv(SettableClock(5))
        env.make_dirs("/log")
        writer = writer_type(env, "/log", 10, index_interval_bytes=interval, segment_index_bytes=index_bytes)
        for start in range(0, len(columns), at_once):
            run = columns[start : start + at_once]
            data = bytes(sum(size for size, _, _ in run))
            if isinstance(writer, CompiledWriter):
                writer.append_columns(data, np.array(run, np.int64).T.copy(), len(run))
            else:
                for size, last_offset, timestamp in run:
                    writer.append(bytes(size), last_offset, timestamp)
        writer.finish(7, (10,))
        contents.append({name: env.read_bytes(f"/log/{name}") for name in env.list_dir("/log")})
    assert contents[0] == contents[1]


@pytest.mark.parametrize("base", [0, 10, 2**63 - 5, 2**63 - 1])
@pytest.mark.parametrize("offset", [-(2**63), -1, 9, 10, 2**31 + 10, 2**63 - 5, 2**63 - 1])
def test_an_offset_out_of_the_segments_range_is_refused_like_by_the_plain_writer(base: int, offset: int) -> None:
    """The distance from the base is not taken modulo 2**64, by which the least offset would follow the greatest."""
    is_in_range = []
    for writer_type in (SegmentWriter, CompiledWriter):
        env = MemoryEnv(SettableClock(5))
        env.make_dirs("/log")
        writer = writer_type(env, "/log", base, index_interval_bytes=0, segment_index_bytes=1 << 20)
        try:
            if isinstance(writer, CompiledWriter):
                columns = memoryview(array("q", [70, offset, 1])).cast("B").cast("q", (3, 1))
                writer.append_columns(bytes(70), columns, 1)
            else:
                writer.append(bytes(70), offset, 1)
            is_in_range.append(True)
        except OutputOverflow:
            is_in_range.append(False)
    assert is_in_range == 2 * [0 <= offset - base < 2**31]
