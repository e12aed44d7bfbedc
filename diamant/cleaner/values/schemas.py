"""Finds schemas in several sources, by the names in frames, and compiles each schema once.

A source is queried in the decoding thread, and may read files or call a registry. A schema that no source has counts as missing
for the lifetime of the `Schemas` object, which is one operation; `problems` says why.

Memory: `MAX_COMPILED` schemas of at most `MAX_SCHEMA_BYTES` each, references included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from diamant.cleaner.values.edits import Edit, NewValue, spliced
from diamant.cleaner.values.framing import GLUE, Frame, SchemaName, frame_of
from diamant.cleaner.values.nodes import Undecodable, plain
from diamant.protocol.batches.header import Header

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
"""The types of schemas, as named by registries."""

KEY, VALUE = "key", "value"

MAX_SCHEMA_BYTES = 1024 * 1024
"""Maximum size of a schema, including the schemas that it refers to."""
MAX_COMPILED = 1_000
MAX_PROBLEMS = 10


class NoSchema(Exception):
    """A source cannot provide a schema; the message says why."""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema as provided by its source."""

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    """Referenced schemas by the names in the references, each preceded by the schemas that it refers to itself."""


class SchemaSource(Protocol):
    """Finds schemas. Callable from any thread."""

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with this name for the `key` or `value` of a topic, or None. May block. May raise NoSchema."""
        ...


class Reader(NamedTuple):
    """Decodes the payloads of one schema, and changes fields in them."""

    read: Callable[[bytes], Any]
    """Returns the value (`nodes`). Raises Undecodable."""
    edits: Callable[[bytes, Sequence[str], NewValue], list[Edit]]
    """Returns the edits that change the fields at a path. Raises Undecodable, Unchangeable."""


class Schemas:
    """The schemas of several sources. The first source that has a schema is used. Usable from any thread."""

    def __init__(self, sources: Sequence[SchemaSource] = ()) -> None:
        self._sources = sources
        self._readers: dict[tuple[SchemaName, str, str], Reader | str] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Schemas], tuple[Sequence[SchemaSource]]]:
        return Schemas, (self._sources,)  # without compiled schemas

    def decode(self, frame: Frame, topic: str, field: str) -> Any:
        """Return the value in a frame (`nodes`). Raises Undecodable, for instance if no source has the schema."""
        return self._reader_of(frame, topic, field).read(frame.prefix + frame.payload())

    def change(
        self, frame: Frame, topic: str, field: str, changes: Sequence[tuple[Sequence[str], NewValue]]
    ) -> tuple[bytes, list[list[Edit]]]:
        """Return the payload of a frame with new values at some paths, and the edits for each path.

        Raises Undecodable, Unchangeable.
        """
        reader = self._reader_of(frame, topic, field)
        payload = frame.prefix + frame.payload()
        made: list[list[Edit]] = []
        for path, new in changes:
            made.append(reader.edits(payload, path, new))
            payload = spliced(payload, made[-1])
        return payload[len(frame.prefix) :], made

    def _reader_of(self, frame: Frame, topic: str, field: str) -> Reader:
        """Return the reader of a frame's schema. Raises Undecodable if there is none."""
        place = (frame.schema, topic, field)
        with self._lock:
            found = self._readers.get(place)
            if found is None:
                if len(self._readers) >= MAX_COMPILED:
                    self._readers.clear()
                found = self._readers[place] = self._reader(*place)
        if isinstance(found, str):
            raise Undecodable(found)
        return found

    @property
    def problems(self) -> list[str]:
        """The reasons why schemas are missing, at most `MAX_PROBLEMS`."""
        with self._lock:
            return list(dict.fromkeys(one for one in self._readers.values() if isinstance(one, str)))[:MAX_PROBLEMS]

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with this name from the first source that has it; None if no source has it."""
        found = self._find(name, topic, field)
        return None if isinstance(found, str) else found

    def _find(self, name: SchemaName, topic: str, field: str) -> SchemaText | str:
        """Return a schema as `find` does, or the reason why there is none."""
        reasons = []
        for one in self._sources:
            try:
                text = one.find(name, topic, field)
            except NoSchema as error:
                reasons.append(str(error))
                continue
            if text is not None:
                return text
        return ": ".join([f"no source has the schema with {name[0]} {name[1]}", *reasons])

    def _reader(self, name: SchemaName, topic: str, field: str) -> Reader | str:
        """Return the reader of a schema, or the reason why there is none."""
        text = self._find(name, topic, field)
        if isinstance(text, str):
            return text
        if len(text.text) + sum(map(len, text.references.values())) > MAX_SCHEMA_BYTES:
            return f"the schema with {name[0]} {name[1]} has more than {MAX_SCHEMA_BYTES:,} characters"
        try:
            if text.kind == AVRO:
                from diamant.cleaner.values.avro import AvroReader
                from diamant.cleaner.values.avro_edit import edit_avro

                avro = AvroReader(text.text, text.references)
                return Reader(avro.read, partial(edit_avro, avro.type))
            if text.kind == PROTOBUF:
                from diamant.cleaner.values.descriptor_set import source_of
                from diamant.cleaner.values.protobuf import ProtobufReader
                from diamant.cleaner.values.protobuf_edit import edit_protobuf

                references = {one: source_of(other) for one, other in text.references.items()}
                protobuf = ProtobufReader(source_of(text.text), references, is_of_glue=name[0] == GLUE)
                return Reader(protobuf.read, partial(edit_protobuf, protobuf))
        except (Undecodable, RecursionError) as error:
            return f"the schema with {name[0]} {name[1]} cannot be used: {error}"
        return f"schemas of type {text.kind} are not decoded"


@dataclass(frozen=True, slots=True)
class Values:
    """Decodes framed keys and values of one topic. Usable from any thread."""

    schemas: Schemas = field(default_factory=Schemas)
    """Without sources, every framed value is undecodable."""
    topic: str = ""

    def frame_of(self, record: FramedRecord, field: str, data: bytes | None = None) -> Frame | None:
        """Return the frame of the `key` or `value` of a record, or of a `header` with this `data`; None if it has none."""
        if data is None:
            data = record.key if field == KEY else record.value
        return None if data is None else frame_of(data, field, record.headers)

    def decode(self, frame: Frame, field: str) -> Any:
        """Return the value in a frame (`nodes`). Raises Undecodable."""
        return self.schemas.decode(frame, self.topic, field)

    def change(
        self, frame: Frame, field: str, changes: Sequence[tuple[Sequence[str], NewValue]]
    ) -> tuple[bytes, list[list[Edit]]]:
        """Return the payload with new values at some paths, and the edits for each path. Raises Undecodable, Unchangeable."""
        return self.schemas.change(frame, self.topic, field, changes)


class FramedRecord(Protocol):
    """A record with frames around its key and its value."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[Header]: ...


