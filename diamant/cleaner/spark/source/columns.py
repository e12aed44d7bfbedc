"""The columns of the data source `kafka-log`: names, types in Spark and Arrow, and the parts to decode for each.

Columns that are not requested cost nothing: keys, values and headers are not copied. If a query needs only offsets and fields
of batch headers, records are skipped by their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diamant.cleaner.spark.environment.errors import SparkError
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
    Column("timestamp_ms", "bigint", "The same as stored: ms since 1970, NULL for -1."),
    Column("timestamp_type", "string", "`CreateTime` or `LogAppendTime`; NULL for records of before Kafka 0.10."),
    Column("key", "binary", "Key."),
    Column("value", "binary", "Value; NULL is a tombstone."),
    Column("value_size", "int", "Bytes of the value, which is not decoded for it; NULL is a tombstone."),
    Column("headers", HEADERS_TYPE, "Headers in their order; empty if there are none."),
    Column("producer_id", "bigint", "Id of an idempotent or transactional producer."),
    Column("epoch", "smallint", "Its epoch."),
    Column("sequence", "int", "Its sequence number of the record."),
    Column("is_transactional", "boolean", "Whether the record was written in a transaction."),
    Column("is_control", "boolean", "Whether it is the marker of a transaction's end."),
    Column(
        "outcome",
        "string",
        "`committed`, `aborted` or `open`: how its transaction ended; records outside of one are committed.",
    ),
    Column("leader_epoch", "int", "Epoch of the leader that appended it."),
    Column("codec", "string", "`none`, `gzip`, `snappy`, `lz4` or `zstd`: how its batch is compressed."),
    Column(
        "log_id",
        "bigint",
        "A number for the partition's directory: of a partition with copies in several log directories each has its own.",
    ),
    Column("segment", "string", "The `.log` file that it lies in."),
    Column("position", "bigint", "Where its batch begins in that file, bytes."),
)
CORRUPT = Column(CORRUPT_COLUMN, "string", "With `mode=PERMISSIVE`: what is wrong with bytes that could not be read.")
BY_NAME = {column.name: column for column in (*COLUMNS, CORRUPT)}

_WANTS = {"key": WANT_KEYS, "value": WANT_VALUES, "headers": WANT_HEADERS, "value_size": WANT_SIZES}


def default_columns(*, is_permissive: bool) -> tuple[str, ...]:
    """Return the names of the columns of a source if none were chosen."""
    names = tuple(column.name for column in COLUMNS)
    return (*names, CORRUPT_COLUMN) if is_permissive else names


def check_columns(names: Iterable[str], *, is_permissive: bool) -> tuple[str, ...]:
    """Return the names as a tuple. Raises SparkError for unknown or repeated names."""
    known = default_columns(is_permissive=is_permissive)
    chosen = tuple(names)
    for name in chosen:
        if name not in known:
            also = " (it needs mode=PERMISSIVE)" if name == CORRUPT_COLUMN else ""
            raise SparkError(f"there is no column {name!r}{also}; expected some of {', '.join(known)}")
    if len(set(chosen)) < len(chosen):
        raise SparkError(f"expected each column once, got {', '.join(chosen)}")
    if not chosen:
        raise SparkError(f"expected at least one column of {', '.join(known)}")
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
    """Return the columns of a schema. Raises SparkError for unknown names or wrong types."""
    names = check_columns(schema.fieldNames(), is_permissive=is_permissive)
    for field in schema.fields:
        expected = BY_NAME[field.name].type
        if field.dataType.simpleString() != expected:
            raise SparkError(
                f"column {field.name} is of type {expected}, the schema has {field.dataType.simpleString()}"
            )
    return names


def arrow_schema(names: Sequence[str]) -> pyarrow.Schema:
    """Return the schema of the Arrow batches, as Spark expects it for `ddl(names)`."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types: dict[str, Any] = {
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
