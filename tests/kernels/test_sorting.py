"""Sorting of words."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.key_filter import sort_words
from tests.effort import examples

words = st.lists(
    st.one_of(
        st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(0, 2**30), st.integers(0, 3).map(lambda n: n << 62)
    )
)


@settings(max_examples=examples(200), deadline=None)
@given(words, st.sampled_from([0, 1 << 40]))
def test_words_are_sorted_and_told_once(values: list[int], high: int) -> None:
    """The result equals Python's sort without duplicates, whatever digits the words share."""
    values = [value | high for value in values]
    found = array("Q", values)
    count = sort_words(found, array("Q", bytes(8 * len(values))))
    assert found[:count].tolist() == sorted(set(values))
