"""Reads a metadata log: the newest snapshot, then every batch after it. Writes nothing.

The log consists of ordinary segments, `<base offset>.log`, without gaps between batches. Checksums, offsets and the order of
epochs are checked in the whole log. Records covered by the snapshot are checked but not applied. Indexes are not used.

At the very end of the last segment, a crash may leave a batch that is cut short or fails its checksum; this batch and the bytes
after it are reported as torn. Such a batch in an earlier segment, or before a sound batch, is damage and raises CorruptLog.

Transactions: records between Begin and End are applied at End; they are dropped at Abort or if the log ends first.

Source: KafkaRaftLog, KafkaMetadataLog, RecordsBatchReader, MetadataBatchLoader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.header import HEADER_SIZE, HEADER_STRUCT, BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.kraft.batch import decode_batch
from diamant.protocol.kraft.control_records import KRaftVersion, KRaftVoters, LeaderChange
from diamant.protocol.kraft.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    RemoveTopicRecord,
)
from diamant.storage import names
from diamant.storage.env.env import MAX_LOG_FILE, Env
from diamant.storage.errors import CorruptLog
from diamant.storage.kraft.image import InconsistentMetadata, MetadataImage
from diamant.storage.kraft.snapshot import (
    SnapshotId,
    decode_control_records,
    decode_records,
    decode_snapshot,
    list_snapshots,
)

BOOTSTRAP_SNAPSHOT = SnapshotId(0, 0)
"""The formatter's snapshot; its data are not part of the log."""


class MetadataSegment(NamedTuple):
    """A segment file, and the total size in bytes of its sound batches."""

    base_offset: int
    size: int


class Torn(NamedTuple):
    """An unfinished end that a crash left in the last segment."""

    path: str
    position: int
    size: int
    """Bytes from `position` to the end of the file."""
    reason: str


@dataclass(slots=True)
class LoadedMetadata:
    """The contents of a metadata log."""

    image: MetadataImage = field(default_factory=MetadataImage)
    segments: list[MetadataSegment] = field(default_factory=list)
    log_start_offset: int = 0
    end_offset: int = 0
    """The offset of the next record."""
    last_epoch: int = 0
    last_timestamp_ms: int = -1
    """Time of the last record, -1 if there is none."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, first offset) of each epoch, taken from the batches."""
    kraft_version: int = 0
    voters: KRaftVoters | None = None
    has_voters_in_log: bool = False
    """True if the voters are in the log or in a snapshot other than the formatter's."""
    quorum: tuple[int, ...] = ()
    """The voters in the last LeaderChange."""
    snapshot_id: SnapshotId | None = None
    """The snapshot from which replay started, None if it started with the log."""
    is_beyond_log: bool = False
    """True if the log ends below the end of the snapshot, which makes the whole log obsolete."""
    is_empty: bool = True
    """True if neither the snapshot nor the log has a metadata record."""
    has_open_transaction: bool = False
    bytes_since_snapshot: int = 0
    bootstrap_records: Sequence[MetadataRecord] = ()
    """Records that newer formatters write for the first start."""
    removed_topics: set[UUID] = field(default_factory=set)
    """Ids of the topics that were removed in the log after its snapshot."""
    modified_ms: int = 0
    """Time of the last write to the log, according to the file system."""
    torn: Torn | None = None
    messages: list[str] = field(default_factory=list)
    """Warnings for the operator."""


