"""Layouts: the binary form of one version of a record or struct, derived from its class.

    class Member(NamedTuple):                                  or a FrozenRecord
        member_id: Text
        instance_id: Annotated[NullableText, Since(3, default=None)]
        topic_id: Annotated[Id, Since(4), Tag(0)] = NO_ID

Fields are in the order of the class. In a flexible version, a struct ends with a tagged section: uvarint count, then for each
field, by ascending tag, uvarint tag, uvarint size and content. A tagged field with its default value is omitted; unknown tags
are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, get_args

from diamant.protocol.primitives import read_uvarint
from diamant.protocol.typed_records.frozen_record import NO_DEFAULT, Field, fields, made_of
from diamant.protocol.typed_records.wire_types import (
    MalformedRecord,
    Reader,
    WireType,
    Writer,
    array_type,
    write_uvarint,
)


class Since(NamedTuple):
    """The versions that have a field: from `version` up to `last`.

    `default` is the field's value in other versions; if it is not given, the default in the class is used. If `is_ignorable`,
    other versions omit the field, whatever its value.
    """

    version: int
    last: int = 0x7FFF
    default: Any = NO_DEFAULT
    is_ignorable: bool = False


class Tag(NamedTuple):
    """The tag of a field in the tagged section. If `is_always_written`, even the field's default value is written."""

    number: int
    is_always_written: bool = False


class KafkaName(NamedTuple):
    """A field's name in Kafka's schema, if it is not simply ours in camel case."""

    name: str


class _OfVersion(NamedTuple):
    """A type that contains structs, so its bytes depend on the version."""

    at: Callable[[int, bool], WireType]


def struct_of(record_class: type) -> Any:
    """Return the annotation of a field that is a struct, declared as a record class."""
    return _OfVersion(lambda version, is_flexible: layout(record_class, version, is_flexible).wire_type)


def nullable_struct_of(record_class: type) -> Any:
    """Return the annotation of a nullable struct. As in Kafka's tagged fields, the first byte is 1 unless the struct is null."""

    def at(version: int, is_flexible: bool) -> WireType:
        read_struct, write_struct, _ = layout(record_class, version, is_flexible).wire_type

        def read(buffer: bytes, position: int) -> tuple[Any, int]:
            is_there = buffer[position] == 1
            return read_struct(buffer, position + 1) if is_there else (None, position + 1)

        def write(out: bytearray, value: Any) -> None:
            out.append(value is not None)
            if value is not None:
                write_struct(out, value)

        return WireType(read, write)

    return _OfVersion(at)


def array_of(record_class: type, *, is_nullable: bool = False) -> Any:
    """Return the annotation of an array of structs."""

    def at(version: int, is_flexible: bool) -> WireType:
        element = layout(record_class, version, is_flexible).wire_type
        return array_type(element, is_nullable=is_nullable).form(is_flexible=is_flexible)

    return _OfVersion(at)


class RecordLayout(NamedTuple):
    """The compiled layout of one version of a record or struct."""

    record_class: type
    is_flexible: bool
    plain: tuple[tuple[Any, str, Reader, Writer], ...]
    """(key, name, reader, writer); `key` is an index or key of `values`."""
    tagged: tuple[tuple[Tag, Any, str, WireType, Any], ...]
    """(tag, key, name, type, default), by ascending tag."""
    absent: tuple[tuple[str, Any], ...]
    """(name, default) of the fields that this version lacks, except ignorable ones. `write_struct` ignores their values."""
    values: Any
    """The argument of `make`, filled with the defaults of optional fields: a list for a NamedTuple, otherwise a dict."""
    make: Callable[[Any], Any]

    @property
    def wire_type(self) -> WireType:
        """The wire type of a field that has this layout."""
        return WireType(partial(read_struct, self), partial(write_struct, self))


