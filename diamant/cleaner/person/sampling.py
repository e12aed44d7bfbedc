"""Samples of topics: the places in their records, the number of values at each place, and what these values look like.

Values are kept only as 64-bit hashes with a secret of this process, so a sample holds no personal data.

Memory: some 100 bytes for each value, with at most `MAX_PLACES` places per topic and `MAX_NODES` values per record.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diamant.cleaner.person.places import WHOLE_KEY, FieldPath, Parts, identifier_text
from diamant.cleaner.person.shapes import Sign, is_local_phone, sign_of_value
from diamant.cleaner.redaction.where import HEADER
from diamant.cleaner.values.framing import SchemaName
from diamant.cleaner.values.nodes import Object
from diamant.cleaner.values.schemas import KEY, VALUE, SchemaText, Values
from diamant.protocol.batches.header import Record

MAX_VALUE_BYTES = 64 * 1024
"""Records with a larger key or value are left out of samples."""
MAX_PLACES = 500
MAX_NODES = 1_000
_MAX_DEPTH = 20
_SHORT = 4
"""Minimum characters of a value that is compared with other places; shorter ones occur in many places by chance."""

_PROTO_TAGS = "field_meta"
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r'"([^"]*)"')


@dataclass(slots=True)
class PlaceSample:
    """The values at one place."""

    records: int = 0
    """Number of records with a value at the place."""
    values: Counter[int] = field(default_factory=Counter)
    telling: set[int] = field(default_factory=set)
    """The values that are long enough for a comparison with other places."""
    signs: Counter[Sign] = field(default_factory=Counter)
    local_phones: int = 0

    @property
    def is_varied(self) -> bool:
        """True if the place has many different values. A place with a single value, or only a few values, identifies no one."""
        distinct = len(self.values)
        return distinct >= 2 and (distinct >= 10 or distinct * 10 >= self.values.total())


@dataclass(slots=True)
class TopicSample:
    """Some records of a topic."""

    topic: str
    is_compacted: bool = False
    records: int = 0
    undecodable: int = 0
    places: dict[FieldPath, PlaceSample] = field(default_factory=dict)
    """Places of strings and whole numbers."""
    paths: set[FieldPath] = field(default_factory=set)
    """All places with a value other than null, including objects and dates."""
    rows: list[dict[FieldPath, tuple[int, ...]]] = field(default_factory=list)
    """For each record, the hashes of its values by place."""
    tombstones: set[int] = field(default_factory=set)
    """Positions of tombstones in `rows`."""
    tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tags in the schemas, by field name."""
    _schemas: set[tuple[SchemaName, str]] = field(default_factory=set)
    """Schemas whose tags are in `tags`."""

    def add(self, record: Record, values: Values) -> None:
        """Add a record."""
        self.records += 1
        self._add_tags(record, values)
        row: dict[FieldPath, tuple[int, ...]] = {}
        for place, texts in self._texts(record, values).items():
            sample = self.places.get(place)
            if sample is None:
                if len(self.places) >= MAX_PLACES:
                    continue
                sample = self.places[place] = PlaceSample()
            sample.records += 1
            hashes = tuple(map(hash, texts))
            row[place] = hashes
            sample.values.update(hashes)
            for text, hashed in zip(texts, hashes, strict=True):
                if len(text) >= _SHORT:
                    sample.telling.add(hashed)
                sign = sign_of_value(text)
                if sign is not None:
                    sample.signs[sign] += 1
                sample.local_phones += is_local_phone(text)
        if record.value is None:
            self.tombstones.add(len(self.rows))
        self.rows.append(row)

    def _add_tags(self, record: Record, values: Values) -> None:
        for part in (KEY, VALUE):
            frame = values.frame_of(record, part)
            if frame is not None and (frame.schema, part) not in self._schemas:
                self._schemas.add((frame.schema, part))
                text = values.schemas.find(frame.schema, self.topic, part)
                if text is not None:
                    self.tags |= tags_of(text)

    def _texts(self, record: Record, values: Values) -> dict[FieldPath, list[str]]:
        parts = Parts(record, values)
        found: dict[FieldPath, list[str]] = {}
        for name, value in record.headers:
            text = identifier_text(value)
            if text is not None and not name.startswith("__"):
                place = FieldPath(HEADER, (name,))
                self.paths.add(place)
                found.setdefault(place, []).append(text)
        for name, data in ((KEY, record.key), (VALUE, record.value)):
            if data is None:
                continue
            root = parts.root(name)
            if isinstance(root, Object | list):
                for path, node in nodes_in(root):
                    place = FieldPath(name, path)
                    if len(self.paths) < 2 * MAX_PLACES:
                        self.paths.add(place)
                    if (text := identifier_text(node)) is not None:
                        found.setdefault(place, []).append(text)
            elif name == KEY and values.frame_of(record, KEY) is None and (text := identifier_text(data)) is not None:
                found[WHOLE_KEY] = [text]
                self.paths.add(WHOLE_KEY)
            elif name == VALUE:
                self.undecodable += 1
        return found


def nodes_in(root: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield up to `MAX_NODES` non-null values below `root` with the names that lead to them; lists yield their items."""
    left: list[tuple[tuple[str, ...], Any]] = [((), root)]
    count = 0
    while left and count < MAX_NODES:
        path, node = left.pop()
        if isinstance(node, list):
            left += [(path, one) for one in node]
            continue
        if path and node is not None:
            count += 1
            yield path, node
        if isinstance(node, Object) and len(path) < _MAX_DEPTH:
            left += [((*path, name), value) for name, value in node]


def tags_of(schema: SchemaText) -> dict[str, tuple[str, ...]]:
    """Return the tags (`confluent:tags`) in a schema and in the schemas that it refers to, by field name."""
    found: dict[str, tuple[str, ...]] = {}
    for text in (schema.text, *schema.references.values()):
        try:
            _collect_tags(json.loads(text), "", found)
        except (ValueError, RecursionError):
            for statement in text.split(";"):
                declared, _, options = statement.partition("[")
                words = _WORD.findall(declared.rpartition("=")[0])
                if _PROTO_TAGS in options and words:
                    found[words[-1]] = tuple(_QUOTED.findall(options))
    return found


def _collect_tags(node: Any, name: str, found: dict[str, tuple[str, ...]]) -> None:
    """Collect tags from Avro schemas, in which a field has a `name`, and JSON schemas, in which a field's key is its name."""
    if isinstance(node, list):
        for one in node:
            _collect_tags(one, name, found)
    elif isinstance(node, Mapping):
        own = node.get("name", name)
        tags = node.get("confluent:tags")
        if isinstance(tags, list) and isinstance(own, str):
            found[own] = tuple(str(tag) for tag in tags)
        for key, value in node.items():
            if isinstance(value, dict | list):
                _collect_tags(value, key if isinstance(key, str) else name, found)
