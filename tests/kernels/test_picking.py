"""The kernel that picks records equals a check of each record."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.constants import fields
from diamant.kernels.constants.picking import TOMBSTONES, WATCHED, WITH_KEY, WITH_TEXT
from diamant.kernels.picking import pick_records
from diamant.protocol.batches.batch_records import build_batch, iter_payload, iter_records
from diamant.protocol.batches.header import HEADER_SIZE, Record, parse_header
from diamant.protocol.errors import CorruptBatch
from tests.effort import examples
from tests.kernels.samples import damaged, record

keys = st.sampled_from([None, b"", b"a", b"aa", b"ba", b"long" * 9])


def picked(batch: bytes, wanted: bytes, mode: int = WITH_KEY, *, room: int = 100) -> tuple[int, list[Record]]:
    """Return the fault and the records picked from a batch."""
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    rows[fields.SIZE] = rows[fields.PAYLOAD_END] = len(batch)
    rows[fields.PAYLOAD_START] = HEADER_SIZE
    header = parse_header(batch)
    rows[fields.RECORD_COUNT] = header.record_count
    rows[fields.LAST_OFFSET] = header.last_offset
    table, places = np.zeros((256, 3), np.uint64), np.zeros((room, 3), np.int64)
    fault, row, count, _ = pick_records(batch, b"\0", rows, 0, 1, 0, wanted, mode, 1, 2, table, 0, places)
    assert row == (fault == fields.NO_FAULT)
    one = header._replace(record_count=1)
    return fault, [next(iter_payload(batch[start:end], one)) for _, start, end in places[:count].tolist()]


def is_wanted(one: Record, content: bytes, wanted: bytes, mode: int) -> bool:
    """True if a record is picked regardless of earlier ones."""
    if mode == WITH_KEY:
        return one.key == wanted
    return wanted in content if mode == WITH_TEXT else one.key is not None and one.value is None


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.builds(lambda one, key: one._replace(key=key), record, keys), max_size=9),
    keys,
    st.sampled_from([WITH_KEY, WITH_TEXT, TOMBSTONES]),
)
def test_picked_records_are_those_found_one_by_one(records: list[Record], key: bytes | None, mode: int) -> None:
    """Records are picked by key, by bytes in them, or as tombstones; for the last two also later records of their keys."""
    wanted = key or (b"" if mode == WITH_KEY else b"a")
    records = [one._replace(offset=index, sequence=-1) for index, one in enumerate(records)]
    batch = bytes(build_batch(records, base_offset=0))
    ends = [len(build_batch(records[: index + 1], base_offset=0)) for index in range(len(records))]
    watched: set[bytes] = set()
    expected = []
    for one, start, end in zip(records, [HEADER_SIZE, *ends], ends, strict=False):
        if is_wanted(one, batch[start:end], wanted, mode) or one.key in watched:
            expected.append(one)
            if one.key is not None and mode != WITH_KEY:
                watched.add(one.key)
    assert picked(batch, wanted, mode) == (fields.NO_FAULT, expected)
    assert picked(batch, wanted, WATCHED) == (fields.NO_FAULT, [])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_damaged_records_are_refused(records: list[Record], data: st.DataObject) -> None:
    """Strategy: overwrite bytes. Invariant: nothing is picked from batches that the plain reader refuses."""
    numbered = [one._replace(offset=index) for index, one in enumerate(records)]
    batch = bytes(damaged(data, build_batch(numbered), HEADER_SIZE))
    try:
        list(iter_records(batch))
        is_sound = True
    except CorruptBatch:
        is_sound = False
    fault, found = picked(batch, b"no such key")
    assert (fault == fields.NO_FAULT) == is_sound
    assert found == []


def test_without_room_nothing_is_picked() -> None:
    """A batch is picked from only if there is room for all of its records."""
    batch = bytes(build_batch([Record(index, 0, b"k", b"v") for index in range(5)]))
    assert picked(batch, b"k", room=4) == (fields.BUFFER_FULL, [])
    assert len(picked(batch, b"k", room=5)[1]) == 5
