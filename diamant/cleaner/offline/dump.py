"""Decodes the files of a partition, batch by batch: `diamant log dump` without the printing.

A dump is a stream of `Item`s: a `SegmentItem` before the batches of each segment, a `BatchItem` for each batch, if requested a
`RecordItem` for each record, an `EntryItem` for each entry of any other file, and a `Problem` for each fault. A faulty
batch does not end the dump; bytes that are not a batch end the dump of their segment.

Memory: one batch and its segment's indexes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from diamant.cleaner.offline.index_check import (
    check_indexes,
    check_length,
    check_offset_index,
    check_time_index,
    read_offset_index,
    read_time_index,
    read_txn_index,
)
from diamant.cleaner.segments.tolerant_reader import (
    Advance,
    Batch,
    OpenLogDirectory,
    PartitionFiles,
    Problem,
    SegmentFile,
    iter_batches,
    lock_for_reading,
)
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.control import ControlType, parse_control_type, parse_marker
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.internal_topics import record_schemas
from diamant.protocol.internal_topics.record_schemas import CANNOT_BE_DECODED
from diamant.protocol.kraft import control_records as raft_control
from diamant.protocol.kraft.records import decode_record
from diamant.protocol.typed_records.frozen_record import fields
from diamant.protocol.typed_records.wire_types import MalformedRecord, UnsupportedRecord
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import LeaderEpochs, read_offset_checkpoint, read_partition_metadata
from diamant.storage.checkpoints.producer_snapshot import read_snapshot
from diamant.storage.env.env import MAX_STATE_FILE, Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.segments import offset_index, time_index, txn_index
from diamant.storage.uuid_text import uuid_to_text

CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.HIGH_WATERMARK_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)


@dataclass(frozen=True, slots=True)
class SegmentItem:
    """The beginning of a segment. A count is None if the index file is missing or unreadable."""

    file: str
    base_offset: int
    size: int
    offset_index_entries: int | None
    time_index_entries: int | None
    txn_index_entries: int | None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A batch. The fields are named as in Kafka."""

    file: str
    position: int
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    magic: int
    codec: str
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    """Time from which the batch's tombstones or marker may be removed; None if it is not decided yet."""
    base_timestamp: int | None
    """None if this field of the batch holds the delete horizon instead."""
    max_timestamp: int
    timestamp_type: str
    crc: int
    crc_is_valid: bool


@dataclass(frozen=True, slots=True)
class RecordItem:
    """A record."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    decoded: tuple[str, dict[str, object]] | None = None
    """Name and fields, for a control record or a record of an internal topic."""


@dataclass(frozen=True, slots=True)
class EntryItem:
    """An entry of a file that holds no batches."""

    kind: str
    """`offset index`, `time index`, `aborted transaction`, `producer`, `leader epoch`, `checkpoint`, `partition`."""
    file: str
    values: dict[str, int | str]


_Decoder: TypeAlias = Callable[[bytes | None, bytes | None], tuple[str, dict[str, object]] | None]
"""A function that takes a record's key and value, and returns `RecordItem.decoded`."""
Item: TypeAlias = SegmentItem | BatchItem | RecordItem | EntryItem | Problem


def dump_directory(
    env: Env, directory: OpenLogDirectory, *, with_records: bool = False, advance: Advance | None = None
) -> Iterator[Item]:
    """Yield the items of all partitions of an open directory."""
    yield from directory.problems
    for partition in directory.partitions:
        yield from _dump_partition(env, partition, with_records=with_records, advance=advance)


def dump_file(env: Env, path: str, *, with_records: bool = False, advance: Advance | None = None) -> Iterator[Item]:
    """Yield the contents of one file. Its name tells its kind, and may end in `.deleted`, `.cleaned`, `.swap` or `.aside`.

    Raises StorageError if no file of a log directory has such a name, or if a broker has locked the directory.
    """
    path = os.path.abspath(path)
    directory, name = os.path.split(path)
    dump = _dumper(name)
    if dump is None:
        raise StorageError(
            f"{path}: expected a partition's directory, a file in such a directory (.log, .index, .timeindex, .txnindex, "
            f".snapshot, .checkpoint, {names.LEADER_EPOCH_CHECKPOINT}, {names.PARTITION_METADATA}) or an offset checkpoint"
        )
    locks = [lock_for_reading(env, place) for place in (directory, os.path.dirname(directory))]
    try:
        if dump is _dump_log:
            segment = SegmentFile(path, _base_offset(name), env.file_size(path))
            yield from _dump_batches(env, segment, {}, with_records=with_records, advance=advance)
        else:
            yield from _guarded(path, dump(env, path))
    finally:
        for lock in locks:
            if lock is not None:
                lock.release()


