"""The base of record classes: immutable values with keyword arguments."""

from typing import Annotated, Any

import pytest

from diamant.protocol.typed_records.frozen_record import NO_DEFAULT, Field, FrozenRecord, fields


class Point(FrozenRecord):
    """Two numbers."""

    x: Annotated[int, "first"]
    y: int = 7


class Other(FrozenRecord):
    """A class with the same fields as Point."""

    x: int
    y: int = 7


def test_equal_by_class_and_value() -> None:
    """Records are equal, and hash alike, if class and all fields are; defaults count as given."""
    assert Point(x=1) == Point(x=1, y=7)
    assert hash(Point(x=1)) == hash(Point(x=1, y=7))
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Other(x=1)
    assert repr(Point(x=1)) == "Point(x=1, y=7)"


def test_cannot_be_changed_but_copied_with_changes() -> None:
    """Setting and deleting fail; `changed` makes a new record and checks names."""
    point = Point(x=1)
    with pytest.raises(AttributeError, match="Point cannot be changed: x"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Point cannot be changed: y"):
        del point.y
    assert (point.changed(y=9), point) == (Point(x=1, y=9), Point(x=1))
    with pytest.raises(TypeError, match="unknown"):
        point.changed(z=1)


@pytest.mark.parametrize("values", [{}, {"y": 1}, {"x": 1, "z": 2}])
def test_fields_must_be_known_and_given(values: dict[str, Any]) -> None:
    """A field without default that is missing, or one that does not exist, is a TypeError that names it."""
    with pytest.raises(TypeError, match=r"Point: missing \[.*\], unknown \[.*\]"):
        Point(**values)


def test_fields_in_order_with_their_annotations() -> None:
    """`fields` gives names, annotations as objects, and defaults."""
    assert fields(Point) == (Field("x", Annotated[int, "first"], NO_DEFAULT), Field("y", int, 7))
