"""The fields of one version of a request or response, in wire order, as plain values from kio's schemas.

kio has a frozen dataclass for each API and version; the annotations and metadata of its fields have the types, tags and defaults.
`guard` and `schemas` read schemas through this module, so that only this one depends on kio's description of fields. Each module
of kio is imported on first use, since all of them together take a second and 50 MB.
"""

from __future__ import annotations

import re
import sys
from contextvars import ContextVar
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire import newer_schemas
from diamant.protocol.wire.apis import API_NAMES, is_served

Kind = Literal["request", "response"]


class SchemaField(NamedTuple):
    """One field of a message.

    `wire_type` is kio's: int8, int16, int32, int64, uint16, float64, bool, string, bytes, records, uuid, error_code,
    timedelta_i32, timedelta_i64, datetime_i64 (the last three: milliseconds), or None for a structure, whose dataclass is
    `struct`. `tag` is None for untagged fields.
    """

    name: str
    wire_type: str | None
    struct: type | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    has_default: bool
    default: Any


_IS_HYPOTHESIS_HIDDEN = ContextVar("_IS_HYPOTHESIS_HIDDEN", default=False)
"""True only in the thread that is importing kio, because other threads may import hypothesis at the same time."""


class _WithoutHypothesis:
    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "hypothesis" and _IS_HYPOTHESIS_HIDDEN.get():
            raise ModuleNotFoundError(fullname, name=fullname)


@cache
def import_kio() -> None:
    """Import kio without its support for tests.

    If hypothesis is installed, kio spends 150 ms on building strategies. A broker's first response would then take twice as long
    on a developer's machine as on a user's. In tests, where hypothesis is imported already, this changes nothing.
    """
    hidden = _IS_HYPOTHESIS_HIDDEN.set(True)
    sys.meta_path.insert(0, _WithoutHypothesis)
    try:
        import_module("kio.serial")
    finally:
        sys.meta_path.remove(_WithoutHypothesis)
        _IS_HYPOTHESIS_HIDDEN.reset(hidden)


def message_class(api_key: int, version: int, kind: Kind) -> type:
    """Return kio's dataclass of a message. Raises ProtocolError if the API or the version is not served."""
    if not is_served(api_key, version):
        raise ProtocolError(f"{API_NAMES.get(api_key, 'unknown API')} (key {api_key}) version {version} is not served")
    name = API_NAMES[api_key]
    snake_name = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    import_kio()
    newest = newer_schemas.NEWEST_OF_KIO.get(api_key, version)
    module = import_module(f"kio.schema.{snake_name}.v{min(version, newest)}.{kind}")
    found = getattr(module, name + kind.capitalize())
    assert isinstance(found, type)
    return newer_schemas.newer_version(found) if version > newest else found


def schema_fields(struct: type) -> list[SchemaField]:
    """Return the fields of a message or structure in wire order; tagged fields are last, ordered by tag."""
    described = [_describe(field) for field in fields(struct)]
    plain = [field for field in described if field.tag is None]
    tagged = [field for field in described if field.tag is not None]
    tagged.sort(key=lambda field: field.tag or 0)
    return plain + tagged


def is_flexible_struct(struct: Any) -> bool:
    """Return True if the dataclass is encoded with compact lengths and tagged fields."""
    return bool(struct.__flexible__)


def _describe(field: Field[Any]) -> SchemaField:
    annotation: Any = field.type
    is_nullable = False
    if get_origin(annotation) in (UnionType, Union):
        is_nullable = True
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation = get_args(annotation)[0]
        # Only the elements of arrays of uuids are nullable in kio, since it represents the zero uuid by None.
        if get_origin(annotation) in (UnionType, Union):
            (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    struct = annotation if is_dataclass(annotation) else None
    wire_type = field.metadata.get("kafka_type")
    if (struct is None) == (wire_type is None):
        raise TypeError(f"field {field.name}: expected a structure or a wire type, got {annotation} and {wire_type}")
    return SchemaField(
        name=field.name,
        wire_type=wire_type,
        struct=struct,  # type: ignore[arg-type]
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        has_default=field.default is not MISSING,
        default=None if field.default is MISSING else field.default,
    )
