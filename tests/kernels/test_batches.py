"""Batches as rows, and their checksums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.broker.clusters.fetching import plain_whole_batches
from diamant.kernels import batches
from diamant.kernels.batches import find_bad_crc, read_headers, whole_batches
from diamant.kernels.constants import fields
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.errors import CorruptBatch
from tests import naive
from tests.builder import make_batch, make_message, with_header
from tests.effort import examples


def rows_of(data: bytes | bytearray, end: int | None = None, capacity: int = 20) -> tuple[Any, ...]:
    """Return the result of `read_headers`, and the table of rows, initially filled with garbage."""
    rows = np.full((fields.FIELDS, capacity), 77, np.int64)
    return (*read_headers(data, 0, len(data) if end is None else end, rows), rows)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 255, 256, 257, 511, 512, 1535, 1536, 1537, 3072, 5000])
def test_the_checksum_is_crc_32c(size: int) -> None:
    """The CRC equals the plain twin's for sizes around its registers and lanes, by folding, by instructions and by tables."""
    data = bytes(index * 7 % 251 for index in range(size))
    assert batches.crc32c(data) == naive.crc32c(data)
    assert batches.crc32c(data, may_fold=False) == naive.crc32c(data)
    assert batches.crc32c(data, may_use_instructions=False) == naive.crc32c(data)


batch_headers = st.builds(
    lambda pairs, **given: make_batch(*pairs, **given),
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), min_size=1, max_size=3),
    base_offset=st.sampled_from([0, 5, 2**40, 2**62]),
    timestamp=st.sampled_from([-1, 0, 2**40, -(2**40)]),
    codec=st.integers(0, 4),
    producer_id=st.sampled_from([-1, 0, 2**40]),
    is_transactional=st.booleans(),
    delete_horizon_ms=st.none() | st.sampled_from([0, 2**41]),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(batch_headers | st.just(make_message(1, 3, b"k", b"v")), max_size=4), st.integers(0, 70))
def test_rows_are_the_headers(batches: list[bytes], cut: int) -> None:
    """Rows hold every field of every whole batch; a torn one at the end is omitted."""
    data = b"".join(bytes(batch) for batch in batches)
    data = data[: max(0, len(data) - cut)]
    fault, count, end, together, rows = rows_of(data)
    headers = list(iter_headers(data))
    assert (fault, count) == (fields.NO_FAULT, len(headers))
    assert end == (headers[-1][0] + headers[-1][1].size if headers else 0)
    expected_together = 0
    for row, (position, header) in enumerate(headers):
        found = rows[:, row].tolist()
        assert found[fields.POSITION : fields.SIZE + 1] == [position, header.size]
        assert found[fields.MAGIC] == header.magic
        expected_together |= header.attributes if header.magic == 2 else fields.LEGACY
        if header.magic == 2:
            assert found[fields.BASE_OFFSET : fields.LAST_OFFSET + 1] == [header.base_offset, header.last_offset]
            assert found[fields.ATTRIBUTES] == header.attributes
            assert found[fields.BASE_TIMESTAMP] == header.base_timestamp
            assert found[fields.MAX_TIMESTAMP] == header.max_timestamp
            assert (found[fields.PRODUCER_ID], found[fields.RECORD_COUNT]) == (header.producer_id, header.record_count)
        assert not any(found[fields.STEP :])
    assert together == expected_together


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_rows_of_damaged_headers_end_where_the_plain_reader_fails(data: st.DataObject) -> None:
    """Strategy: change bytes of three batches. Invariant: a fault at the same position, or the same batches.

    Rows also end at a last offset that exceeds 64 bits; callers of the plain reader compare offsets themselves.
    """
    content = bytearray(b"".join(bytes(make_batch("a=1", "b=2", base_offset=base)) for base in (0, 2, 4)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 3, 49, 127, 128, 255])
        )
    fault, count, end, _, rows = rows_of(content)
    positions, bad = [], None
    try:
        for position, header in iter_headers(content):
            if header.magic < 2:
                return
            if not -(2**63) <= header.last_offset < 2**63:
                bad = position
                break
            positions.append(position)
    except CorruptBatch as error:
        bad = error.position
    if bad is not None and content[bad + 16] < 2:
        return
    assert fault == (fields.NO_FAULT if bad is None else fields.BAD_HEADER)
    assert bad is None or end == bad
    assert rows[fields.POSITION, :count].tolist() == positions


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(batch_headers | st.just(make_message(1, 3, b"k", b"v")), max_size=4), st.integers(0, 70), st.data())
def test_what_a_reader_needs_of_whole_batches(batches: list[bytes], cut: int, data: st.DataObject) -> None:
    """Strategy: cut off the last batch, change bytes of headers. Invariant: the kernel returns what its plain twin does."""
    content = bytearray(b"".join(bytes(batch) for batch in batches))
    del content[max(0, len(content) - cut) :]
    for _ in range(data.draw(st.integers(0, 2)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 2, 12, 127, 128, 255]))
    for end_offset in (0, 5, 6, 2**62, 2**63 - 1):
        assert whole_batches(content, end_offset) == plain_whole_batches(memoryview(content), end_offset)


