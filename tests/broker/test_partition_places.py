"""Places in a partition as text."""

from __future__ import annotations

import pytest

from diamant.broker.partition_places import offset_at


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        ("start", 10), ("beginning", 10), ("earliest", 10), ("end", 60), ("latest", 60), ("17", 17), ("0", 10), ("99", 60),
        ("-10", 50), ("-99", 10), ("+5", 25), ("+99", 60), ("+0", 20), ("-0", 60),
    ],
)  # fmt: skip
def test_a_place_is_a_word_an_offset_or_a_distance(where: str, offset: int) -> None:
    """A place is a word, an offset, or a distance from the end or from the committed offset; the nearer bound for what is out
    of range.
    """
    assert offset_at(where, 10, 60, committed=20, name="t-0") == offset


@pytest.mark.parametrize("where", ["", "soon", "+", "-", "+-5", "1_0", " 5", "5 ", "\u0665", "++5", "@5"])
def test_other_text_is_refused(where: str) -> None:
    """The error says what is expected."""
    with pytest.raises(ValueError, match=r"expected start, end, an offset, -N, \+N or @TIME"):
        offset_at(where, 10, 60, committed=20, name="t-0")


def test_a_distance_needs_a_committed_offset() -> None:
    """Where there is no group, it is no place."""
    with pytest.raises(ValueError, match=r"nothing is committed for t-0, so \+N has no starting point"):
        offset_at("+5", 10, 60, name="t-0")
    with pytest.raises(ValueError, match="expected start, end, an offset, -N or @TIME"):
        offset_at("+5", 10, 60)
