"""The options of the data source `kafka-log`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from diamant.cleaner.spark.environment.spark_errors import SparkMisuse
from diamant.cleaner.spark.source.shipped_schemas import ShippedSchemas
from diamant.cleaner.spark.source.source_columns import check_columns, default_columns
from diamant.cleaner.values.registry import registry_address
from diamant.cleaner.values.schema_places import SchemaPlaces

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
FAILFAST = "FAILFAST"
PERMISSIVE = "PERMISSIVE"
DEFAULT_SPLIT_BYTES = 128 * 1024 * 1024
DEFAULT_MAP_BYTES = 256 * 1024 * 1024
_MIN_MAP_BYTES = 1024 * 1024

HELP = {
    "path": "A log directory, a partition's directory, a glob of either, or a `file:` or `s3:` URI. `load(path)` sets it.",
    "paths": "Several paths, as a JSON list. `load([path, ...])` sets it.",
    "columns": "Columns to decode, separated by commas. Default: all. `.schema(...)` does the same.",
    "topics": "Topics to read, separated by commas. Default: all except the metadata log.",
    "isolation": "`read_uncommitted` (default) or `read_committed`: no aborted records, and none from the oldest open "
    "transaction on.",
    "include_control": "`true`: include transaction markers.",
    "include_below_log_start": "`true`: include deleted records in segments that still exist.",
    "latest_per_key": "`true`: only the latest committed record of each key, as in a log that is compacted to its end. One "
    "task per partition.",
    "map_bytes": "Memory of a task for the keys of `latest_per_key`; further keys are written to a temporary file. Default: "
    "256 MiB.",
    "containing": "A string: skip batches that do not contain its bytes, without decoding their records. All records of the "
    "other batches are returned.",
    "mode": "`FAILFAST` (default) fails the job at a corrupt batch; `PERMISSIVE` returns a row for it, with `_corrupt` set.",
    "split_bytes": "Split larger segments into tasks of about this size. 0: never. Default: 128 MiB.",
    "trust_indexes": "`false`: read all batch headers instead of index files and producer snapshots, which may be damaged.",
    "schema_directory": "Schemas in files, for `key_json` and `value_json`: `42.avsc`, `42.proto` or `42.desc` for the id 42, "
    "`orders-value.avsc` for all values of `orders`. Executors read it, too.",
    "registry": "URL of a schema registry with Confluent's REST API, which executors query.",
    "registry_user": "The login at the registry, NAME:PASSWORD-FILE; the driver reads the file.",
    "registry_token_file": "A file with a token for the registry; the driver reads the file.",
    "registry_ca": "A file of PEM certificates to trust for the registry; executors read it. Default: the system's certificates.",
    "counters": "A directory in which each task writes a file with the amounts read and decoded.",
}
"""Help texts of the options, for the documentation."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    topics: tuple[str, ...] = ()
    """Topics to read; empty for all but the metadata log."""
    is_committed: bool = False
    include_control: bool = False
    include_below_log_start: bool = False
    latest_per_key: bool = False
    map_bytes: int = DEFAULT_MAP_BYTES
    is_permissive: bool = False
    split_bytes: int = DEFAULT_SPLIT_BYTES
    trust_indexes: bool = True
    counters: str | None = None
    containing: str = ""
    schema_places: SchemaPlaces = field(default_factory=SchemaPlaces)
    schemas: ShippedSchemas | None = None
    """The schemas that the driver has read; None if no decoded column is requested."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options, whose names are case-insensitive. Raises SparkMisuse with the name of an invalid option."""
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - set(HELP))
        if unknown:
            raise SparkMisuse(f"there is no option {unknown[0]!r}; expected {', '.join(sorted(HELP))}")
        is_permissive = _choice(options, "mode", FAILFAST, PERMISSIVE) == PERMISSIVE
        latest_per_key = _flag(options, "latest_per_key", False)
        isolation = _choice(options, "isolation", READ_UNCOMMITTED, READ_COMMITTED)
        include_control = _flag(options, "include_control", False)
        if latest_per_key:
            if isolation == READ_UNCOMMITTED and "isolation" in options:
                raise SparkMisuse("latest_per_key reads committed records only: expected isolation=read_committed")
            if include_control or is_permissive or options.get("containing"):
                raise SparkMisuse(
                    "latest_per_key cannot be combined with include_control, containing and mode=PERMISSIVE"
                )
        names = _names(options.get("columns", ""))
        return cls(
            paths=_paths(options),
            columns=check_columns(names, is_permissive=is_permissive)
            if names
            else default_columns(is_permissive=is_permissive),
            topics=_names(options.get("topics", "")),
            is_committed=latest_per_key or isolation == READ_COMMITTED,
            include_control=include_control,
            include_below_log_start=_flag(options, "include_below_log_start", False),
            latest_per_key=latest_per_key,
            map_bytes=max(_MIN_MAP_BYTES, _count(options, "map_bytes", DEFAULT_MAP_BYTES)),
            is_permissive=is_permissive,
            split_bytes=_count(options, "split_bytes", DEFAULT_SPLIT_BYTES),
            trust_indexes=_flag(options, "trust_indexes", True),
            counters=options.get("counters"),
            containing=options.get("containing", ""),
            schema_places=_schema_places(options),
        )


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    if options.get("paths"):
        try:
            found = json.loads(options["paths"])
        except ValueError:
            found = [None]
        if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
            raise SparkMisuse(f"option paths: expected a JSON list of strings, got {options['paths']!r}")
    if options.get("path"):
        found.append(options["path"])
    if not found:
        raise SparkMisuse('expected a path: spark.read.format("kafka-log").load("/var/lib/kafka")')
    return tuple(found)


def _schema_places(options: Mapping[str, str]) -> SchemaPlaces:
    url, user, token_file, ca = (
        options.get(name) for name in ("registry", "registry_user", "registry_token_file", "registry_ca")
    )
    if url is None and (user or token_file or ca):
        raise SparkMisuse("option registry: expected a URL, because a user, token or CA of a registry is given")
    try:
        address = None if url is None else registry_address(url, user, token_file, ca)
    except (ValueError, OSError) as error:
        raise SparkMisuse(f"option registry: {error}") from None
    return SchemaPlaces(options.get("schema_directory"), address)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise SparkMisuse(f"option {name}: expected true or false, got {options[name]!r}")
    return value == "true"


def _choice(options: Mapping[str, str], name: str, default: str, other: str) -> str:
    value = options.get(name, default)
    for choice in (default, other):
        if value.lower() == choice.lower():
            return choice
    raise SparkMisuse(f"option {name}: expected {default} or {other}, got {value!r}")


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name, str(default))
    try:
        count = int(value)
    except ValueError:
        count = -1
    if count < 0:
        raise SparkMisuse(f"option {name}: expected a number of bytes, 0 or more, got {value!r}")
    return count
