"""The columns of the data source `kafka-log`: names, types in Spark and Arrow, and the parts to decode for each.

Columns that are not requested cost nothing: keys, values and headers are not copied. If a query needs only offsets and fields
of batch headers, records are skipped by their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.cleaner.spark.environment.spark_errors import SparkMisuse
from diamant.kernels.constants.columns import WANT_HEADERS, WANT_KEYS, WANT_SIZES, WANT_VALUES

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

CORRUPT_COLUMN = "_corrupt"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Kafka's -1 for "none" becomes `NULL`."""

    name: str
    type: str
    """The type in Spark's DDL."""
    help: str


COLUMNS = (
    Column("topic", "string", "Topic, from the name of the directory."),
    Column("partition", "int", "Partition, from the name of the directory."),
    Column("offset", "bigint", "Offset of the record."),
    Column("timestamp", "timestamp", "Timestamp of the record; NULL if it has none, or one that Spark cannot hold."),
    Column("timestamp_ms", "bigint", "The timestamp as stored, in ms since 1970; NULL for -1."),
    Column("timestamp_type", "string", "`CreateTime` or `LogAppendTime`; NULL for the format before Kafka 0.10."),
    Column("key", "binary", "Key."),
    Column("value", "binary", "Value; NULL for a tombstone."),
    Column("value_size", "int", "Size of the value in bytes, without decoding it; NULL for a tombstone."),
    Column("headers", HEADERS_TYPE, "Headers in order; empty if there are none."),
    Column("producer_id", "bigint", "Id of the idempotent or transactional producer."),
    Column("epoch", "smallint", "Epoch of the producer."),
    Column("sequence", "int", "The producer's sequence number for the record."),
    Column("is_transactional", "boolean", "Whether the record was written in a transaction."),
    Column("is_control", "boolean", "Whether the record is a transaction marker."),
    Column(
        "outcome",
        "string",
        "Outcome of its transaction: `committed`, `aborted` or `open`. Records outside of transactions are committed.",
    ),
    Column("leader_epoch", "int", "Epoch of the leader that appended the record."),
    Column("codec", "string", "Compression of its batch: `none`, `gzip`, `snappy`, `lz4` or `zstd`."),
    Column(
        "log_id",
        "bigint",
        "Number of the partition's directory. Copies of a partition in several log directories have different numbers.",
    ),
    Column("segment", "string", "The `.log` file that holds the record."),
    Column("position", "bigint", "Position of its batch in that file, in bytes."),
)
CORRUPT = Column(CORRUPT_COLUMN, "string", "With `mode=PERMISSIVE`: the error for bytes that could not be read.")
KEY_JSON, VALUE_JSON = "key_json", "value_json"
_DECODED = (
    "decoded by its schema (from `_schemas` in the log directory, or from the options), or unchanged if it is JSON; "
    "otherwise NULL. Not part of the default."
)
DECODED = (
    Column(KEY_JSON, "string", f"Key as JSON: {_DECODED}"),
    Column(VALUE_JSON, "string", f"Value as JSON: {_DECODED}"),
)
"""Columns that are not part of the default, because decoding a record takes some 10 to 100 µs."""
BY_NAME = {column.name: column for column in (*COLUMNS, *DECODED, CORRUPT)}

_WANTS = {
    "key": WANT_KEYS,
    "value": WANT_VALUES,
    "headers": WANT_HEADERS,
    "value_size": WANT_SIZES,
    KEY_JSON: WANT_KEYS | WANT_HEADERS,
    VALUE_JSON: WANT_VALUES | WANT_HEADERS,
}


def default_columns(*, is_permissive: bool) -> tuple[str, ...]:
    """Return the names of the columns that a source has if none were chosen."""
    names = tuple(column.name for column in COLUMNS)
    return (*names, CORRUPT_COLUMN) if is_permissive else names


def check_columns(names: Iterable[str], *, is_permissive: bool) -> tuple[str, ...]:
    """Return the names as a tuple. Raises SparkMisuse for unknown or repeated names."""
    known = (*default_columns(is_permissive=is_permissive), *(column.name for column in DECODED))
    chosen = tuple(names)
    for name in chosen:
        if name not in known:
            also = " (it needs mode=PERMISSIVE)" if name == CORRUPT_COLUMN else ""
            raise SparkMisuse(f"there is no column {name!r}{also}; expected some of {', '.join(known)}")
    if len(set(chosen)) < len(chosen):
        raise SparkMisuse(f"expected each column once, got {', '.join(chosen)}")
    if not chosen:
        raise SparkMisuse(f"expected at least one column of {', '.join(known)}")
    return chosen


def wants(names: Iterable[str]) -> int:
    """Return the bits of the requested columns, for the kernel."""
    found = 0
    for name in names:
        found |= _WANTS.get(name, 0)
    return found


def ddl(names: Sequence[str]) -> str:
    """Return the schema of these columns in Spark's DDL."""
    return ", ".join(f"`{name}` {BY_NAME[name].type}" for name in names)


def columns_of(schema: StructType, *, is_permissive: bool) -> tuple[str, ...]:
    """Return the columns of a schema. Raises SparkMisuse for unknown names or wrong types."""
    names = check_columns(schema.fieldNames(), is_permissive=is_permissive)
    for field in schema.fields:
        expected = BY_NAME[field.name].type
        if field.dataType.simpleString() != expected:
            raise SparkMisuse(
                f"column {field.name} is of type {expected}, the schema has {field.dataType.simpleString()}"
            )
    return names


def arrow_schema(names: Sequence[str]) -> pyarrow.Schema:
    """Return the schema of the Arrow batches: the one that Spark expects for `ddl(names)`."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types: dict[str, object] = {
        "string": pa.string(),
        "int": pa.int32(),
        "smallint": pa.int16(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        HEADERS_TYPE: pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(name, types[BY_NAME[name].type]) for name in names])