def load_metadata(env: Env, directory: str) -> LoadedMetadata:
    """Read the metadata log in `directory` (`.../__cluster_metadata-0`). Blocks for about 10 µs per record.

    Raises CorruptLog if bytes or records are invalid, StorageError if a newer Kafka wrote them.
    """
    loaded = LoadedMetadata()
    _load_snapshots(env, directory, loaded)
    replay = _Replay(loaded)
    bases = sorted(
        parsed.offset
        for parsed in map(names.parse_segment_file, env.list_dir(directory))
        if parsed is not None and parsed.suffix == names.LOG_SUFFIX and not parsed.stage
    )
    covered = loaded.end_offset
    loaded.log_start_offset = bases[0] if bases else covered
    if bases and bases[0] > covered:
        raise CorruptLog(directory, 0, f"the log begins at offset {bases[0]}, expected a snapshot up to that offset")
    expected = loaded.log_start_offset
    for base_offset in bases:
        path = names.log_file(directory, base_offset)
        if base_offset != expected:
            raise CorruptLog(path, 0, f"the segment begins at offset {base_offset}, expected {expected}")
        is_last = base_offset == bases[-1]
        view = env.read_bytes(path, MAX_LOG_FILE)
        size, expected = replay.read_segment(path, view, expected, is_last=is_last)
        loaded.segments.append(MetadataSegment(base_offset, size))
        loaded.modified_ms = env.mtime_ms(path)
    loaded.is_beyond_log = expected < covered
    loaded.end_offset = max(expected, covered)
    replay.finish()
    return loaded


def _load_snapshots(env: Env, directory: str, loaded: LoadedMetadata) -> None:
    """Load the newest valid snapshot into `loaded`."""
    for snapshot_id in reversed(list_snapshots(env, directory)):
        path = names.metadata_snapshot_file(directory, *snapshot_id)
        try:
            snapshot = decode_snapshot(path, env.read_bytes(path, MAX_LOG_FILE))
        except CorruptLog as error:
            loaded.messages.append(f"snapshot not used: {error}")
            continue
        loaded.kraft_version = snapshot.kraft_version
        loaded.voters = snapshot.voters
        if snapshot_id == BOOTSTRAP_SNAPSHOT:
            loaded.bootstrap_records = snapshot.records
            return
        try:
            for record in snapshot.records:
                loaded.image.apply(record)
        except InconsistentMetadata as error:
            raise CorruptLog(path, 0, str(error)) from error
        loaded.snapshot_id = snapshot_id
        loaded.end_offset, loaded.last_epoch = snapshot_id
        loaded.last_timestamp_ms = snapshot.last_contained_log_timestamp_ms
        loaded.has_voters_in_log = snapshot.voters is not None
        loaded.is_empty = False
        return


