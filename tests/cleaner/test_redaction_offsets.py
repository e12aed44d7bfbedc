"""Sets of offsets against sets of Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diamant.cleaner.redaction_offsets import Offsets

offsets = st.lists(st.integers(0, 300) | st.integers(0, (1 << 32) - 1).map(lambda one: one % 5_000), max_size=60)


@given(
    base=st.sampled_from([0, 7, 1 << 40]),
    rounds=st.lists(offsets, max_size=4),
    asked=st.lists(st.tuples(st.integers(0, 5_100), st.integers(-1, 5_100)), max_size=5),
)
def test_they_hold_what_was_added(base: int, rounds: list[list[int]], asked: list[tuple[int, int]]) -> None:
    """In whichever form: few as numbers, many as bits; asked in ranges, and told as runs."""
    found, expected = Offsets(base), set()
    for added in rounds:
        for one in added:
            found.add(base + one)
            expected.add(base + one)
        found.seal()
    assert len(found) == len(expected)
    for first, count in asked:
        last = base + first + count
        assert found.between(base + first, last) == {one for one in expected if base + first <= one <= last}
    assert all(found.has(one) for one in expected)
    assert [one for first, last in found.ranges() for one in range(first, last + 1)] == sorted(expected)
    assert all(first <= last for first, last in found.ranges())


def test_their_memory_is_bounded() -> None:
    """A bit for each offset that is spanned at most."""
    found = Offsets(0)
    for one in range(100_000):
        found.add(one)
    found.seal()
    assert found.nbytes <= 100_000 // 8 + 1
    sparse = Offsets(0)
    sparse.add(0)
    sparse.add((1 << 31) - 1)
    sparse.seal()
    assert sparse.nbytes == 8
