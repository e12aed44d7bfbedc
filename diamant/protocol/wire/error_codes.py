"""Extracts the error codes from an encoded response by its schema, without decoding the rest.

    find = error_code_finder(JOIN_GROUP, 9)
    find(body)         # [27]: codes other than NONE, in order of the fields

The errors in outgoing responses are counted this way. Skipping a field takes a fraction of the time of decoding it. Nothing is
read after the last error code, nor after `MAX_CODES` codes, which bounds the time for a response with 10,000 topics.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from diamant.protocol.primitives import INT16, INT32, read_uvarint
from diamant.protocol.wire.guard import FIXED_SIZES
from diamant.protocol.wire.schema_fields import SchemaField, is_flexible_struct, message_class, schema_fields

MAX_CODES = 1000

Buffer: TypeAlias = bytes | bytearray | memoryview
_Walk: TypeAlias = Callable[[Buffer, int, list[int]], int]
"""Walks over a field at a position, adds its error codes (including 0) to the list, and returns the position after the field."""

_SIZES = {name: size for name, size in FIXED_SIZES.items() if name != "error_code"} | {"timedelta_i64": 8}
_CODE_SIZE = 2


class _Enough(Exception):
    """`MAX_CODES` codes have been read."""


def error_code_finder(api_key: int, version: int) -> Callable[[Buffer], list[int]]:
    """Return a function that takes a response's body and returns its error codes other than NONE.

    Raises ProtocolError if the version is not served. The function raises IndexError or struct.error if a response is malformed.
    """
    response = message_class(api_key, version, "response")
    offset = _offset_of_only_code(response)
    if offset is not None:
        return _reader_at(offset)
    walk = _struct_walk(response, stops_early=True)

    def find(body: Buffer) -> list[int]:
        codes: list[int] = []
        try:
            walk(body, 0, codes)
        except _Enough:
            pass
        return [code for code in codes if code]

    return find


def _reader_at(offset: int) -> Callable[[Buffer], list[int]]:
    unpack = Struct(f">{offset}xh").unpack_from

    def find(body: Buffer) -> list[int]:
        (code,) = unpack(body)
        return [code] if code else []

    return find


def _is_code(field: SchemaField) -> bool:
    return field.wire_type == "error_code"


def _holds_codes(field: SchemaField) -> bool:
    if _is_code(field):
        return True
    return field.struct is not None and any(_holds_codes(inner) for inner in schema_fields(field.struct))


def _offset_of_only_code(response: type) -> int | None:
    """Return the position of the code if there is only one, and only fixed-size fields precede it; otherwise None."""
    fields = [field for field in schema_fields(response) if field.tag is None]
    with_codes = [field for field in fields if _holds_codes(field)]
    if len(with_codes) != 1 or not _is_code(with_codes[0]):
        return None
    before = fields[: fields.index(with_codes[0])]
    if any(field.is_array or field.wire_type not in _SIZES for field in before):
        return None
    return sum(_SIZES[field.wire_type or ""] for field in before)


def _struct_walk(struct: type, *, stops_early: bool = False) -> _Walk:
    """Return the walk over a structure. If `stops_early`, nothing follows the structure, and the walk ends at its last code."""
    is_flexible = is_flexible_struct(struct)
    fields = [field for field in schema_fields(struct) if field.tag is None]
    if stops_early:
        while fields and not _holds_codes(fields[-1]):
            fields.pop()
    walks: list[_Walk] = []
    pending = 0  # bytes of adjacent fixed-size fields, skipped together
    for field in fields:
        size = None if field.is_array or field.wire_type is None else _SIZES.get(field.wire_type)
        if size is not None:
            pending += size
            continue
        if pending:
            walks.append(_skip(pending))
            pending = 0
        walks.append(_field_walk(field, is_flexible))
    if pending:
        walks.append(_skip(pending))
    if is_flexible and not stops_early:
        walks.append(_tags)
    if len(walks) == 1:
        return walks[0]

    def walk(body: Buffer, position: int, codes: list[int]) -> int:
        for step in walks:
            position = step(body, position, codes)
        return position

    return walk


def _field_walk(field: SchemaField, is_flexible: bool) -> _Walk:
    if field.is_array:
        return _array_walk(field, is_flexible)
    if field.struct is not None:
        return _nullable(_struct_walk(field.struct)) if field.is_nullable else _struct_walk(field.struct)
    if _is_code(field):
        return _code
    return _sized_walk(field, is_flexible)


def _sized_walk(field: SchemaField, is_flexible: bool) -> _Walk:
    if is_flexible:
        return _compact
    return _string if field.wire_type == "string" else _bytes


def _array_walk(field: SchemaField, is_flexible: bool) -> _Walk:
    element_size = _SIZES.get(field.wire_type or "")
    if element_size is not None:
        size = element_size

        def walk_plain(body: Buffer, position: int, codes: list[int]) -> int:
            count, position = _count(body, position, is_flexible)
            return position + count * size

        return walk_plain
    if field.struct is not None and (layout := _fixed_layout(field.struct)) is not None:
        return _fixed_array_walk(*layout, is_flexible)
    walk_one = _struct_walk(field.struct) if field.struct is not None else _sized_walk(field, is_flexible)

    def walk(body: Buffer, position: int, codes: list[int]) -> int:
        count, position = _count(body, position, is_flexible)
        for _ in range(count):
            position = walk_one(body, position, codes)
        return position

    return walk


def _fixed_layout(struct: type) -> tuple[int, int] | None:
    """Return (offset of the code, size) of a structure with one code and only fixed-size fields, like most partitions.

    Returns None for any other structure.
    """
    fields = [field for field in schema_fields(struct) if field.tag is None]
    if sum(map(_holds_codes, fields)) != 1:
        return None
    offset = size = 0
    for field in fields:
        if _is_code(field):
            offset = size
            size += _CODE_SIZE
        elif field.is_array or field.wire_type not in _SIZES:
            return None
        else:
            size += _SIZES[field.wire_type]
    return offset, size


def _fixed_array_walk(offset: int, size: int, is_flexible: bool) -> _Walk:
    unpack = Struct(f">{offset}xh").unpack_from

    def walk(body: Buffer, position: int, codes: list[int]) -> int:
        count, position = _count(body, position, is_flexible)
        for _ in range(min(count, MAX_CODES)):
            codes += unpack(body, position)
            position += size
            if is_flexible:
                position = position + 1 if body[position] == 0 else _tags(body, position, codes)
        if len(codes) >= MAX_CODES:
            raise _Enough
        return position

    return walk


def _count(body: Buffer, position: int, is_flexible: bool) -> tuple[int, int]:
    if is_flexible:
        count = body[position]
        if 0 < count < 0x80:
            return count - 1, position + 1
        count, position = read_uvarint(body, position)
        return max(count - 1, 0), position
    (count,) = INT32.unpack_from(body, position)
    return max(count, 0), position + 4


def _skip(size: int) -> _Walk:
    return lambda body, position, codes: position + size


def _nullable(walk: _Walk) -> _Walk:
    def walk_nullable(body: Buffer, position: int, codes: list[int]) -> int:
        return position + 1 if body[position] == 0xFF else walk(body, position + 1, codes)

    return walk_nullable


def _code(body: Buffer, position: int, codes: list[int]) -> int:
    (code,) = INT16.unpack_from(body, position)
    codes.append(code)
    if len(codes) >= MAX_CODES:
        raise _Enough
    return position + _CODE_SIZE


def _string(body: Buffer, position: int, codes: list[int]) -> int:
    (length,) = INT16.unpack_from(body, position)
    return position + 2 + max(length, 0)  # type: ignore[no-any-return]


def _bytes(body: Buffer, position: int, codes: list[int]) -> int:
    (length,) = INT32.unpack_from(body, position)
    return position + 4 + max(length, 0)  # type: ignore[no-any-return]


def _compact(body: Buffer, position: int, codes: list[int]) -> int:
    length = body[position]
    if 0 < length < 0x80:
        return position + length
    length, position = read_uvarint(body, position)
    return position + max(length - 1, 0)


def _tags(body: Buffer, position: int, codes: list[int]) -> int:
    if body[position] == 0:
        return position + 1
    count, position = read_uvarint(body, position)
    for _ in range(count):
        _, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        position += size
    return position
