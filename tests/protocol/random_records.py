"""Strategies for values of declared records and structs, field by field from their annotations."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st

from diamant.protocol.typed_records import wire_types
from diamant.protocol.typed_records.frozen_record import fields

_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    bytes: st.binary(max_size=9),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    UUID: st.uuids(),
}
_INTEGERS = {
    get_args(kind)[1]: st.integers(least, most)
    for kind, least, most in (
        (wire_types.Int8, -(2**7), 2**7 - 1),
        (wire_types.Int16, -(2**15), 2**15 - 1),
        (wire_types.Uint16, 0, 2**16 - 1),
        (wire_types.Int32, -(2**31), 2**31 - 1),
        (wire_types.Int64, -(2**63), 2**63 - 1),
    )
}


def values_of(kind: type, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of a class, with any values in the fields that are not `given`."""
    own = {field.name: _of(field.annotation.__origin__, field.annotation.__metadata__[0]) for field in fields(kind)}
    return st.builds(kind, **own | given)


def _of(kind: Any, wire_type: Any) -> st.SearchStrategy[Any]:
    parts = get_args(kind)
    if NoneType in parts:
        return st.none() | _of(parts[0], wire_type)
    if get_origin(kind) is tuple:
        return st.lists(_of(parts[0], wire_types.INT32), max_size=3).map(tuple)
    if kind is int:
        return _INTEGERS[wire_type]
    return _PLAIN[kind] if kind in _PLAIN else values_of(kind)
