"""Notes of rows: collected by the map, restored in the rewrite."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diamant.kernels.constants import fields
from diamant.kernels.stretches import give_notes, take_notes

kinds = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, fields.CONTROL]), st.integers(0, 9)), max_size=9)


@given(kinds, st.integers(0, 9), st.integers(0, 9))
def test_rows_get_the_notes_that_they_had(rows: list[tuple[int, int, int]], least: int, room: int) -> None:
    """Data batches of magic 2 from an offset on have notes; notes that do not fit are dropped and become 0."""
    table = np.zeros((fields.FIELDS, max(1, len(rows))), np.int64)
    noted = []
    for row, (magic, attributes, offset) in enumerate(rows):
        table[[fields.MAGIC, fields.ATTRIBUTES, fields.BASE_OFFSET, fields.NOTE], row] = (
            magic,
            attributes,
            offset,
            row + 1,
        )
        if magic == 2 and not attributes and offset >= least:
            noted.append(row)
    notes = np.zeros(room, np.uint32)
    assert take_notes(table, len(rows), least, notes) == len(noted)
    assert notes[: len(noted)].tolist() == [row + 1 for row in noted][:room]
    expected = table[fields.NOTE].copy()
    expected[noted[room:]] = 0
    assert give_notes(table, 0, len(rows), least, notes[: len(noted)]) == len(noted)
    assert table[fields.NOTE].tolist() == expected.tolist()
