"""Control records: transaction markers, and the types of the metadata log's control records.

A control batch has the control bit set and is never compressed. Each record's key gives its type, which determines the value
(integers big-endian):

    key                    int16 version 0, int16 type
    value, ABORT, COMMIT   int16 version 0, int32 coordinator epoch

A transaction marker is a 78-byte batch of one ABORT or COMMIT record, with the transactional bit, the producer's id and epoch,
and no sequence. Higher versions are read as version 0; bytes after the known fields are ignored.
Source: `ControlRecordType`, `EndTransactionMarker`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch


class ControlType(IntEnum):
    """The type of a control record."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


ABORT = ControlType.ABORT
COMMIT = ControlType.COMMIT

_KEY = Struct(">hh")
_MARKER = Struct(">hi")


class EndTxnMarker(NamedTuple):
    """The value of an ABORT or COMMIT record."""

    coordinator_epoch: int


def control_key(control_type: int) -> bytes:
    """Return the key of a control record of `control_type`."""
    return _KEY.pack(0, control_type)


def parse_control_type(key: bytes | None) -> ControlType:
    """Return the type in a control record's key, or UNKNOWN if `ControlType` does not have it.

    Raises CorruptBatch if the key is null, is shorter than 4 bytes or has a negative version.
    """
    if key is None or len(key) < _KEY.size:
        found = "null" if key is None else f"{len(key)} bytes"
        raise CorruptBatch(0, f"a control record's key has at least {_KEY.size} bytes, found {found}")
    version, control_type = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(0, f"a control record's key has version {version}, expected 0 or more")
    return ControlType(control_type) if 0 <= control_type <= ControlType.KRAFT_VOTERS else ControlType.UNKNOWN


def parse_marker(value: bytes | None) -> EndTxnMarker:
    """Parse the value of an ABORT or COMMIT record. Raises CorruptBatch if it is null, is too short or has a negative version."""
    if value is None or len(value) < _MARKER.size:
        found = "null" if value is None else f"{len(value)} bytes"
        raise CorruptBatch(0, f"a transaction marker's value has at least {_MARKER.size} bytes, found {found}")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise CorruptBatch(0, f"a transaction marker's value has version {version}, expected 0 or more")
    return EndTxnMarker(coordinator_epoch)


def build_marker(
    *,
    is_commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    base_offset: int,
    leader_epoch: int,
    timestamp: int,
) -> bytearray:
    """Return the batch of a marker that commits or aborts a producer's transaction; `timestamp` is the current time in ms."""
    record = Record(
        base_offset, timestamp, control_key(COMMIT if is_commit else ABORT), _MARKER.pack(0, coordinator_epoch)
    )
    return build_batch(
        [record],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