class _Replay:
    """A replay of the batches of all segments, in order."""

    def __init__(self, loaded: LoadedMetadata) -> None:
        self._loaded = loaded
        self._covered = loaded.end_offset
        self._epoch = 0
        self._pending: list[MetadataRecord] | None = None
        """The records of an open transaction."""

    def read_segment(self, path: str, view: bytes, offset: int, *, is_last: bool) -> tuple[int, int]:
        """Apply the batches of a segment that should begin at `offset`; return (size of the sound batches, next offset)."""
        position = 0
        end = len(view)
        while position < end:
            head = bytes(view[position : position + HEADER_SIZE])
            reason = _unsound(view, position, head)
            if reason is not None:
                self._stop(path, view, position, reason, is_last=is_last)
                return position, offset
            header = BatchHeader._make(HEADER_STRUCT.unpack(head))
            if header.base_offset != offset:
                raise CorruptLog(path, position, f"the batch begins at offset {header.base_offset}, expected {offset}")
            self._take_epoch(path, position, header)
            offset = header.next_offset
            if header.base_offset >= self._covered:
                self._take_batch(path, position, header, bytes(view[position : position + header.size]))
            elif offset > self._covered:
                raise CorruptLog(path, position, f"the snapshot ends inside the batch, at offset {self._covered}")
            elif header.is_control:
                # A snapshot does not record voters that come from the configuration.
                self._take_quorum(path, position, header, bytes(view[position : position + header.size]))
            position += header.size
        return position, offset

    def _stop(self, path: str, view: bytes, position: int, reason: str, *, is_last: bool) -> None:
        follower = _sound_batch_after(view, position)
        if not is_last or follower is not None:
            found = "later segments follow" if not is_last else f"a sound batch follows at {follower}"
            raise CorruptLog(path, position, f"{reason}, and {found}: this is damage, not the end of the log")
        self._loaded.torn = Torn(path, position, len(view) - position, reason)

    def _take_epoch(self, path: str, position: int, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        if epoch < self._epoch:
            raise CorruptLog(path, position, f"the batch has epoch {epoch} after epoch {self._epoch}")
        if epoch > self._epoch or not self._loaded.epochs:
            self._loaded.epochs.append((epoch, header.base_offset))
        self._epoch = epoch

    def _take_quorum(self, path: str, position: int, header: BatchHeader, batch: bytes) -> None:
        for control in decode_control_records(path, position, _pairs(path, position, header, batch)):
            if isinstance(control, LeaderChange):
                self._loaded.quorum = control.voters

    def _take_batch(self, path: str, position: int, header: BatchHeader, batch: bytes) -> None:
        loaded = self._loaded
        pairs = _pairs(path, position, header, batch)
        loaded.last_epoch = max(loaded.last_epoch, header.partition_leader_epoch)
        loaded.last_timestamp_ms = header.max_timestamp
        loaded.bytes_since_snapshot += header.size
        if header.is_control:
            for control in decode_control_records(path, position, pairs):
                if isinstance(control, LeaderChange):
                    loaded.quorum = control.voters
                elif isinstance(control, KRaftVersion):
                    loaded.kraft_version = control.kraft_version
                elif isinstance(control, KRaftVoters):
                    loaded.voters = control
                    loaded.has_voters_in_log = True
            return
        loaded.is_empty = False
        try:
            self._apply(decode_records(path, position, pairs))
        except InconsistentMetadata as error:
            raise CorruptLog(path, position, str(error)) from error

    def _apply(self, records: Iterable[MetadataRecord]) -> None:
        def apply(record: MetadataRecord) -> None:
            self._loaded.image.apply(record)
            if isinstance(record, RemoveTopicRecord):
                self._loaded.removed_topics.add(record.topic_id)

        for record in records:
            if isinstance(record, BeginTransactionRecord):
                if self._pending is not None:
                    raise InconsistentMetadata("BeginTransactionRecord inside a transaction")
                self._pending = []
            elif isinstance(record, EndTransactionRecord | AbortTransactionRecord):
                if self._pending is None:
                    raise InconsistentMetadata(f"{type(record).__name__} outside a transaction")
                pending, self._pending = self._pending, None
                if isinstance(record, EndTransactionRecord):
                    for held_back in pending:
                        apply(held_back)
            elif self._pending is not None:
                self._pending.append(record)
            else:
                apply(record)

    def finish(self) -> None:
        """Record whether the log ended inside a transaction."""
        self._loaded.has_open_transaction = self._pending is not None


def _pairs(path: str, position: int, header: BatchHeader, batch: bytes) -> list[tuple[bytes | None, bytes]]:
    """Return the keys and values of a batch, which was read from `position` of the file."""
    try:
        return decode_batch(batch, 0, header)
    except CorruptBatch as error:
        raise CorruptLog(path, position + error.position, error.reason) from None


def _unsound(view: bytes, position: int, head: bytes) -> str | None:
    """Return the reason why the batch at `position` is not sound; None if it is."""
    if len(head) < HEADER_SIZE:
        return f"{len(head)} bytes are left, a batch header has {HEADER_SIZE}"
    header = BatchHeader._make(HEADER_STRUCT.unpack(head))
    left = len(view) - position
    if header.size < HEADER_SIZE or header.magic != 2:
        return f"batch of length {header.batch_length} and magic {header.magic}, expected at least 49 and 2"
    if header.size > left:
        return f"batch of {header.size} bytes, {left} are left"
    if not crc_is_valid(bytes(view[position : position + header.size]), 0, header.size):
        return f"batch of {header.size} bytes fails its checksum"
    return None


def _sound_batch_after(view: bytes, position: int) -> int | None:
    """Skip the unsound batch at `position` by its declared length; return the position of a sound batch there, else None."""
    head = bytes(view[position : position + HEADER_SIZE])
    if len(head) < HEADER_SIZE:
        return None
    header = BatchHeader._make(HEADER_STRUCT.unpack(head))
    after = position + header.size
    if header.size < HEADER_SIZE or after >= len(view):
        return None
    return after if _unsound(view, after, bytes(view[after : after + HEADER_SIZE])) is None else None
