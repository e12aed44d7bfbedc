"""Checks a request body against its schema before kio reads it.

kio's reader trusts lengths and counts: five bytes that announce an array of 34 billion elements abort the process.
It also fails on unknown tagged fields, which newer clients may send and readers must skip (KIP-482). Therefore every body is
checked first:

* Every count and length must fit the remaining bytes. All arrays together may have at most `MAX_ELEMENTS` elements, and a block
  of tagged fields at most `MAX_TAGS`.
* Fields that are not nullable must not be null.
* The request must end within the body. Bytes after it are removed, since Kafka ignores them (librdkafka sends such a byte in
  AlterUserScramCredentials).
* Tagged fields that are not in the schema are removed.
* An int64 duration beyond kio's range is replaced by `MAX_DURATION_MS` or its negative (clients send Long.MAX_VALUE as the
  retention time in OffsetCommit v2-4).

The guard walks over a body without decoding it, and allocates memory only if it has to edit the body. It consists of steps, which
are nested closures: one for each field of variable size, and one for each run of adjacent fixed-size fields.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import INT16, INT32, INT64, MAX_ELEMENTS, encode_uvarint, read_tag_count, read_uvarint
from diamant.protocol.wire.schema_fields import SchemaField, is_flexible_struct, schema_fields

_Edit = tuple[int, int, bytes]
"""(start, stop, replacement): a range of bytes to replace."""

FIXED_SIZES = {
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "bool": 1,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "datetime_i64": 8,
}

MAX_DURATION_MS = 100_000_000 * 86_400_000
"""Longest duration that is passed to kio, positive or negative: 100 million days. kio counts microseconds in 64 bits."""


class _Walk:
    """State of one walk: the edits in ascending order, and the number of array elements so far."""

    __slots__ = ("edits", "elements")

    def __init__(self) -> None:
        self.edits: list[_Edit] = []
        self.elements = 0


# (buffer, position, end, walk) -> position after the field. A step may return a position beyond `end`, or read beyond `end` if
# the buffer continues there. All later positions are then beyond `end`, too, so the next check of a length fails.
_Step = Callable[[bytes, int, int, _Walk], int]


def compile_guard(message: type) -> Callable[[bytes], bytes]:
    """Return the guard for kio's dataclass `message`: a function that takes a body, and returns it with the necessary edits.

    The guard raises ProtocolError if the body does not match the schema.
    """
    step, _ = _struct_step(message)
    name = f"{message.__name__} v{message.__version__}"  # type: ignore[attr-defined]

    def guard(body: bytes) -> bytes:
        walk = _Walk()
        end = len(body)
        try:
            position = step(body, 0, end, walk)
        except (IndexError, StructError) as error:
            raise ProtocolError(f"{name}: body of {end} bytes ends too early") from error
        except ProtocolError as error:
            raise ProtocolError(f"{name}: {error}") from error
        if position > end:
            raise ProtocolError(f"{name}: expected a body of {position} bytes, got {end}")
        if position < end:
            walk.edits.append((position, end, b""))
        return _apply(body, 0, end, walk.edits) if walk.edits else body

    return guard


def _apply(buffer: bytes, start: int, stop: int, edits: list[_Edit]) -> bytes:
    parts = []
    for edit_start, edit_stop, replacement in edits:
        parts += [buffer[start:edit_start], replacement]
        start = edit_stop
    parts.append(buffer[start:stop])
    return b"".join(parts)


def _struct_step(struct: type) -> tuple[_Step, int]:
    """Return a step over a structure, and the structure's minimum size in bytes."""
    is_flexible = is_flexible_struct(struct)
    steps: list[_Step] = []
    tagged: dict[int, tuple[str, _Step]] = {}
    fixed_size = 0
    min_size = 0
    for field in schema_fields(struct):
        if field.tag is not None:
            tagged[field.tag] = (field.name, _tagged_field_step(field, is_flexible))
            continue
        if not field.is_array and field.wire_type in FIXED_SIZES:
            fixed_size += FIXED_SIZES[field.wire_type]
            min_size += FIXED_SIZES[field.wire_type]
            continue
        if fixed_size:
            steps.append(_skip_step(fixed_size))
            fixed_size = 0
        step, size = _field_step(field, is_flexible)
        steps.append(step)
        min_size += size
    if fixed_size:
        steps.append(_skip_step(fixed_size))
    if is_flexible:
        steps.append(_tags_step(tagged))
        min_size += 1
    if len(steps) == 1:
        return steps[0], min_size

    def walk_struct(buffer: bytes, position: int, end: int, walk: _Walk) -> int:
        for step in steps:
            position = step(buffer, position, end, walk)
        return position

    return walk_struct, min_size


