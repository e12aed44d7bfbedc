"""Parses schemas from JSON in the topic `_schemas` or in a registry's responses, and adds the schemas that they refer to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from diamant.cleaner.values.schemas import AVRO, SchemaText

MAX_REFERENCES = 1_000
"""Maximum number of schemas that a schema refers to, directly or indirectly."""


class RegisteredSchema(NamedTuple):
    """One version of a subject."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]
    """Name, subject and version of each reference."""

    def with_references(self, find: Callable[[str, int], RegisteredSchema | None]) -> SchemaText:
        """Return the schema with the schemas that it refers to. `find` finds a schema by subject and version.

        Missing schemas are left out, so that compiling reports what is undefined.
        """
        found: dict[str, str] = {}
        begun: set[tuple[str, int]] = set()

        def add(one: RegisteredSchema) -> None:
            for name, subject, version in one.references:
                if (subject, version) in begun or len(begun) >= MAX_REFERENCES:
                    continue
                begun.add((subject, version))
                other = find(subject, version)
                if other is not None:
                    add(other)
                    found.setdefault(name, other.text)

        add(self)
        return SchemaText(self.kind, self.text, found)


def parse_registered(fields: Mapping[str, object]) -> RegisteredSchema | None:
    """Return the schema in a JSON object; None if the object does not have the expected form."""
    text, kind, references = fields.get("schema"), fields.get("schemaType") or AVRO, fields.get("references") or []
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(references, list):
        return None
    found = []
    for one in references:
        if not isinstance(one, dict):
            return None
        name, subject, version = one.get("name"), one.get("subject"), one.get("version")
        if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
            return None
        found.append((name, subject, version))
    return RegisteredSchema(kind, text, tuple(found))