_UNKNOWN: Final = object()


class FramedParts(NamedTuple):
    """The parts of a record that decoding needs (`FramedRecord`)."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def json_text(record: FramedRecord, part: str, values: Values) -> str | None:
    """Return a key or a value as JSON: decoded by its schema, or unchanged if it is JSON; otherwise None."""
    frame = values.frame_of(record, part)
    if frame is not None:
        found = _decoded(frame, part, values)
        return None if found is _UNKNOWN else json.dumps(found)
    data = record.key if part == KEY else record.value
    try:
        json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return (data or b"").decode("utf-8-sig")


def decoded_fields(record: FramedRecord, values: Values) -> dict[str, object]:
    """Return the decoded key and value, if their schemas are known, as `key_json` and `value_json`."""
    found: dict[str, object] = {}
    for part in (KEY, VALUE):
        frame = values.frame_of(record, part)
        node = _UNKNOWN if frame is None else _decoded(frame, part, values)
        if node is not _UNKNOWN:
            found[f"{part}_json"] = node
    return found


def _decoded(frame: Frame, part: str, values: Values) -> object:
    """Return the value in a frame, for JSON; `_UNKNOWN` if it cannot be decoded."""
    try:
        return plain(values.decode(frame, part))
    except Undecodable:
        try:  # the payload may be JSON, from a JSON serializer
            return json.loads(frame.payload(), parse_constant=str)
        except (Undecodable, ValueError, RecursionError):
            return _UNKNOWN