@pytest.mark.parametrize("base", [2**63 - 1, 2**63 - 5, 2**62, 0, -1, -(2**63) + 5, -(2**63)])
@pytest.mark.parametrize("delta", [0, 1, 5, 2**31 - 1, -1, -6, -(2**31)])
def test_a_batch_whose_last_offset_exceeds_64_bits_is_no_batch(base: int, delta: int) -> None:
    """Its sum would wrap around and be below all others. Rows end there; a sum that fits is in the row."""
    batch = make_batch("a=1", "b=2")
    data = bytes(batch + with_header(batch, base_offset=base, last_offset_delta=delta))
    fault, count, end, _, rows = rows_of(data)
    if -(2**63) <= base + delta < 2**63:
        assert (fault, count, rows[fields.LAST_OFFSET, 1]) == (fields.NO_FAULT, 2, base + delta)
    else:
        assert (fault, count, end) == (fields.BAD_HEADER, 1, len(batch))


@pytest.mark.parametrize("offset", [2**63 - 1, -(2**63)])
def test_offsets_at_the_ends_of_64_bits_are_compared_not_counted_on(offset: int) -> None:
    """The batch after the greatest possible offset is out of order, and no sum overflows."""
    table = np.zeros((fields.FIELDS, 3), np.int64)
    table[[fields.BASE_OFFSET, fields.LAST_OFFSET]] = [0, offset, 2]
    assert not batches.are_in_order(table, 3, -1)
    assert batches.are_in_order(table, 2, -1) == (offset > 0)
    assert not batches.are_in_order(table, 1, 2**63 - 1)


def test_rows_stop_when_there_are_no_more() -> None:
    """When the table is full, the next call reads the rest."""
    batch = bytes(make_batch("a=1"))
    fault, count, end, _, _ = rows_of(batch * 5, capacity=3)
    assert (fault, count, end) == (fields.NO_FAULT, 3, 3 * len(batch))


def test_a_wrong_checksum_is_found() -> None:
    """A wrong checksum is found only among the rows with the given step."""
    batch = make_batch("a=1")
    bad = bytearray(batch)
    bad[-1] ^= 1
    data = bytes(batch + bad)
    _, count, _, _, rows = rows_of(data)
    rows[fields.STEP, :count] = 1
    assert find_bad_crc(data, rows, 0, count, 1) == 1
    assert find_bad_crc(data, rows, 0, 1, 1) == -1
    rows[fields.STEP, 1] = 2
    assert find_bad_crc(data, rows, 0, count, 1) == -1


row_fields = st.tuples(
    st.integers(0, 2),
    st.sampled_from([0, 1, fields.CONTROL, fields.CONTROL | 4]),
    st.integers(0, 4),
    st.integers(-2, 5),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(row_fields, min_size=1, max_size=8), st.integers(-1, 4))
def test_rows_are_chosen_and_summed_up(rows: list[tuple[int, int, int, int]], least: int) -> None:
    """Selection by steps and codecs, and sums of offsets, equal those computed in Python."""
    table, end = np.zeros((fields.FIELDS, len(rows)), np.int64), len(rows)
    names = [fields.MAGIC, fields.ATTRIBUTES, fields.RECORD_COUNT, fields.LAST_OFFSET]
    table[names] = np.array(rows).T
    table[fields.BASE_OFFSET] = lasts = table[fields.LAST_OFFSET]
    batches.set_steps(table, end, 1, 2, fields.CONTROL)
    others = [row for row, one in enumerate(rows) if one[0] < 2 or one[1] & fields.CONTROL]
    assert np.flatnonzero(table[fields.STEP] == 2).tolist() == others
    assert batches.next_with_step(table, 0, end, 2) == min(others, default=end)
    assert batches.next_without_step(table, 0, end, 1) == min(others, default=end)
    assert batches.records_in(table, end) == sum(1 if one[1] & fields.CONTROL else one[2] for one in rows)
    assert batches.last_offset_in(table, 0, end) == max(one[3] for one in rows)
    assert batches.are_in_order(table, end, least) == bool(least < lasts[0] and (np.diff(lasts) > 0).all())
    found = np.zeros((end, 4), np.int64)
    count = batches.find_packed(table, 0, end, 1, fields.LAST_OFFSET, found)
    assert found[:count].tolist() == [
        [row, one[1], one[3], one[0]] for row, one in enumerate(rows) if row not in others and one[1] and one[2]
    ]
