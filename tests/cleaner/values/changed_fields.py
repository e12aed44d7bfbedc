"""A naive model of changes of fields, on values as reference libraries return them; and random paths into such values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from diamant.cleaner.values.edits import TEXT, NewValue

TOKEN = "***"
GONE = object()
"""In place of a value: the field is left out."""


def changed(value: Any, path: Sequence[str], new: Callable[[Any], Any], *, in_lists: bool = False) -> Any:
    """Return a value with others at a path. `in_lists`: a list at its end is not changed, but its items."""
    if isinstance(value, list) and (path or in_lists):
        return [changed(one, path, new, in_lists=in_lists) for one in value]
    if not path:
        return new(value)
    if not isinstance(value, dict):
        return value
    made = {
        name: changed(one, path[1:], new, in_lists=in_lists) if name == path[0] else one for name, one in value.items()
    }
    return {name: one for name, one in made.items() if one is not GONE}


def without(value: Any, path: Sequence[str]) -> Any:
    """Return a value without what stands at a path: what has to stay equal."""
    return changed(value, path, lambda _old: GONE)


@st.composite
def paths(draw: st.DrawFn, value: Any) -> list[str]:
    """A path that leads somewhere in a value; empty if it has no fields."""
    path: list[str] = []
    while True:
        while isinstance(value, list) and value:
            value = draw(st.sampled_from(value))
        if not isinstance(value, dict) or not value or (path and draw(st.integers(0, 2)) == 0):
            return path
        path.append(draw(st.sampled_from(list(value))))
        value = value[path[-1]]


def is_for_items(new: NewValue) -> bool:
    """Whether a new value takes the place of each item of a list."""
    return new.kind == TEXT