def _dump_partition(
    env: Env, partition: PartitionFiles, *, with_records: bool, advance: Advance | None
) -> Iterator[Item]:
    for segment in partition.segments:
        yield from _dump_segment(env, segment, with_records=with_records, advance=advance)
    for name in env.list_dir(partition.directory):
        path = f"{partition.directory}/{name}"
        if name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA) or (
            name.endswith(names.SNAPSHOT_SUFFIX) and names.is_segment_file(name)
        ):
            dump = _dumper(name)
            assert dump is not None
            yield from _guarded(path, dump(env, path))
        elif name in partition.leftovers and not name.endswith((names.DELETED_SUFFIX, names.ASIDE_SUFFIX)):
            yield Problem(path, None, "left by an interrupted cleaning")


def _guarded(path: str, items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, and a problem if an error ends the reading of the file."""
    try:
        yield from items
    except CorruptLog as error:
        yield Problem(error.path, error.position, error.reason)
    except OSError as error:
        yield Problem(path, None, f"cannot be read: {error.strerror or error}")


# -- segments ----------------------------------------------------------------------------------------------------------


def _dump_segment(env: Env, segment: SegmentFile, *, with_records: bool, advance: Advance | None) -> Iterator[Item]:
    indexes = check_indexes(env, segment)
    counts = (None if one is None else len(one) for one in (indexes.offsets, indexes.times, indexes.aborted))
    yield SegmentItem(segment.path, segment.base_offset, segment.size, *counts)
    yield from indexes.problems
    index = {position: offset for offset, position in indexes.offsets or ()}
    yield from _dump_batches(env, segment, index, with_records=with_records, advance=advance)
    for position, offset in sorted(index.items()):
        if position < segment.size:
            reason = f"the index places offset {offset} at {position} of the segment, where no batch begins"
            yield Problem(segment.path.removesuffix(names.LOG_SUFFIX) + names.INDEX_SUFFIX, None, reason)
            break


def _dump_batches(
    env: Env, segment: SegmentFile, index: dict[int, int], *, with_records: bool, advance: Advance | None
) -> Iterator[Item]:
    """Yield the batches of a segment, and remove the entries of `index` (position to offset) that point to a batch."""
    decode = _decoder(segment.path)
    problems: list[Problem] = []
    for batch in iter_batches(env, segment, problems.append, advance):
        header = batch.header
        yield from problems
        problems.clear()
        yield _batch_item(segment.path, batch)
        indexed = index.pop(batch.position, header.base_offset)
        if indexed < header.base_offset and batch.crc_is_valid:
            path = segment.path.removesuffix(names.LOG_SUFFIX) + names.INDEX_SUFFIX
            reason = (
                f"the batch at {batch.position} of the segment begins with offset {header.base_offset}, not {indexed}"
            )
            yield Problem(path, None, reason)
        if with_records:
            try:
                for record in batch.records():
                    yield _record_item(record, _decode_control if header.is_control else decode)
            except CorruptBatch as error:
                yield Problem(segment.path, batch.position, f"records of the batch: {error.reason}")
    yield from problems


def _batch_item(path: str, batch: Batch) -> BatchItem:
    header = batch.header
    has_horizon = header.has_delete_horizon
    codec = CODEC_NAMES[header.codec] if header.codec < len(CODEC_NAMES) else f"unknown {header.codec}"
    return BatchItem(
        file=path,
        position=batch.position,
        size=header.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        magic=header.magic,
        codec=codec,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon_ms=header.base_timestamp if has_horizon else None,
        base_timestamp=None if has_horizon else header.base_timestamp,
        max_timestamp=header.max_timestamp,
        timestamp_type="LogAppendTime" if header.is_log_append_time else "CreateTime",
        crc=header.crc,
        crc_is_valid=batch.crc_is_valid,
    )


def _record_item(record: Record, decode: _Decoder) -> RecordItem:
    offset, timestamp, key, value, headers, sequence = record
    return RecordItem(offset, timestamp, sequence, key, value, headers, decode(key, value))


def _decode_control(key: bytes | None, value: bytes | None) -> tuple[str, dict[str, object]] | None:
    try:
        control_type = parse_control_type(key)
        if control_type in (ControlType.ABORT, ControlType.COMMIT):
            return control_type.name, {"coordinator_epoch": parse_marker(value).coordinator_epoch}
        record = raft_control.decode_control_record(key or b"", value or b"")
        return control_type.name, record._asdict()
    except (CorruptBatch, MalformedRecord, UnsupportedRecord) as error:
        return CANNOT_BE_DECODED, {"reason": str(error)}


def _decode_metadata(_key: bytes | None, value: bytes | None) -> tuple[str, dict[str, object]] | None:
    if value is None:
        return None
    try:
        record = decode_record(value)
    except (MalformedRecord, UnsupportedRecord) as error:
        return CANNOT_BE_DECODED, {"reason": str(error)}
    return type(record).__name__, {field.name: getattr(record, field.name) for field in fields(type(record))}


def _decoder(path: str) -> _Decoder:
    """Return the decoder for the records of a segment or metadata snapshot, which depends on the directory's topic."""
    directory, name = os.path.split(path)
    if name.endswith(names.METADATA_SNAPSHOT_SUFFIX):
        return _decode_metadata
    try:
        topic, _ = names.parse_partition_dir(os.path.basename(directory))
    except ValueError:
        topic = ""
    return _DECODERS.get(topic, lambda _key, _value: None)


_DECODERS: dict[str, _Decoder] = {
    names.METADATA_TOPIC: _decode_metadata,
    names.GROUP_OFFSETS_TOPIC: partial(record_schemas.decode, record_schemas.GROUP_RECORDS),
    names.TRANSACTION_STATE_TOPIC: partial(record_schemas.decode, record_schemas.TRANSACTION_RECORDS),
    names.SHARE_GROUP_STATE_TOPIC: partial(record_schemas.decode, record_schemas.SHARE_STATE_RECORDS),
}


# -- other files -------------------------------------------------------------------------------------------------------


def _dumper(name: str) -> Callable[[Env, str], Iterator[Item]] | None:
    """Return the reader for a file name; None for unknown names."""
    if name == names.LEADER_EPOCH_CHECKPOINT:
        return _dump_leader_epochs
    if name == names.PARTITION_METADATA:
        return _dump_partition_metadata
    if name in CHECKPOINTS:
        return _dump_offset_checkpoint
    for stage in (names.DELETED_SUFFIX, names.CLEANED_SUFFIX, names.SWAP_SUFFIX, names.ASIDE_SUFFIX):
        name = name.removesuffix(stage)
    return {
        names.LOG_SUFFIX: _dump_log,
        names.METADATA_SNAPSHOT_SUFFIX: _dump_log,
        names.INDEX_SUFFIX: _dump_offset_index,
        names.TIME_INDEX_SUFFIX: _dump_time_index,
        names.TXN_INDEX_SUFFIX: _dump_txn_index,
        names.SNAPSHOT_SUFFIX: _dump_producers,
    }.get(os.path.splitext(name)[1])


def _base_offset(name: str) -> int:
    """Return the offset in the name of a segment's file; 0 if it has none, as for a metadata snapshot, which begins at 0."""
    parsed = names.parse_segment_file(name)
    return 0 if parsed is None else parsed.offset


def _dump_log(env: Env, path: str) -> Iterator[Item]:
    return _dump_batches(
        env,
        SegmentFile(path, _base_offset(os.path.basename(path)), env.file_size(path)),
        {},
        with_records=False,
        advance=None,
    )


def _dump_offset_index(env: Env, path: str) -> Iterator[Item]:
    base_offset = _base_offset(os.path.basename(path))
    for offset, position in read_offset_index(env, path, base_offset):
        yield EntryItem("offset index", path, {"offset": offset, "position": position})
    yield from _faults(
        check_length(env, path, offset_index.ENTRY_SIZE),
        check_offset_index(path, read_offset_index(env, path, base_offset), base_offset, 1 << 31),
    )


def _dump_time_index(env: Env, path: str) -> Iterator[Item]:
    base_offset = _base_offset(os.path.basename(path))
    for timestamp, offset in read_time_index(env, path, base_offset):
        yield EntryItem("time index", path, {"timestamp": timestamp, "offset": offset})
    yield from _faults(
        check_length(env, path, time_index.ENTRY_SIZE),
        check_time_index(path, read_time_index(env, path, base_offset), base_offset),
    )


def _dump_txn_index(env: Env, path: str) -> Iterator[Item]:
    for aborted in read_txn_index(env, path):
        yield EntryItem("aborted transaction", path, aborted._asdict())
    yield from _faults(check_length(env, path, txn_index.ENTRY_SIZE))


def _faults(*faults: Problem | None) -> Iterator[Item]:
    return (fault for fault in faults if fault is not None)


def _dump_producers(env: Env, path: str) -> Iterator[Item]:
    for producer in read_snapshot(env.read_bytes(path, MAX_STATE_FILE), path):
        yield EntryItem("producer", path, producer._asdict())


def _dump_leader_epochs(env: Env, path: str) -> Iterator[Item]:
    for epoch, start_offset in LeaderEpochs.load(env, os.path.dirname(path)).entries:
        yield EntryItem("leader epoch", path, {"epoch": epoch, "start_offset": start_offset})


def _dump_partition_metadata(env: Env, path: str) -> Iterator[Item]:
    topic_id = read_partition_metadata(env, os.path.dirname(path))
    if topic_id is not None:
        yield EntryItem("partition", path, {"topic_id": uuid_to_text(topic_id)})


def _dump_offset_checkpoint(env: Env, path: str) -> Iterator[Item]:
    for (topic, partition), offset in read_offset_checkpoint(env, path).items():
        yield EntryItem("checkpoint", path, {"topic": topic, "partition": partition, "offset": offset})
