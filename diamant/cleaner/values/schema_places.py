"""Places in which schemas are found: the topic `_schemas` of a log directory, a directory of files, a registry.

The names of the files in a directory:

    42.avsc, 42.proto, 42.desc        the schema with the id 42. A GUID, or the UUID of a version in AWS Glue, may replace the id
    orders-value.avsc, orders-key.proto   values or keys of the topic `orders` whose schema's id has no file of its own

An `.avsc` file must define every type that it uses; a `.proto` file may import other files of the directory by their names. A
descriptor set (`.desc`, `.pb`, `.binpb`) contains its imports.
"""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.values.framing import FINGERPRINT, SchemaName
from diamant.cleaner.values.nodes import Undecodable
from diamant.cleaner.values.registry import RegistryAddress, SchemaRegistry
from diamant.cleaner.values.schemas import AVRO, MAX_SCHEMA_BYTES, PROTOBUF, NoSchema, Schemas, SchemaSource, SchemaText
from diamant.storage.env.env import Env

_DESCRIPTORS = "descriptor set"
_SUFFIXES = {".avsc": AVRO, ".proto": PROTOBUF, **dict.fromkeys((".desc", ".pb", ".binpb"), _DESCRIPTORS)}
_MAX_FILES = 10_000


class SchemaDirectory:
    """The schemas of one directory (`SchemaSource`)."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path

    def find(self, name: SchemaName, topic: str, field: str) -> SchemaText | None:
        """Return the schema with this name, else the one of the topic's keys or values. Raises NoSchema if it is unreadable."""
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
        if kind == _DESCRIPTORS:
            from diamant.cleaner.values.descriptor_set import parse_descriptor_set

            try:
                return SchemaText(PROTOBUF, *parse_descriptor_set(self._read(file)))
            except Undecodable as error:
                raise NoSchema(f"{self._path}/{file}: {error}") from None
        others = (
            {} if kind == AVRO else {one: self._text(one) for one in sorted(files - {file}) if one.endswith(".proto")}
        )
        return SchemaText(kind, self._text(file), others)

    def _text(self, file: str) -> str:
        return self._read(file).decode(errors="replace")

    def _read(self, file: str) -> bytes:
        return self._env.read_bytes(f"{self._path}/{file}", MAX_SCHEMA_BYTES)


@dataclass(frozen=True, slots=True)
class SchemaPlaces:
    """The places in which schemas are found besides the topic, which takes precedence. Can be pickled."""

    directory: str | None = None
    """A directory of files that `SchemaDirectory` can read."""
    registry: RegistryAddress | None = None

    @property
    def are_given(self) -> bool:
        """True if any place is given."""
        return self.directory is not None or self.registry is not None

    def schemas(self, env: Env, *first: SchemaSource) -> Schemas:
        """Return the schemas for one operation, which are read when needed. `first`: sources that take precedence."""
        sources = [*first]
        if self.directory is not None:
            sources.append(SchemaDirectory(env, self.directory))
        if self.registry is not None:
            sources.append(SchemaRegistry(self.registry))
        return Schemas(sources)
