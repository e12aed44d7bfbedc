"""Schemas in the files of a directory, by their names.

    42.avsc, 42.proto                 the schema with the id 42; a GUID, or the UUID of a version in AWS Glue, likewise
    orders-value.avsc, orders-key.proto   that of the values or keys of the topic `orders`, for ids without a file of their own

An `.avsc` file defines every type that it uses; a `.proto` file may import other files of the directory by their names.
"""

from __future__ import annotations

from diamant.cleaner.values.framing import FINGERPRINT, SchemaName
from diamant.cleaner.values.schemas import AVRO, MAX_SCHEMA_BYTES, PROTOBUF, NoSchema, SchemaText
from diamant.storage.env.env import Env

_SUFFIXES = {".avsc": AVRO, ".proto": PROTOBUF}
_MAX_FILES = 10_000


class SchemaDirectory:
    """The schemas of one directory (`SchemaSource`)."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema of a name, else that of the topic's keys or values. NoSchema if it cannot be read."""
        try:
            return self._find(name, f"{topic}-{field}")
        except OSError as error:
            raise NoSchema(f"{error.filename or self._path}: {error.strerror}") from None

    def _find(self, name: SchemaName, subject: str) -> SchemaText | None:
        files = set(self._env.list_dir(self._path)[:_MAX_FILES])
        kind, own = name
        stems = [] if kind == FINGERPRINT else [str(own)]
        for stem in [*stems, subject]:
            for suffix, schema_kind in _SUFFIXES.items():
                if stem + suffix in files:
                    return self._schema(stem + suffix, schema_kind, files)
        return None

    def _schema(self, file: str, kind: str, files: set[str]) -> SchemaText:
        others = (
            {} if kind == AVRO else {one: self._text(one) for one in sorted(files - {file}) if one.endswith(".proto")}
        )
        return SchemaText(kind, self._text(file), others)

    def _text(self, file: str) -> str:
        return self._env.read_bytes(f"{self._path}/{file}", MAX_SCHEMA_BYTES).decode(errors="replace")
