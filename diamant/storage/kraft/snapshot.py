"""Snapshots of the metadata log: `<end offset>-<epoch>.checkpoint`, and `bootstrap.checkpoint` in the same format.

    batch   control   SnapshotHeader [, KRaftVersion, KRaftVoters]      the latter two with kraft.version 1
    batch   data      records of a MetadataImage; none of Begin, End, Abort, NoOp, Change, Remove
    ...
    batch   control   SnapshotFooter

Batches are described in protocol/kraft/batch.py. Base offsets count from 0 in the file; all batches have the snapshot's leader
epoch. The end offset in the name is the first offset *not* covered. A snapshot is written as `<name>-<random>.checkpoint.part`,
synced, made read-only and renamed; a file without a footer was therefore never finished.

`00000000000000000000-0000000000.checkpoint` is special: the formatter writes it to record the voters. Newer formatters also
put bootstrap records into it, which are not part of the log's state. Source: RecordsSnapshotWriter, Snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import NamedTuple
from uuid import uuid4

from diamant.protocol.batches.batch import crc_is_valid, iter_headers
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.kraft.batch import decode_batch, encode_control_batch, encode_metadata_batch
from diamant.protocol.kraft.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    decode_control_record,
)
from diamant.protocol.kraft.records import MetadataRecord, decode_record, encode_record
from diamant.protocol.typed_records.wire_types import MalformedRecord, UnsupportedRecord
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError

RECORDS_PER_BATCH = 1000
"""Keeps batches far below Kafka's limit of 8 MiB, unless config values are very long."""


class SnapshotId(NamedTuple):
    """The range of a snapshot: all records below `end_offset`; the last of them has `epoch`."""

    end_offset: int
    epoch: int


class Snapshot(NamedTuple):
    """The content of a snapshot."""

    last_contained_log_timestamp_ms: int
    kraft_version: int
    """0 if the snapshot does not record it."""
    voters: KRaftVoters | None
    records: Sequence[MetadataRecord]


def encode_snapshot(snapshot: Snapshot, *, epoch: int, metadata_version: int, timestamp_ms: int) -> bytes:
    """Return the bytes of a snapshot file, with records in the versions that `metadata_version` requires."""
    head: list[ControlRecord] = [SnapshotHeader(snapshot.last_contained_log_timestamp_ms)]
    if snapshot.kraft_version and snapshot.voters is not None:
        head += [KRaftVersion(snapshot.kraft_version), snapshot.voters]
    out = bytearray(encode_control_batch(head, base_offset=0, leader_epoch=epoch, timestamp_ms=timestamp_ms))
    offset = len(head)
    for records in _chunks(snapshot.records):
        values = [encode_record(record, metadata_version=metadata_version) for record in records]
        out += encode_metadata_batch(values, base_offset=offset, leader_epoch=epoch, timestamp_ms=timestamp_ms)
        offset += len(values)
    out += encode_control_batch([SnapshotFooter()], base_offset=offset, leader_epoch=epoch, timestamp_ms=timestamp_ms)
    return bytes(out)


def _chunks(records: Iterable[MetadataRecord]) -> Iterator[list[MetadataRecord]]:
    iterator = iter(records)
    while chunk := list(islice(iterator, RECORDS_PER_BATCH)):
        yield chunk


def decode_snapshot(path: str, data: bytes) -> Snapshot:
    """Parse a snapshot file. Raises CorruptLog unless it is complete, from header to footer."""
    timestamp_ms = None
    is_whole = False
    kraft_version = 0
    voters = None
    records: list[MetadataRecord] = []
    end = 0
    for position, header, pairs in iter_metadata_batches(path, data):
        end = position + header.size
        if is_whole:
            raise CorruptLog(path, position, "a batch follows the footer, expected the end of the snapshot")
        if not header.is_control:
            if timestamp_ms is None:
                raise CorruptLog(path, position, "the snapshot does not begin with a header")
            records += decode_records(path, position, pairs)
            continue
        for control in decode_control_records(path, position, pairs):
            if isinstance(control, SnapshotHeader):
                timestamp_ms = control.last_contained_log_timestamp_ms
            elif isinstance(control, KRaftVersion):
                kraft_version = control.kraft_version
            elif isinstance(control, KRaftVoters):
                voters = control
            elif isinstance(control, SnapshotFooter):
                is_whole = True
    if timestamp_ms is None or not is_whole or end != len(data):
        raise CorruptLog(path, end, f"the snapshot of {len(data)} bytes has no footer at its end")
    return Snapshot(timestamp_ms, kraft_version, voters, records)


def iter_metadata_batches(
    path: str, data: bytes
) -> Iterator[tuple[int, BatchHeader, list[tuple[bytes | None, bytes]]]]:
    """Yield (position, header, (key, value) pairs) for each batch in a file.

    Stops at a torn tail. Raises CorruptLog if a batch is corrupt or does not belong in a metadata log.
    """
    try:
        for position, header in iter_headers(data):
            batch = data[position : position + header.size]
            if header.magic != 2 or not crc_is_valid(batch, 0, header.size):
                raise CorruptLog(path, position, f"batch of {header.size} bytes fails its checksum")
            yield position, header, decode_batch(batch, 0, header)
    except CorruptBatch as error:
        raise CorruptLog(path, error.position, error.reason) from None


def decode_records(path: str, position: int, pairs: Iterable[tuple[bytes | None, bytes]]) -> list[MetadataRecord]:
    """Decode the records of a batch at `position`. Raises CorruptLog, or StorageError for records of a newer Kafka."""
    try:
        return [decode_record(value) for _, value in pairs]
    except MalformedRecord as error:
        raise CorruptLog(path, position, str(error)) from error
    except UnsupportedRecord as error:
        raise StorageError(f"{path} at {position}: {error}; a newer Kafka wrote it") from error


def decode_control_records(
    path: str, position: int, pairs: Iterable[tuple[bytes | None, bytes]]
) -> list[ControlRecord]:
    """Decode the control records of a batch at `position`. Raises CorruptLog, or StorageError for records of a newer Kafka."""
    try:
        return [decode_control_record(key or b"", value) for key, value in pairs]
    except MalformedRecord as error:
        raise CorruptLog(path, position, str(error)) from error
    except UnsupportedRecord as error:
        raise StorageError(f"{path} at {position}: {error}; a newer Kafka wrote it") from error


def write_snapshot(env: Env, directory: str, snapshot_id: SnapshotId, data: bytes) -> str:
    """Write a snapshot's file durably and return its path; blocks on the disk."""
    path = names.metadata_snapshot_file(directory, *snapshot_id)
    stem = path.removesuffix(names.METADATA_SNAPSHOT_SUFFIX)
    part = f"{stem}-{uuid4().hex}{names.METADATA_SNAPSHOT_SUFFIX}{names.PART_SUFFIX}"
    file = env.create_new(part)
    try:
        with closing(file):
            file.append(data)
            file.sync()
        env.set_read_only(part)
        env.rename(part, path)
    except OSError:
        with suppress(OSError):  # the next start removes it
            env.remove(part, missing_ok=True)
        raise
    env.sync_dir(directory)
    return path


def list_snapshots(env: Env, directory: str) -> list[SnapshotId]:
    """Return the finished snapshots in a directory, oldest first."""
    found = (names.parse_metadata_snapshot(name) for name in env.list_dir(directory))
    return sorted(SnapshotId(*parsed) for parsed in found if parsed is not None)
