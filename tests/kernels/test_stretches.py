"""Stretches of batches, the decision to skip them, and the notes of rows that the map collects for it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.constants import fates, fields
from diamant.kernels.constants import stretches as names
from diamant.kernels.stretches import give_notes, note_stretches, ranges_to_read, take_notes
from tests.effort import examples

SIZE = 100
LEAST_OFFSET = 30

odd = st.sampled_from(
    [
        {fields.MAGIC: 1},
        {fields.NOTE: 0},
        {fields.RECORD_COUNT: 0},
        *({fields.ATTRIBUTES: bit} for bit in (fields.CONTROL, fields.TRANSACTIONAL, fields.LOG_APPEND_TIME)),
    ]
)
batches = st.lists(st.just({}) | st.just({}) | st.just({}) | odd, min_size=1, max_size=30)


@settings(max_examples=examples(200), deadline=None)
@given(batches, st.integers(1, 450), st.sets(st.integers(0, 310)), st.sets(st.integers(0, 310)), st.integers(0, 310))
def test_batches_outside_the_ranges_are_plain_and_superseded(
    odd: list[dict[int, int]], stretch_bytes: int, latest: set[int], retained: set[int], map_end_offset: int
) -> None:
    """Batch n is at 7 + 100 n with offsets 10 n to 10 n + 9; each batch is either in a range or counted as superseded."""
    rows = np.zeros((fields.FIELDS, len(odd)), np.int64)
    for row, changes in enumerate(odd):
        plain = {
            fields.POSITION: SIZE * row,
            fields.SIZE: SIZE,
            fields.MAGIC: 2,
            fields.BASE_OFFSET: 10 * row,
            fields.LAST_OFFSET: 10 * row + 9,
            fields.RECORD_COUNT: 10,
            fields.NOTE: 41,
        }
        for field, value in {**plain, **changes}.items():
            rows[field, row] = value
    stretches = np.zeros((len(odd) * SIZE // stretch_bytes + 1, names.STRETCH_FIELDS), np.int64)
    found = note_stretches(rows, len(odd), 7, LEAST_OFFSET, stretch_bytes, stretches)
    for start, end in stretches[:found, : names.END + 1].tolist():
        assert end - start >= stretch_bytes > end - start - SIZE
    if not found:
        return
    ranges = np.full((found + 1, names.RANGE_FIELDS), -1, np.int64)
    counts = np.zeros(fates.COUNTS, np.int64)
    ascending = [np.array(sorted(numbers), np.int64) for numbers in (latest, retained)]
    count = ranges_to_read(stretches[:found], 7, map_end_offset, *ascending, ranges, counts)
    at, left_out = 7, 0
    for start, end, before in ranges[:count].tolist():
        assert at + SIZE * before == start <= end
        for batch in range((at - 7) // SIZE, (start - 7) // SIZE):
            offsets = range(10 * batch, 10 * batch + 10)
            assert not odd[batch]
            assert not latest.intersection(offsets)
            assert not retained.intersection(offsets)
            assert LEAST_OFFSET <= offsets[0] <= offsets[-1] <= map_end_offset
            left_out += 1
        at = end
    assert at == stretches[found - 1, names.END]
    assert counts[fates.MESSAGES_READ] == counts[fates.REMOVED + fates.FATE_SUPERSEDED] == 10 * left_out
    assert counts[fates.REMOVED_BYTES + fates.FATE_SUPERSEDED] == 40 * left_out


def test_one_stretch_after_the_other_is_left_out() -> None:
    """Batches before, between and after the stretches are read."""
    stretches = np.zeros((3, names.STRETCH_FIELDS), np.int64)
    for row, (start, end) in enumerate([(100, 200), (200, 300), (400, 500)]):
        stretches[row, [names.START, names.END, names.BATCHES]] = start, end, 1
        stretches[row, [names.FIRST_OFFSET, names.LAST_OFFSET]] = start, end - 1
    ranges = np.zeros((4, names.RANGE_FIELDS), np.int64)
    none = np.empty(0, np.int64)
    count = ranges_to_read(stretches, 0, 1000, none, none, ranges, np.zeros(fates.COUNTS, np.int64))
    assert ranges[:count].tolist() == [[0, 100, 0], [300, 400, 2], [500, 500, 1]]


kinds = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, fields.CONTROL]), st.integers(0, 9)), max_size=9)


@given(kinds, st.integers(0, 9), st.integers(0, 9))
def test_rows_get_the_notes_that_they_had(rows: list[tuple[int, int, int]], least: int, room: int) -> None:
    """Data batches of magic 2 from an offset on have notes; notes that do not fit are dropped and become 0."""
    table = np.zeros((fields.FIELDS, max(1, len(rows))), np.int64)
    noted = []
    for row, (magic, attributes, offset) in enumerate(rows):
        noted_fields = [fields.MAGIC, fields.ATTRIBUTES, fields.BASE_OFFSET, fields.NOTE]
        table[noted_fields, row] = magic, attributes, offset, row + 1
        if magic == 2 and not attributes and offset >= least:
            noted.append(row)
    notes = np.zeros(room, np.uint32)
    assert take_notes(table, len(rows), least, notes) == len(noted)
    assert notes[: len(noted)].tolist() == [row + 1 for row in noted][:room]
    expected = table[fields.NOTE].copy()
    expected[noted[room:]] = 0
    assert give_notes(table, 0, len(rows), least, notes[: len(noted)]) == len(noted)
    assert table[fields.NOTE].tolist() == expected.tolist()
