"""Converts the records in some rows of a chunk to Arrow batches, which have only the requested columns.

The kernel copies the bytes once, into buffers that Arrow uses without another copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diamant.cleaner.spark.source.partition_logs import log_id
from diamant.cleaner.spark.source.source_columns import CORRUPT_COLUMN, KEY_JSON, VALUE_JSON, arrow_schema, wants
from diamant.cleaner.values.schemas import KEY, VALUE, FramedParts, Schemas, Values, json_text
from diamant.kernels.columns import walk_records
from diamant.kernels.constants import columns, fields
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.header import Header

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from diamant.cleaner.spark.environment.locations import Location
    from diamant.cleaner.spark.source.shipped_schemas import ShippedSchemas

_NO_BYTES = np.empty(0, np.uint8)
_NO_ENDS = np.zeros(1, np.int32)
_NO_FLAGS = np.empty(0, np.bool_)
_MAX_MS = (2**63 - 1) // 1000
_CODECS = np.array([*CODEC_NAMES, "unknown", "unknown", "unknown"])
OUTCOMES = ["committed", "aborted", "open"]
"""Names indexed by the field KEPT of a batch (`transaction_outcomes.Outcome`)."""
_CREATE_TIME = "CreateTime"
_LOG_APPEND_TIME = "LogAppendTime"
_EPOCH_AT = 51
_SEQUENCE_AT = 53
_LEADER_EPOCH_AT = 12


class ArrowColumns:
    """Makes Arrow batches from the records of one file. Memory: a copy of the records that one call converts."""

    def __init__(
        self,
        names: Sequence[str],
        topic: str,
        partition: int,
        location: Location,
        schemas: ShippedSchemas | None = None,
    ) -> None:
        """`schemas` are needed for the columns `key_json` and `value_json` only."""
        log_directory = location.parent.parent
        self._values = Values(Schemas() if schemas is None else schemas.schemas(log_directory), topic)
        segment = str(location)
        self.schema = arrow_schema(names)
        self.want = wants(names)
        self._names = tuple(names)
        self._topic = topic
        self._partition = partition
        self._segment = segment
        self._log_number = log_id(location.parent)
        self._makers: dict[str, Callable[[_Table], Any]] = {
            "topic": lambda table: _repeat(topic, table.count),
            "partition": self._number_of_partition,
            "offset": self._offset,
            "timestamp": self._timestamp,
            "timestamp_ms": self._timestamp_ms,
            "timestamp_type": self._timestamp_type,
            "key": self._key,
            "value": self._value,
            "value_size": self._value_size,
            "headers": self._headers,
            "producer_id": self._producer_id,
            "epoch": self._epoch,
            "sequence": self._sequence,
            "is_transactional": self._is_transactional,
            "is_control": self._is_control,
            "outcome": self._outcome,
            "leader_epoch": self._leader_epoch,
            "codec": self._codec,
            "log_id": self._log_id,
            "segment": lambda table: _repeat(segment, table.count),
            "position": self._position,
            KEY_JSON: lambda table: self._json(table, KEY),
            VALUE_JSON: lambda table: self._json(table, VALUE),
            CORRUPT_COLUMN: self._no_fault,
        }

    def room(self, records: int, payload_bytes: int) -> ColumnBuffers:
        """Return buffers for `records` records of `payload_bytes` bytes in total."""
        return ColumnBuffers(self.want, records, payload_bytes)

    def batch(self, room: ColumnBuffers, chunk: RowSource) -> pyarrow.RecordBatch:
        """Return the content of `room` as an Arrow batch; `chunk` is the source of its rows."""
        import pyarrow as pa

        table = _Table(room, chunk)
        arrays = [self._makers[name](table) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def corrupt(self, reason: str, position: int) -> pyarrow.RecordBatch:
        """Return an Arrow batch of one row that reports unreadable bytes."""
        import pyarrow as pa

        known = {
            "topic": self._topic,
            "partition": self._partition,
            "log_id": self._log_number,
            "segment": self._segment,
            "position": position,
            CORRUPT_COLUMN: reason,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array([known.get(field.name)], field.type) for field in self.schema], schema=self.schema
        )

    # -- columns --------------------------------------------------------------------------------------------------------

    def _number_of_partition(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.array(np.full(table.count, self._partition, np.int32))

    def _offset(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.array(table.fixed[columns.OFFSET])

    def _timestamp(self, table: _Table) -> Any:
        import pyarrow as pa

        stored = table.fixed[columns.TIMESTAMP]
        is_null = (stored == -1) | (stored > _MAX_MS) | (stored < -_MAX_MS)
        return pa.array(np.where(is_null, 0, stored) * 1000, pa.timestamp("us", tz="UTC"), mask=is_null)

    def _timestamp_ms(self, table: _Table) -> Any:
        return _nullable(table.fixed[columns.TIMESTAMP])

    def _timestamp_type(self, table: _Table) -> Any:
        import pyarrow as pa

        kinds = table.of_batch(fields.NOTE).astype(np.int8)
        indices = pa.array(kinds, mask=kinds < 0)
        return pa.DictionaryArray.from_arrays(indices, pa.array([_CREATE_TIME, _LOG_APPEND_TIME])).dictionary_decode()

    def _key(self, table: _Table) -> Any:
        room = table.room
        return _binary(room.keys, room.key_ends, room.has_key, table.count)

    def _value(self, table: _Table) -> Any:
        room = table.room
        return _binary(room.values, room.value_ends, room.has_value, table.count)

    def _value_size(self, table: _Table) -> Any:
        return _nullable(table.fixed[columns.VALUE_SIZE].astype(np.int32))

    def _headers(self, table: _Table) -> Any:
        import pyarrow as pa

        room, count = table.room, table.room.header_count
        keys = _text(room.header_keys, room.header_key_ends, count)
        values = _binary(room.header_values, room.header_value_ends, room.has_header_value, count)
        kind = arrow_schema(["headers"]).field("headers").type
        headers = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
        ends = pa.array(room.header_ends[: table.count + 1])
        return pa.ListArray.from_arrays(ends, headers, type=kind)

    def _json(self, table: _Table, part: str) -> Any:
        import pyarrow as pa

        data = (self._key(table) if part == KEY else self._value(table)).to_pylist()
        texts = []
        for one, some in zip(data, self._headers(table).to_pylist(), strict=True):
            headers = [Header(header["key"], header["value"]) for header in some]
            texts.append(json_text(FramedParts(one, one, headers), part, self._values))
        return pa.array(texts, pa.string())

    def _producer_id(self, table: _Table) -> Any:
        return _nullable(table.of_batch(fields.PRODUCER_ID))

    def _epoch(self, table: _Table) -> Any:
        return _nullable(table.of_header(_EPOCH_AT, ">i2").astype(np.int16))

    def _sequence(self, table: _Table) -> Any:
        first = table.of_header(_SEQUENCE_AT, ">i4").astype(np.int64)
        delta = table.fixed[columns.OFFSET] - table.of_batch(fields.BASE_OFFSET)
        # Sequence numbers wrap around: 0 follows 2147483647.
        return _nullable(np.where(first == -1, -1, first + delta & 0x7FFFFFFF).astype(np.int32))

    def _is_transactional(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.array(table.of_batch(fields.ATTRIBUTES) & fields.TRANSACTIONAL != 0)

    def _is_control(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.array(table.of_batch(fields.ATTRIBUTES) & fields.CONTROL != 0)

    def _outcome(self, table: _Table) -> Any:
        import pyarrow as pa

        indices = pa.array(table.of_batch(fields.KEPT).astype(np.int8))
        return pa.DictionaryArray.from_arrays(indices, pa.array(OUTCOMES)).dictionary_decode()

    def _leader_epoch(self, table: _Table) -> Any:
        return _nullable(table.of_header(_LEADER_EPOCH_AT, ">i4").astype(np.int32))

    def _log_id(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.array(np.full(table.count, self._log_number, np.int64))

    def _codec(self, table: _Table) -> Any:
        import pyarrow as pa

        indices = pa.array((table.of_batch(fields.ATTRIBUTES) & fields.CODEC_MASK).astype(np.int8))
        return pa.DictionaryArray.from_arrays(indices, pa.array(_CODECS.tolist())).dictionary_decode()

    def _position(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.array(table.of_batch(fields.POSITION) + table.chunk.position)

    def _no_fault(self, table: _Table) -> Any:
        import pyarrow as pa

        return pa.nulls(table.count, pa.string())


class RowSource:
    """The input of a conversion: the bytes of a file from `position` on, and a table of the batches in them."""

    def __init__(self, position: int, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        self.position = position
        self.data = data
        self.rows = rows


class ColumnBuffers:
    """The memory that the kernel writes to. Untouched pages cost nothing."""

    def __init__(self, want: int, records: int, payload_bytes: int) -> None:
        self.state = np.zeros(columns.STATE_FIELDS, np.int64)
        self.fixed = np.empty((columns.FIXED, records), np.int64)
        wants_keys, wants_values, wants_headers = (
            bool(want & bit) for bit in (columns.WANT_KEYS, columns.WANT_VALUES, columns.WANT_HEADERS)
        )
        # A header takes at least two bytes.
        headers = payload_bytes // 2 + 1 if wants_headers else 0
        self.keys, self.key_ends, self.has_key = _buffers(wants_keys, records, payload_bytes)
        self.values, self.value_ends, self.has_value = _buffers(wants_values, records, payload_bytes)
        self.header_ends = _ends(records) if wants_headers else _NO_ENDS
        self.header_keys, self.header_key_ends, _ = _buffers(wants_headers, headers, payload_bytes)
        self.header_values, self.header_value_ends, self.has_header_value = _buffers(
            wants_headers, headers, payload_bytes
        )

    @property
    def count(self) -> int:
        """Number of records in the buffers."""
        return int(self.state[columns.COUNT])

    @property
    def header_count(self) -> int:
        """Number of headers of these records."""
        return int(self.state[columns.HEADERS])

    @property
    def walked(self) -> int:
        """Number of records parsed."""
        return int(self.state[columns.WALKED])

    @property
    def copied_bytes(self) -> int:
        """Bytes of keys, values and headers in the buffers."""
        count, headers = self.count, self.header_count
        ends = [(self.key_ends, count), (self.value_ends, count)]
        ends += [(self.header_key_ends, headers), (self.header_value_ends, headers)]
        return sum(int(end[at]) for end, at in ends if len(end) > at)

    def fill(
        self,
        chunk: RowSource,
        unpacked: NDArray[np.uint8],
        first_row: int,
        end_row: int,
        step: int,
        bounds: NDArray[np.int64],
        only: NDArray[np.int64] | None,
        want: int,
    ) -> tuple[int, int]:
        """Append the records of the rows with STEP `step`. Return (fault, row) like `walk_records`."""
        return walk_records(
            chunk.data,
            unpacked,
            chunk.rows,
            first_row,
            end_row,
            step,
            bounds,
            _NO_OFFSETS if only is None else only,
            only is not None,
            want,
            self.state,
            self.fixed,
            self.keys,
            self.key_ends,
            self.has_key,
            self.values,
            self.value_ends,
            self.has_value,
            self.header_ends,
            self.header_keys,
            self.header_key_ends,
            self.header_values,
            self.header_value_ends,
            self.has_header_value,
        )


_NO_OFFSETS = np.empty(0, np.int64)


class _Table:
    """The records in some buffers, and their batches."""

    def __init__(self, room: ColumnBuffers, chunk: RowSource) -> None:
        self.room = room
        self.chunk = chunk
        self.count = room.count
        self.fixed = room.fixed[:, : room.count]
        self._rows = self.fixed[columns.ROW]

    def of_batch(self, field: int) -> NDArray[np.int64]:
        """Return, for each record, a field of its batch in the chunk's table."""
        found: NDArray[np.int64] = self.chunk.rows[field][self._rows]
        return found

    def of_header(self, at: int, kind: str) -> NDArray[Any]:
        """Return, for each record, an integer from its batch's header; -1 for old formats."""
        size = np.dtype(kind).itemsize
        count = int(self._rows.max()) + 1 if self.count else 0
        rows = self.chunk.rows[:, :count]
        places = rows[fields.POSITION][:, None] + np.arange(at, at + size)
        found = self.chunk.data[np.minimum(places, len(self.chunk.data) - 1)].view(kind)[:, 0]
        of_rows = np.where(rows[fields.MAGIC] == 2, found, -1)
        of_records: NDArray[Any] = of_rows[self._rows]
        return of_records


def _buffers(is_wanted: bool, count: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_]]:
    if not is_wanted:
        return _NO_BYTES, _NO_ENDS, _NO_FLAGS
    return np.empty(size, np.uint8), _ends(count), np.empty(count, np.bool_)


def _ends(count: int) -> NDArray[np.int32]:
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    return ends


def _repeat(text: str, count: int) -> Any:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)


def _nullable(values: NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.array(values, mask=values == -1)


def _binary(data: NDArray[np.uint8], ends: NDArray[np.int32], is_there: NDArray[np.bool_], count: int) -> Any:
    import pyarrow as pa

    validity = None if is_there[:count].all() else pa.py_buffer(np.packbits(is_there[:count], bitorder="little"))
    offsets = pa.py_buffer(ends[: count + 1])
    return pa.Array.from_buffers(pa.binary(), count, [validity, offsets, pa.py_buffer(data[: ends[count]])])


def _text(data: NDArray[np.uint8], ends: NDArray[np.int32], count: int) -> Any:
    """Return an array of strings. Invalid UTF-8, which Kafka stores unchecked, is replaced by U+FFFD."""
    import pyarrow as pa

    found = _binary(data, ends, np.ones(count, np.bool_), count)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in found.to_pylist()], pa.string())
