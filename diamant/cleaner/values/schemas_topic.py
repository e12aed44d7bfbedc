"""The schemas in the topic `_schemas`, which Confluent Schema Registry and Karapace write.

Its records have JSON in key and value. As in the registry, only the latest record of each key counts. Soft-deleted schemas are
still found, as they are by the registry's clients; a tombstone removes a schema. Records in any other form are skipped. The files
of the topic are read by path on first use, whether their broker is stopped or running.

Memory: `MAX_BYTES` of schemas; further schemas in the topic are ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
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
"""Maximum number of attempts to read the topic, because the cleaner may replace a file during an attempt."""


class RegisteredSchemas:
    """The schemas in records of the topic (`SchemaSource`). Can be pickled."""

    def __init__(self, records: Iterable[tuple[bytes | None, bytes | None]] = ()) -> None:
        """`records`: keys and values of the topic's records, in order."""
        self._by_name: dict[SchemaName, RegisteredSchema] = {}
        self._by_version: dict[tuple[str, int], RegisteredSchema] = {}
        for key, value in _latest(records).items():
            registered = parse_registered(value)
            if registered is not None:
                self._by_version[key] = registered
                for name in _names(value):
                    self._by_name[name] = registered

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with an id or a GUID."""
        del topic, field
        found = self._by_name.get(name)
        if found is None:
            return None
        return found.with_references(lambda subject, version: self._by_version.get((subject, version)))


class SchemasTopic:
    """The schemas of one data directory (`SchemaSource`)."""

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._path = f"{directory}/{names.partition_dir_name(SCHEMAS_TOPIC, 0)}"
        self._lock = Lock()
        self._found: RegisteredSchemas | None = None

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with an id or a GUID."""
        return self.load().find(name, topic, field)

    def load(self) -> RegisteredSchemas:
        """Return all schemas. The first call reads them."""
        with self._lock:
            if self._found is None:
                self._found = self._read()
        return self._found

    def _read(self) -> RegisteredSchemas:
        for _ in range(_ATTEMPTS):
            if not self._env.is_dir(self._path):
                return RegisteredSchemas()
            problems: list[Problem] = []
            found = RegisteredSchemas(self._records(problems.append))
            if not any(one.position is None for one in problems):
                break
        for problem in problems:
            logger.warning("schemas cannot be read: %s", problem)
        return found

    def _records(self, report: Report) -> Iterator[tuple[bytes | None, bytes | None]]:
        partition = list_partition(self._env, self._path, (SCHEMAS_TOPIC, 0), {})
        for segment in partition.segments:
            for batch in iter_batches(self._env, segment, report):
                if batch.header.is_control or not batch.header.record_count:
                    continue
                try:
                    for record in batch.records():
                        yield record.key, record.value
                except CorruptBatch as error:
                    report(Problem(segment.path, batch.position, error.reason))


def _latest(records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[tuple[str, int], Mapping[str, object]]:
    """Return the latest value of each subject and version, as far as the values fit into `MAX_BYTES`."""
    found: dict[tuple[str, int], bytes] = {}
    size = 0
    for key, value in records:
        version = _version(key)
        if version is None:
            continue
        size -= len(found.pop(version, b""))
        if value is not None and len(value) <= 2 * MAX_SCHEMA_BYTES:
            size += len(value)
            if size > MAX_BYTES:
                logger.warning("%s has more than %d bytes of schemas; the rest is not read", SCHEMAS_TOPIC, MAX_BYTES)
                break
            found[version] = value
    return {version: _object(value) for version, value in found.items()}


def _object(data: bytes | None) -> Mapping[str, object]:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _version(key: bytes | None) -> tuple[str, int] | None:
    """Return subject and version in the key of a record; None if the key is not that of a schema."""
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