def _tagged_field_step(field: SchemaField, is_flexible: bool) -> _Step:
    if not field.is_array and field.wire_type in FIXED_SIZES:
        return _skip_step(FIXED_SIZES[field.wire_type])
    step, _ = _field_step(field, is_flexible)
    return step


def _field_step(field: SchemaField, is_flexible: bool) -> tuple[_Step, int]:
    """Return a step over a field of variable size, and the field's minimum size in bytes."""
    if field.is_array:
        if field.struct is not None:
            element, element_size = _struct_step(field.struct)
        else:
            element, element_size = _value_step(field, is_flexible, is_nullable=False)
        is_fixed = field.wire_type in FIXED_SIZES
        array = _compact_array_step if is_flexible else _array_step
        step = array(field.name, None if is_fixed else element, element_size, field.is_nullable)
        return step, 1 if is_flexible else 4
    if field.struct is not None:
        step, size = _struct_step(field.struct)
        # A byte precedes a nullable structure (KIP-893), except in kio's tagged fields.
        return (_nullable_struct_step(step), 1) if field.is_nullable and field.tag is None else (step, size)
    return _value_step(field, is_flexible, is_nullable=field.is_nullable)


def _value_step(field: SchemaField, is_flexible: bool, *, is_nullable: bool) -> tuple[_Step, int]:
    wire_type = field.wire_type
    assert wire_type is not None
    if wire_type in FIXED_SIZES:
        size = FIXED_SIZES[wire_type]
        return _skip_step(size), size
    if wire_type == "timedelta_i64":
        return _walk_duration, 8
    if wire_type not in ("string", "bytes", "records"):
        raise TypeError(f"field {field.name} has the unknown wire type {wire_type}")
    if is_flexible:
        return _compact_bytes_step(field.name, is_nullable), 1
    length = INT16 if wire_type == "string" else INT32
    return _sized_step(field.name, is_nullable, length), length.size


def _skip_step(size: int) -> _Step:
    def skip(_buffer: bytes, position: int, _end: int, _walk: _Walk) -> int:
        return position + size

    return skip


def _walk_duration(buffer: bytes, position: int, _end: int, walk: _Walk) -> int:
    (duration_ms,) = INT64.unpack_from(buffer, position)
    if not -MAX_DURATION_MS <= duration_ms <= MAX_DURATION_MS:
        nearest = MAX_DURATION_MS if duration_ms > 0 else -MAX_DURATION_MS
        walk.edits.append((position, position + 8, INT64.pack(nearest)))
    return position + 8


def _sized_step(name: str, is_nullable: bool, length: Struct) -> _Step:
    """Return a step over a string or bytes with a preceding length of fixed size."""
    unpack, length_bytes = length.unpack_from, length.size

    def walk_sized(buffer: bytes, position: int, end: int, _walk: _Walk) -> int:
        (size,) = unpack(buffer, position)
        position += length_bytes
        if size >= 0:
            position += size
            if position > end:
                raise ProtocolError(f"{name} of {size} bytes ends {position - end} bytes beyond the end")
        elif size != -1 or not is_nullable:
            raise ProtocolError(f"{name} has length {size} before position {position}")
        return int(position)

    return walk_sized


def _compact_bytes_step(name: str, is_nullable: bool) -> _Step:
    def walk_compact_bytes(buffer: bytes, position: int, end: int, _walk: _Walk) -> int:
        length = buffer[position]
        position += 1
        if length >= 0x80:
            length, position = read_uvarint(buffer, position - 1)
        if length == 0:
            if not is_nullable:
                raise ProtocolError(f"{name} is null before position {position}")
            return position
        position += length - 1
        if position > end:
            raise ProtocolError(f"{name} of {length - 1} bytes ends {position - end} bytes beyond the end")
        return position

    return walk_compact_bytes


