"""Records of `__transaction_state`: the latest state of each transactional id (TransactionLogKey, TransactionLogValue).

A key is an int16 version (0) and the id; records whose keys have another version must be skipped. A value is an int16 version and
the fields of `TransactionValue` (see `typed_records`), in the flexible encoding from version 1 on. Version 1 is written from
`transaction.version` 1 on. A null value removes the id.

Source: TransactionLog, TransactionLogKey.json, TransactionLogValue.json.
"""

# No `from __future__ import annotations` here: the wire types are read from the annotations, which must not be strings.

from typing import Annotated, NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import INT16
from diamant.protocol.typed_records.layout import KafkaName, Since, Tag, array_of, layout, read_struct, write_struct
from diamant.protocol.typed_records.wire_types import (
    UNREADABLE,
    Int8,
    Int16,
    Int32,
    Int32s,
    Int64,
    MalformedRecord,
    Text,
)

KEY_VERSION = 0
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class TransactionKey(NamedTuple):
    """The transactional id of a producer."""

    transactional_id: Text


class TransactionPartitions(NamedTuple):
    """Partitions of one topic that are part of a transaction."""

    topic: Text
    partitions: Annotated[Int32s, KafkaName("partitionIds")]


class TransactionValue(NamedTuple):
    """The stored state of one transactional id. Times and the timeout are in ms, -1 if there is none.

    `partitions` is None (null) in state Empty, as in Kafka. `client_version` is the client's `transaction.version`.
    `next_producer_epoch` belongs to `next_producer_id`; no release of Kafka up to 4.4 writes or reads it.
    """

    producer_id: Int64
    producer_epoch: Int16
    timeout_ms: Annotated[Int32, KafkaName("transactionTimeoutMs")]
    status: Annotated[Int8, KafkaName("transactionStatus")]
    partitions: Annotated[
        tuple[TransactionPartitions, ...] | None,
        array_of(TransactionPartitions, is_nullable=True),
        KafkaName("transactionPartitions"),
    ]
    last_update_ms: Annotated[Int64, KafkaName("transactionLastUpdateTimestampMs")]
    start_ms: Annotated[Int64, KafkaName("transactionStartTimestampMs")]
    previous_producer_id: Annotated[Int64, Since(1), Tag(0)] = NO_PRODUCER_ID
    next_producer_id: Annotated[Int64, Since(1), Tag(1)] = NO_PRODUCER_ID
    client_version: Annotated[Int16, Since(1), Tag(2), KafkaName("clientTransactionVersion")] = 0
    next_producer_epoch: Annotated[Int16, Since(1), Tag(3)] = NO_PRODUCER_EPOCH


_KEY = layout(TransactionKey, KEY_VERSION, False)


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id. Raises OverflowError if the id has more than 32767 bytes."""
    out = bytearray(INT16.pack(KEY_VERSION))
    write_struct(_KEY, out, TransactionKey(transactional_id))
    return bytes(out)


def parse_key(key: bytes) -> str | None:
    """Parse a key; return its transactional id, or None if its version is unknown. Raises ProtocolError if it is malformed."""
    try:
        (version,) = INT16.unpack_from(key)
        if version != KEY_VERSION:
            return None
        parsed, position = read_struct(_KEY, key, 2)
    except UNREADABLE as error:
        raise ProtocolError(f"key of {len(key)} bytes: {error}") from error
    if position != len(key):
        raise ProtocolError(f"key of {len(key)} bytes: expected only a transactional id")
    return parsed.transactional_id  # type: ignore[no-any-return]


def encode_value(value: TransactionValue, version: int) -> bytes:
    """Encode a value in `version` 0 or 1."""
    out = bytearray(INT16.pack(version))
    write_struct(layout(TransactionValue, version, version > 0), out, value)
    return bytes(out)


def parse_value(data: bytes) -> TransactionValue:
    """Parse a value; versions above 1 are read as 1. Raises ProtocolError if it is malformed."""
    try:
        (version,) = INT16.unpack_from(data)
        if version < 0:
            raise MalformedRecord(f"its version is {version}, expected 0 or more")
        return read_struct(layout(TransactionValue, min(version, 1), version > 0), data, 2)[0]  # type: ignore[no-any-return]
    except UNREADABLE as error:
        raise ProtocolError(f"value of {len(data)} bytes: {error}") from error
