"""The names of the fields of requests and responses: `encode_response_fields` ignores those that no version has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.protocol.wire.apis import SERVED
from diamant.protocol.wire.schema_fields import Kind, message_class, schema_fields
from diamant.protocol.wire.schemas import dict_names


def unknown_fields(api_key: int, kind: Kind, fields: Mapping[str, Any]) -> list[str]:
    """Return the paths in `fields` that no served version has, such as "topics.nmae". Loads all versions."""
    served = SERVED[api_key]
    messages = [message_class(api_key, version, kind) for version in range(served.min, served.max + 1)]
    return sorted(_unknown_paths(messages, fields, ""))


def _unknown_paths(structs: list[type], fields: Mapping[str, Any], prefix: str) -> set[str]:
    known: dict[str, list[type]] = {}
    for struct in structs:
        for field in schema_fields(struct):
            for name in dict_names(field):
                nested = known.setdefault(name, [])
                if field.struct is not None:
                    nested.append(field.struct)
    unknown: set[str] = set()
    for name, value in fields.items():
        if name not in known:
            unknown.add(prefix + name)
            continue
        elements = value if isinstance(value, (list, tuple)) else [value]
        for element in elements:
            if known[name] and isinstance(element, Mapping):
                unknown |= _unknown_paths(known[name], element, f"{prefix}{name}.")
    return unknown