def _array_step(name: str, element: _Step | None, element_size: int, is_nullable: bool) -> _Step:
    """Return a step over an array. `element` is None for fixed-size elements; `element_size` is their minimum size in bytes."""
    unpack = INT32.unpack_from
    walk_elements = _elements_step(name, element, element_size)

    def walk_array(buffer: bytes, position: int, end: int, walk: _Walk) -> int:
        (count,) = unpack(buffer, position)
        position += 4
        if count > 0:
            return walk_elements(buffer, position, end, walk, count)
        if count and (count != -1 or not is_nullable):
            raise ProtocolError(f"{name} has {count} elements before position {position}")
        return position

    return walk_array


def _compact_array_step(name: str, element: _Step | None, element_size: int, is_nullable: bool) -> _Step:
    walk_elements = _elements_step(name, element, element_size)

    def walk_compact_array(buffer: bytes, position: int, end: int, walk: _Walk) -> int:
        count = buffer[position]
        position += 1
        if count >= 0x80:
            count, position = read_uvarint(buffer, position - 1)
        if count > 1:
            return walk_elements(buffer, position, end, walk, count - 1)
        if count == 0 and not is_nullable:
            raise ProtocolError(f"{name} is null before position {position}")
        return position

    return walk_compact_array


def _elements_step(name: str, element: _Step | None, element_size: int) -> Callable[[bytes, int, int, _Walk, int], int]:
    def walk_elements(buffer: bytes, position: int, end: int, walk: _Walk, count: int) -> int:
        if count * element_size > end - position:
            raise ProtocolError(
                f"{name} at position {position} cannot have {count} elements: {end - position} bytes are left"
            )
        walk.elements += count
        if walk.elements > MAX_ELEMENTS:
            raise ProtocolError(f"{name}: more than {MAX_ELEMENTS} array elements")
        if element is None:
            return position + count * element_size
        for _ in range(count):
            position = element(buffer, position, end, walk)
        return position

    return walk_elements


def _nullable_struct_step(step: _Step) -> _Step:
    def walk_nullable_struct(buffer: bytes, position: int, end: int, walk: _Walk) -> int:
        marker = buffer[position]
        if marker == 1:
            return step(buffer, position + 1, end, walk)
        if marker == 0xFF:
            return position + 1
        raise ProtocolError(f"structure marked with {marker} at position {position}, expected 1, or 255 for null")

    return walk_nullable_struct


def _tags_step(known: dict[int, tuple[str, _Step]]) -> _Step:
    def walk_tags(buffer: bytes, position: int, end: int, walk: _Walk) -> int:
        if buffer[position] == 0:
            return position + 1
        return _walk_tag_block(known, buffer, position, end, walk)

    return walk_tags


def _walk_tag_block(known: dict[int, tuple[str, Any]], buffer: bytes, start: int, end: int, walk: _Walk) -> int:
    """Walk over a non-empty block of tagged fields. If any part of it has to change, replace the whole block."""
    count, position = read_tag_count(buffer, start)
    kept: list[bytes] = []
    edits_before = walk.edits
    is_changed = False
    seen: set[int] = set()
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        stop = position + size
        if stop > end:
            raise ProtocolError(f"tagged field {tag} of {size} bytes ends {stop - end} bytes beyond the end")
        if tag not in known:
            is_changed = True
            position = stop
            continue
        name, step = known[tag]
        if tag in seen:
            raise ProtocolError(f"tagged field {tag} ({name}) occurs twice")
        seen.add(tag)
        walk.edits = []
        after = step(buffer, position, stop, walk)
        if after != stop:
            raise ProtocolError(f"tagged field {tag} ({name}): expected {after - position} bytes, got {size}")
        is_changed = is_changed or bool(walk.edits)
        content = _apply(buffer, position, stop, walk.edits)
        kept.append(encode_uvarint(tag) + encode_uvarint(len(content)) + content)
        position = stop
    walk.edits = edits_before
    if is_changed:
        walk.edits.append((start, position, encode_uvarint(len(kept)) + b"".join(kept)))
    return position
