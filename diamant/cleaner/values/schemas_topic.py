"""The schemas in the topic `_schemas` of a data directory, which Confluent Schema Registry and Karapace write.

Its records have JSON in key and value; the latest of each key counts, as for the registry. Schemas that were deleted softly are
still there, as they are for the registry's clients; a tombstone takes a schema away. Records that are not of this form are
skipped. The files are read with the first use, by path: those of a stopped broker, or below a running one.

Memory: `MAX_BYTES` of schemas; a topic with more counts as having none beyond.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from threading import Lock
from uuid import UUID

from diamant.cleaner.segments.tolerant_reader import Problem, Report, iter_batches, list_partition
from diamant.cleaner.values.framing import GUID, ID, SchemaName
from diamant.cleaner.values.registered import RegisteredSchema, parse_registered
from diamant.cleaner.values.schemas import MAX_SCHEMA_BYTES, SchemaText
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.env.env import Env

logger = logging.getLogger(__name__)

SCHEMAS_TOPIC = "_schemas"
MAX_BYTES = 256 * 1024 * 1024
_ATTEMPTS = 3
"""The cleaner may replace a file while the topic is read."""


class SchemasTopic:
    """The schemas of one data directory (`SchemaSource`)."""

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._path = f"{directory}/{names.partition_dir_name(SCHEMAS_TOPIC, 0)}"
        self._lock = Lock()
        self._by_name: dict[SchemaName, RegisteredSchema] | None = None
        self._by_version: dict[tuple[str, int], RegisteredSchema] = {}

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with an id or a GUID."""
        del topic, field
        with self._lock:
            if self._by_name is None:
                self._by_name = self._load()
        found = self._by_name.get(name)
        if found is None:
            return None
        return found.with_references(lambda subject, version: self._by_version.get((subject, version)))

    def _load(self) -> dict[SchemaName, RegisteredSchema]:
        for _ in range(_ATTEMPTS):
            if not self._env.is_dir(self._path):
                return {}
            problems: list[Problem] = []
            values = self._latest(problems.append)
            if not any(one.position is None for one in problems):
                break
        for problem in problems:
            logger.warning("schemas cannot be read: %s", problem)
        by_name: dict[SchemaName, RegisteredSchema] = {}
        for key, value in values.items():
            registered = parse_registered(value)
            if registered is not None:
                self._by_version[key] = registered
                for name in _names(value):
                    by_name[name] = registered
        return by_name

    def _latest(self, report: Report) -> dict[tuple[str, int], Mapping[str, object]]:
        """Return the latest value of each subject and version."""
        found: dict[tuple[str, int], bytes] = {}
        size = 0
        partition = list_partition(self._env, self._path, (SCHEMAS_TOPIC, 0), {})
        for segment in partition.segments:
            for batch in iter_batches(self._env, segment, report):
                if batch.header.is_control or not batch.header.record_count:
                    continue
                try:
                    for record in batch.records():
                        key = _version(record.key)
                        if key is None:
                            continue
                        size -= len(found.pop(key, b""))
                        if record.value is not None and len(record.value) <= 2 * MAX_SCHEMA_BYTES:
                            size += len(record.value)
                            if size > MAX_BYTES:
                                report(Problem(segment.path, batch.position, f"more than {MAX_BYTES} bytes of schemas"))
                                return {key: _object(value) for key, value in found.items()}
                            found[key] = record.value
                except CorruptBatch as error:
                    report(Problem(segment.path, batch.position, error.reason))
        return {key: _object(value) for key, value in found.items()}


def _object(data: bytes | None) -> Mapping[str, object]:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _version(key: bytes | None) -> tuple[str, int] | None:
    """Return subject and version in the key of a record; None if it has no schema."""
    found = _object(key)
    subject, version = found.get("subject"), found.get("version")
    is_schema = found.get("keytype") == "SCHEMA" and isinstance(subject, str) and isinstance(version, int)
    return (subject, version) if is_schema else None  # type: ignore[return-value]


def _names(value: Mapping[str, object]) -> list[SchemaName]:
    found: list[SchemaName] = []
    schema_id, guid = value.get("id"), value.get("guid")
    if isinstance(schema_id, int):
        found.append((ID, schema_id))
    if isinstance(guid, str):
        try:
            found.append((GUID, UUID(guid)))
        except ValueError:
            pass
    return found
