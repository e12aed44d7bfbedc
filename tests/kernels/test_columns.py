"""The walk that writes records as columns equals the plain reader."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.spark.source.arrow_columns import ColumnBuffers, RowSource
from diamant.cleaner.spark.source.filter_bounds import GREATEST, LEAST, FilterBounds
from diamant.cleaner.spark.source.range_reader import bounds_array
from diamant.kernels.constants import columns, fields
from diamant.protocol.batches.batch_records import build_batch, iter_payload
from diamant.protocol.batches.header import HEADER_SIZE, Record, parse_header
from diamant.protocol.errors import CorruptBatch
from tests.effort import examples
from tests.kernels.samples import damaged, record

WANT_ALL = columns.WANT_KEYS | columns.WANT_VALUES | columns.WANT_HEADERS | columns.WANT_SIZES
STEP = 1
EVERYTHING = FilterBounds()


def batch_of(records: list[Record]) -> bytes:
    """Return a batch of records, with offsets from 7 on."""
    return bytes(build_batch([one._replace(offset=7 + index) for index, one in enumerate(records)]))


def bytes_at(index: int, data: Any, ends: Any, is_there: Any = None) -> bytes | None:
    """Return one entry of a column."""
    return None if is_there is not None and not is_there[index] else data[ends[index] : ends[index + 1]].tobytes()


def walked(batch: bytes, bounds: FilterBounds = EVERYTHING, only: list[int] | None = None) -> list[Any] | None:
    """Return the columns of each record of a batch; None if the batch is faulty."""
    header = parse_header(batch)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    rows[fields.STEP] = STEP
    rows[fields.RECORD_COUNT] = header.record_count
    rows[fields.PAYLOAD_START], rows[fields.PAYLOAD_END] = HEADER_SIZE, len(batch)
    rows[fields.BASE_OFFSET], rows[fields.LAST_OFFSET] = header.base_offset, header.last_offset
    rows[fields.BASE_TIMESTAMP] = header.base_timestamp
    data = np.frombuffer(batch, np.uint8)
    room = ColumnBuffers(WANT_ALL, header.record_count, len(batch))
    offsets = None if only is None else np.array(only, np.int64)
    source = RowSource(0, data, rows)
    fault, row = room.fill(source, data, 0, 1, STEP, bounds_array(bounds), offsets, WANT_ALL)
    if fault != fields.NO_FAULT:
        assert (row, room.count, room.header_count, room.walked) == (0, 0, 0, 0)
        return None
    assert (row, room.walked) == (1, header.record_count)
    found = []
    for index in range(room.count):
        places = range(room.header_ends[index], room.header_ends[index + 1])
        value = bytes_at(index, room.values, room.value_ends, room.has_value)
        assert room.fixed[columns.VALUE_SIZE, index] == (-1 if value is None else len(value))
        found.append(
            (
                int(room.fixed[columns.OFFSET, index]),
                int(room.fixed[columns.TIMESTAMP, index]),
                bytes_at(index, room.keys, room.key_ends, room.has_key),
                value,
                [
                    (
                        bytes_at(at, room.header_keys, room.header_key_ends),
                        bytes_at(at, room.header_values, room.header_value_ends, room.has_header_value),
                    )
                    for at in places
                ],
            )
        )
    return found


def plain(batch: bytes) -> list[Any] | None:
    """Return the same from the plain reader."""
    header = parse_header(batch)
    try:
        records = list(iter_payload(batch[HEADER_SIZE:], header))
    except CorruptBatch:
        return None
    offsets = [header.base_offset - 1, *(one.offset for one in records)]
    if sorted(set(offsets)) != offsets or offsets[-1] > header.last_offset:
        return None
    return [
        (
            one.offset,
            one.timestamp,
            one.key,
            one.value,
            [(name.encode(errors="surrogateescape"), value) for name, value in one.headers],
        )
        for one in records
    ]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(record, min_size=1, max_size=8), st.data())
def test_records_within_bounds_are_in_the_columns(records: list[Record], data: st.DataObject) -> None:
    """The columns hold all fields of the records within the bounds and in the list of offsets, if given."""
    batch = batch_of(records)
    everything = plain(batch)
    assert everything is not None
    assert walked(batch) == everything
    end = 7 + len(records)
    only = data.draw(st.none() | st.sets(st.integers(0, end + 2)).map(sorted))
    bounds = FilterBounds(
        min_offset=data.draw(st.sampled_from([LEAST, 7, 8, end])),
        max_offset=data.draw(st.sampled_from([GREATEST, 7, 8, end])),
        min_timestamp_ms=data.draw(st.sampled_from([LEAST, 0, *(one.timestamp for one in records)])),
        max_timestamp_ms=data.draw(st.sampled_from([GREATEST, 0, *(one.timestamp for one in records)])),
    )
    assert walked(batch, bounds, only) == [
        one
        for one in everything
        if bounds.min_offset <= one[0] <= bounds.max_offset
        and bounds.min_timestamp_ms <= one[1] <= bounds.max_timestamp_ms
        and (only is None or one[0] in only)
    ]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_damaged_records_are_refused_where_the_plain_reader_refuses_them(
    records: list[Record], data: st.DataObject
) -> None:
    """Strategy: overwrite or cut bytes. Invariant: a faulty batch leaves nothing in the columns."""
    batch = damaged(data, batch_of(records), HEADER_SIZE)
    cut = bytes(batch[: data.draw(st.integers(HEADER_SIZE + 1, len(batch)))])
    assert walked(cut) == plain(cut)
