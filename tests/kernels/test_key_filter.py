"""Key filters: sorted hashes, their encoding, and lookups."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import MAP, SKIP
from diamant.kernels.key_filter import choose_data, find_special, may_have_any, sort_words, take_table, write_filter
from tests.effort import examples

words = st.lists(
    st.one_of(
        st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(0, 2**30), st.integers(0, 3).map(lambda n: n << 62)
    )
)
many = settings(max_examples=examples(200), deadline=None)


def sorted_hashes(values: list[int]) -> array[int]:
    """Return the distinct hashes, ascending."""
    hashes = array("Q", values)
    count = sort_words(hashes, array("Q", bytes(8 * len(values))))
    return hashes[:count]


@many
@given(words, st.sampled_from([0, 1 << 40]))
def test_words_are_sorted_and_told_once(values: list[int], high: int) -> None:
    """The result equals Python's sort without duplicates, whatever digits the words share."""
    values = [value | high for value in values]
    assert sorted_hashes(values).tolist() == sorted(set(values))


@many
@given(words, st.integers(0, 6))
def test_a_filter_has_the_bytes_that_its_format_says(values: list[int], bits: int) -> None:
    """A filter is the start of each bucket, then for each key the 32 bits after its bucket bits; little-endian."""
    hashes = sorted_hashes(values)
    data = bytearray(4 * (2**bits + 1 + len(hashes)))
    write_filter(hashes, bits, data)
    leading = [value >> 32 - bits for value in hashes]
    starts = [sum(one >> 32 < bucket for one in leading) for bucket in range(2**bits + 1)]
    expected = [*starts, *(one & 0xFFFFFFFF for one in leading)]
    assert data == b"".join(word.to_bytes(4, "little") for word in expected)
    for value in values:
        assert may_have_any(data, bits, array("Q", [value]))


def test_a_table_gives_its_keys() -> None:
    """A table yields the first halves of its used slots, in order of the slots."""
    table = np.array([[5, 1, 1], [0, 0, 0], [7, 2, 9]], np.uint64)
    hashes = array("Q", bytes(16))
    assert take_table(table, hashes) == 2
    assert hashes.tolist() == [5, 7]


def test_rows_are_distinguished() -> None:
    """Data of magic 2 is mapped; other, empty or transactional batches and possible expiring tombstones are special."""
    kinds = [
        # magic, attributes, records, note, step, is looked at
        (2, 0, 3, 9, MAP, False),
        (2, 0, 3, 0, MAP, False),
        (1, 0, 1, 0, SKIP, True),
        (2, fields.CONTROL, 1, 0, SKIP, True),
        (2, 0, 0, 1, MAP, True),
        (2, fields.TRANSACTIONAL, 2, 9, MAP, True),
        (2, fields.DELETE_HORIZON, 2, 9, MAP, False),
        (2, fields.DELETE_HORIZON, 2, 0, MAP, True),
    ]
    rows = np.zeros((fields.FIELDS, len(kinds) + 1), np.int64)
    for row, (magic, attributes, records, note, _, _) in enumerate(kinds):
        kind_fields = [fields.MAGIC, fields.ATTRIBUTES, fields.RECORD_COUNT, fields.NOTE]
        rows[kind_fields, row] = magic, attributes, records, note
    choose_data(rows, len(kinds))
    assert rows[fields.STEP, : len(kinds)].tolist() == [one[4] for one in kinds]
    found = array("q", bytes(8 * len(kinds)))
    special, records, has_unstamped = find_special(rows, len(kinds), found)
    assert found[:special].tolist() == [row for row, one in enumerate(kinds) if one[5]]
    assert records == 12
    assert has_unstamped
    without = np.delete(rows, 1, axis=1)
    assert not find_special(without, len(kinds) - 1, found)[2]
