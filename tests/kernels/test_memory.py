"""Memory for kernels."""

from __future__ import annotations

import mmap

import pytest

from diamant.kernels import numbers


@pytest.mark.parametrize(
    ("kind", "shape"), [("B", (0,)), ("B", (300_000,)), ("i", (7,)), ("q", (24, 3)), ("Q", (2, 40_000, 3))]
)
def test_memory_is_zeros_of_the_given_kind_and_shape(kind: str, shape: tuple[int, ...]) -> None:
    """The memory is writable, zeroed, and of the given kind and shape."""
    found = numbers(kind, *shape)
    assert (found.format, found.shape, found.readonly) == (kind, shape, False)
    assert not any(found.cast("B"))


def test_large_memory_is_private_pages() -> None:
    """Large memory occupies no pages before use, and pages can be released one by one."""
    assert isinstance(numbers("Q", 1 << 20).obj, mmap.mmap)
    assert isinstance(numbers("Q", 16).obj, bytearray)