@cache
def layout(record_class: type, version: int, is_flexible: bool = True) -> RecordLayout:
    """Return the layout of a version of a record. The cache has one entry per version read or written."""
    plain = []
    tagged = []
    absent = []
    is_tuple = issubclass(record_class, tuple)
    declared = fields(record_class)
    values: Any = [None] * len(declared) if is_tuple else {}
    for index, field in enumerate(declared):
        key = index if is_tuple else field.name
        parts = get_args(field.annotation)
        since = next((part for part in parts if isinstance(part, Since)), Since(0))
        tag = next((part for part in parts if isinstance(part, Tag)), None)
        default = field.default if since.default is NO_DEFAULT else since.default
        is_absent = not since.version <= version <= since.last
        if is_absent or tag is not None:
            assert default is not NO_DEFAULT, f"{field.name} is missing in some versions and needs a default"
            values[key] = default
        if is_absent:
            if not since.is_ignorable:
                absent.append((field.name, default))
            continue
        wire_type = _wire_type(record_class, field, version, is_flexible)
        if tag is None:
            plain.append((key, field.name, wire_type.read, wire_type.write))
        else:
            tagged.append((tag, key, field.name, wire_type, default))
    make = partial(tuple.__new__, record_class) if is_tuple else partial(made_of, record_class)
    return RecordLayout(record_class, is_flexible, tuple(plain), tuple(sorted(tagged)), tuple(absent), values, make)


def _wire_type(record_class: type, field: Field, version: int, is_flexible: bool) -> WireType:
    for part in get_args(field.annotation):
        if isinstance(part, WireType):
            return part.form(is_flexible=is_flexible)
        if isinstance(part, _OfVersion):
            return part.at(version, is_flexible)
    raise AssertionError(f"{record_class.__name__}.{field.name}: expected an annotation with a wire type")


def read_struct(layout: RecordLayout, buffer: bytes, position: int) -> tuple[Any, int]:
    """Read a struct at a position; return it and the position after it.

    Raises the errors in `wire_types.UNREADABLE`; IndexError and struct.error mean that the buffer ends too early.
    """
    values = layout.values.copy()
    for key, _, read, _ in layout.plain:
        values[key], position = read(buffer, position)
    if layout.is_flexible:
        position = _read_tagged(buffer, position, layout, values) if buffer[position] else position + 1
    return layout.make(values), position


def write_struct(layout: RecordLayout, out: bytearray, record: Any) -> None:
    """Append a record to `out`. Fields that the version lacks are omitted, whatever their values.

    Raises OverflowError if a string is too long, and struct.error, TypeError, AttributeError, UnicodeEncodeError or
    MalformedRecord for other invalid values.
    """
    for _, name, _, write in layout.plain:
        write(out, getattr(record, name))
    if not layout.is_flexible:
        return
    if not layout.tagged:
        out.append(0)
        return
    present = []
    for tag, _, name, wire_type, default in layout.tagged:
        value = getattr(record, name)
        if value != default or tag.is_always_written:
            content = bytearray()
            wire_type.write(content, value)
            present.append((tag.number, content))
    write_uvarint(out, len(present))
    for number, content in present:
        write_uvarint(out, number)
        write_uvarint(out, len(content))
        out += content


def _read_tagged(buffer: bytes, position: int, layout: RecordLayout, values: Any) -> int:
    count, position = read_uvarint(buffer, position)
    previous = -1
    for _ in range(count):
        number, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise IndexError(
                f"tagged field of {size} bytes at position {position}, but {len(buffer) - position} are left"
            )
        if number <= previous:
            raise MalformedRecord(
                f"{layout.record_class.__name__}: tag {number} after tag {previous}, expected a greater one"
            )
        previous = number
        for tag, key, name, wire_type, _ in layout.tagged:
            if tag.number == number:
                values[key], position = wire_type.read(buffer, position)
                if position != end:
                    raise MalformedRecord(
                        f"{layout.record_class.__name__}.{name}: tag {number} does not have {size} bytes"
                    )
        position = end
    return position
