"""The header of a record batch, and the fields of a record.

All integers are big-endian. Magic 2, the only one written since Kafka 0.11:

    offset size
         0    8  base offset                not covered by the CRC
         8    4  batch length               bytes after this field, at least 49; not covered
        12    4  partition leader epoch     -1 none; not covered
        16    1  magic                      2; not covered
        17    4  CRC-32C                    unsigned, over bytes 21 to the end
        21    2  attributes                 bits 0-2 codec, 3 LogAppendTime, 4 transaction, 5 control, 6 delete horizon
        23    4  last offset delta          kept by compaction; also the delta of the last sequence
        27    8  base timestamp             ms, of the first record; -1 if empty; the delete horizon if bit 6 is set
        35    8  max timestamp              ms, the maximum of the records, or the broker's time under LogAppendTime
        43    8  producer id                -1 none
        51    2  producer epoch             -1 none
        53    4  base sequence              -1 none
        57    4  record count               can be 0 after compaction
        61    .  records                    see batch_records.py; one compressed blob if there is a codec

Magic 0 and 1 share the first 17 bytes, but bytes 12..15 hold their CRC-32; see legacy.py.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, TypeAlias

from diamant.protocol.errors import CorruptBatch

_new = tuple.__new__  # builds a named tuple faster than its class does

Buffer: TypeAlias = bytes | bytearray | memoryview


WritableBuffer: TypeAlias = bytearray | memoryview


BASE_OFFSET = 0


BATCH_LENGTH = 8


PARTITION_LEADER_EPOCH = 12


MAGIC = 16


CRC = 17


ATTRIBUTES = 21


LAST_OFFSET_DELTA = 23


BASE_TIMESTAMP = 27


MAX_TIMESTAMP = 35


PRODUCER_ID = 43


PRODUCER_EPOCH = 51


BASE_SEQUENCE = 53


RECORD_COUNT = 57


HEADER_SIZE = 61


LOG_OVERHEAD = 12
"""Bytes at the start of an entry, of any magic, that its length field does not count: the offset and the length itself."""


HEADER_SIZE_UP_TO_MAGIC = 17


MIN_ENTRY_LENGTH = 14
"""Minimum of the length field of any entry, reached by an empty message of magic 0."""


MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD


CURRENT_MAGIC = 2


CODEC_MASK = 0x07


LOG_APPEND_TIME_FLAG = 0x08


TRANSACTIONAL_FLAG = 0x10


CONTROL_FLAG = 0x20


DELETE_HORIZON_FLAG = 0x40


MAX_OFFSET = 2**63 - 1
"""Maximum of `BatchHeader.next_offset`, so that it fits 64 bits: a batch's last offset must be less than this."""


NO_TIMESTAMP = -1


NO_PRODUCER_ID = -1


NO_PRODUCER_EPOCH = -1


NO_SEQUENCE = -1


NO_PARTITION_LEADER_EPOCH = -1


MAX_SEQUENCE = 2**31 - 1


HEADER_STRUCT = Struct(">qiibIhiqqqhii")


class BatchHeader(NamedTuple):
    """The header of one batch, with its fields in wire order. For an entry of magic 0 or 1, legacy.py builds one."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes, including its header."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last original record, even if compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are invalid."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """True if every record's timestamp is `max_timestamp`."""
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        """True if the batch is part of a transaction, or is a transaction's marker."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """True if the batch holds control records (control.py), which consumers never see."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """True if `base_timestamp` is the time from which tombstones and markers may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def has_producer_id(self) -> bool:
        """True if an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or -1 if the batch has no sequences; wraps from 2147483647 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return add_to_sequence(self.base_sequence, self.last_offset_delta)


def add_to_sequence(sequence: int, increment: int) -> int:
    """Return the sequence that is `increment` (0 or more) after `sequence` (`DefaultRecordBatch.incrementSequence`)."""
    total = sequence + increment
    return total if total <= MAX_SEQUENCE else total - MAX_SEQUENCE - 1


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the magic 2 batch at `position`.

    Checks neither the CRC nor that the buffer contains the whole batch. Raises CorruptBatch if there are fewer than 61 bytes, if
    the magic is not 2, or if the length field is less than 49.
    """
    try:
        header = _new(BatchHeader, HEADER_STRUCT.unpack_from(buffer, position))
    except struct_error:
        raise CorruptBatch(
            position, f"a batch header has {HEADER_SIZE} bytes, only {max(0, len(buffer) - position)} are left"
        ) from None
    if header.magic != CURRENT_MAGIC:
        raise CorruptBatch(position, f"magic is {header.magic}, expected {CURRENT_MAGIC}")
    if header.batch_length < MIN_BATCH_LENGTH:
        raise CorruptBatch(position, f"batch length is {header.batch_length}, expected at least {MIN_BATCH_LENGTH}")
    return header


class Header(NamedTuple):
    """One header of a record."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """A record. `timestamp` is in ms since the epoch, -1 if unknown; `sequence` is -1 unless the producer is idempotent."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = NO_SEQUENCE
