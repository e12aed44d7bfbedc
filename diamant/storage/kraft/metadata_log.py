"""The metadata log of a broker that is its own controller: `__cluster_metadata-0` in a quorum of one (KRaft).

`open_metadata_log` (`opening.py`) creates it. `image` is the state of the log; `append` updates both, one batch at a time.
`close` fences the broker, so that a real Kafka can register immediately.

Threads: the loop thread owns the object. Any thread may call `sync`, even while the loop thread appends, and `write_snapshot`
with the result of `prepare_snapshot`.

Source: KafkaRaftClient, QuorumController, ClusterControlManager, ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.batch import encode_control_batch, encode_metadata_batch
from diamant.protocol.kraft.control_records import ControlRecord, KRaftVersion, KRaftVoters, LeaderChange
from diamant.protocol.kraft.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    encode_record,
)
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.checkpoints.meta_properties import MetaProperties
from diamant.storage.checkpoints.quorum_state import QuorumState, write_quorum_state
from diamant.storage.env.env import Env
from diamant.storage.kraft.features import unsupported_feature
from diamant.storage.kraft.format import metadata_directory
from diamant.storage.kraft.image import InconsistentMetadata, MetadataImage, Undo, undo_changes
from diamant.storage.kraft.metadata_files import MetadataFiles
from diamant.storage.kraft.replay import BOOTSTRAP_SNAPSHOT, LoadedMetadata
from diamant.storage.kraft.snapshot import (
    Snapshot,
    SnapshotId,
    encode_snapshot,
    list_snapshots,
    write_snapshot,
)

MAX_RECORDS_PER_BATCH = 10_000
"""Maximum number of records that Kafka's controller writes as one atomic change (`QuorumController.MAX_RECORDS_PER_USER_OP`)."""
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""The largest batch that Kafka can read (`KafkaRaftClient.MAX_BATCH_SIZE_BYTES`)."""

DEFAULT_SNAPSHOT_BYTES = 20 * 1024 * 1024
DEFAULT_SNAPSHOT_INTERVAL_MS = 3_600_000
SNAPSHOTS_KEPT = 2
"""Number of snapshots to keep. The log is kept from the end of the oldest one on."""


class PreparedSnapshot(NamedTuple):
    """A snapshot ready for `MetadataLog.write_snapshot`."""

    snapshot_id: SnapshotId
    snapshot: Snapshot
    metadata_version: int
    timestamp_ms: int


class MetadataLog:
    """An open metadata log. Create it with `opening.open_metadata_log`, and close it with `close`."""

    image: MetadataImage
    """The state as of the last append. Only `append` may change it."""
    broker_epoch: int
    """The epoch of our registration, to be written to `.kafka_cleanshutdown`. Without it, a real Kafka treats the stop as a
    crash, and with ELR marks every partition as recovering."""
    is_taken_over: bool
    """True if the last broker that used the directory was another program's, such as Kafka's."""
    messages: list[str]
    """Warnings for the operator about the state of the log when it was opened."""

    def __init__(
        self,
        env: Env,
        path: str,
        properties: MetaProperties,
        loaded: LoadedMetadata,
        *,
        broker_ids: Sequence[int],
        snapshot_bytes: int,
        snapshot_interval_ms: int,
    ) -> None:
        self.image = loaded.image
        self.broker_ids = broker_ids
        """The ids of the brokers in this process, beginning with this node's."""
        self.broker_epoch = -1
        self.is_taken_over = False
        self.messages = loaded.messages
        self.removed_topics = frozenset(loaded.removed_topics)
        """Ids of topics whose deletion was in the log when it was opened; emptied once the partitions are open."""
        self.written_before_ms = loaded.modified_ms
        """Time of the last write to the log before it was opened, according to the file system."""
        self.path = path
        self._env = env
        self._directory = metadata_directory(path)
        self._properties = properties
        self._epoch = loaded.last_epoch
        self._last_timestamp_ms = loaded.last_timestamp_ms
        self._kraft_version = loaded.kraft_version
        self._voters = loaded.voters
        self._snapshot_bytes = snapshot_bytes
        self._snapshot_interval_ms = snapshot_interval_ms
        self._bytes_since_snapshot = loaded.bytes_since_snapshot
        self._last_snapshot_ms = env.clock.now_ms()
        self._files = MetadataFiles(env, self._directory, loaded, self.messages)
        self._epochs = LeaderEpochs(env, f"{self._directory}/{names.LEADER_EPOCH_CHECKPOINT}", loaded.epochs)

    # -- opening -------------------------------------------------------------------------------------------------

    def remove_leftovers(self) -> None:
        """Remove files that are left over or not needed (`MetadataFiles.remove_leftovers`)."""
        self._files.remove_leftovers()

    def begin_epoch(self, epoch: int, *, has_voters_in_log: bool) -> None:
        """Become leader of the quorum in this epoch; record that in the log, and also the voters unless it has them."""
        node_id = self._properties.node_id
        is_dynamic = self._kraft_version > 0
        state = QuorumState(node_id, epoch, voters=None if is_dynamic else (node_id,))
        # Write this first: whatever happens next, this epoch must not be reused.
        write_quorum_state(self._env, self._directory, state)
        self._epoch = epoch
        controls: list[ControlRecord] = [LeaderChange(node_id, (node_id,), (node_id,))]
        if is_dynamic and not has_voters_in_log and self._voters is not None:
            controls += [KRaftVersion(self._kraft_version), self._voters]
        self._epochs.assign(epoch, self._files.end_offset)
        now_ms = self._env.clock.now_ms()
        batch = encode_control_batch(
            controls, base_offset=self._files.end_offset, leader_epoch=epoch, timestamp_ms=now_ms
        )
        self._write(batch, len(controls), now_ms)

    # -- properties ----------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self._properties.cluster_id

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self._properties.node_id

    @property
    def directory_id(self) -> UUID:
        """The id of the log directory, used in partition records."""
        return self._properties.directory_id

    @property
    def epoch(self) -> int:
        """The quorum's epoch, which every start increments."""
        return self._epoch

    @property
    def voters(self) -> KRaftVoters | None:
        """The quorum recorded in the log; None if a configuration defines it (kraft.version 0)."""
        return self._voters if self._kraft_version else None

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._files.end_offset

    @property
    def synced_offset(self) -> int:
        """All records below this offset are durable."""
        return self._files.synced_offset

    # -- changing ------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Apply `records` to the image and write them as one batch; return the offset of the last one.

        Applies all of them or, on any error, none. The batch is then in the page cache; call `sync` before responding to a
        client. Raises InconsistentMetadata if a record contradicts the image or a feature is not supported, MalformedRecord if a
        value cannot be encoded, KafkaError POLICY_VIOLATION if the batch would be too large, OSError if the disk fails,
        StorageError after such a failure.
        """
        self._files.check_usable()
        if not records:
            raise ValueError("expected at least one record to append, got none")
        if len(records) > MAX_RECORDS_PER_BATCH:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"a change has {len(records)} metadata records, but at most {MAX_RECORDS_PER_BATCH} are possible at once",
            )
        now_ms = self._env.clock.now_ms()
        undo: Undo = []
        try:
            values = self._apply(records, undo)
            batch = encode_metadata_batch(
                values, base_offset=self._files.end_offset, leader_epoch=self._epoch, timestamp_ms=now_ms
            )
            if len(batch) > MAX_BATCH_BYTES:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"a change has {len(batch)} bytes of metadata, but at most {MAX_BATCH_BYTES} are possible at once",
                )
            self._write(batch, len(values), now_ms)
        except BaseException:
            undo_changes(undo)
            raise
        return self._files.end_offset - 1

    def _apply(self, records: Sequence[MetadataRecord], undo: Undo) -> list[bytes]:
        """Apply records to the image; return them encoded, each in the version that fits the metadata.version at that point."""
        image = self.image
        values = []
        is_in_transaction = False
        for record in records:
            if isinstance(record, BeginTransactionRecord | EndTransactionRecord):
                # Transactions within one batch have no effect, since the batch is atomic anyway.
                if isinstance(record, BeginTransactionRecord) == is_in_transaction:
                    raise InconsistentMetadata(f"{record!r}: transactions must begin and end alternately")
                is_in_transaction = not is_in_transaction
            elif isinstance(record, FeatureLevelRecord):
                reason = unsupported_feature(record.name, record.feature_level)
                if reason is not None:
                    raise InconsistentMetadata(f"{record!r}: {reason}")
                image.apply(record, undo)
            elif not isinstance(record, AbortTransactionRecord):
                image.apply(record, undo)
            values.append(encode_record(record, metadata_version=image.metadata_version))
        if is_in_transaction:
            raise InconsistentMetadata("a transaction must end in the batch in which it begins")
        return values

    def _write(self, batch: bytes, count: int, now_ms: int) -> None:
        self._files.append(batch, count)
        self._bytes_since_snapshot += len(batch)
        self._last_timestamp_ms = now_ms

    def sync(self) -> None:
        """Make all earlier appends durable (`MetadataFiles.sync`)."""
        self._files.sync()

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def is_snapshot_due(self) -> bool:
        """True if records were written since the last snapshot, and their size or the time since then exceeds its limit."""
        if self._bytes_since_snapshot == 0:
            return False
        if self._bytes_since_snapshot > self._snapshot_bytes:
            return True
        age_ms = self._env.clock.now_ms() - self._last_snapshot_ms
        return 0 < self._snapshot_interval_ms <= age_ms

    def prepare_snapshot(self) -> PreparedSnapshot:
        """Take a snapshot of the image; roll the segment if it is large, which blocks on the disk."""
        self._files.check_usable()
        now_ms = self._env.clock.now_ms()
        voters = self._voters if self._kraft_version else None
        records = tuple(self.image.to_records())
        prepared = PreparedSnapshot(
            SnapshotId(self._files.end_offset, self._epoch),
            Snapshot(self._last_timestamp_ms, self._kraft_version, voters, records),
            self.image.metadata_version,
            now_ms,
        )
        if self._files.active_size > self._snapshot_bytes:
            self._files.roll()
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = now_ms
        return prepared

    def write_snapshot(self, prepared: PreparedSnapshot) -> None:
        """Write a prepared snapshot, then remove files that it makes obsolete. Blocks on the disk; any thread may call it.

        Syncs the covered records first, because a snapshot must not be ahead of its log.
        """
        self.sync()
        content = encode_snapshot(
            prepared.snapshot,
            epoch=prepared.snapshot_id.epoch,
            metadata_version=prepared.metadata_version,
            timestamp_ms=prepared.timestamp_ms,
        )
        write_snapshot(self._env, self._directory, prepared.snapshot_id, content)
        self._trim()

    def _trim(self) -> None:
        """Remove all but the newest snapshots, and the segments wholly below the oldest one kept."""
        snapshots = [found for found in list_snapshots(self._env, self._directory) if found != BOOTSTRAP_SNAPSHOT]
        kept = snapshots[-SNAPSHOTS_KEPT:]
        for snapshot_id in snapshots[:-SNAPSHOTS_KEPT]:
            self._env.remove(names.metadata_snapshot_file(self._directory, *snapshot_id))
        self._files.remove_below(kept[0].end_offset)
        self._env.sync_dir(self._directory)

    # -- copying -------------------------------------------------------------------------------------------------

    def content(self) -> dict[str, bytes]:
        """Return the contents of the log's files by name, in the state in which `close` would leave them."""
        batch = encode_metadata_batch(
            [encode_record(record, metadata_version=self.image.metadata_version) for record in self._closing()],
            base_offset=self._files.end_offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._env.clock.now_ms(),
        )
        return self._files.content(batch)

    def _closing(self) -> list[BrokerRegistrationChangeRecord]:
        """Return the records of a clean stop. With several brokers, the records do not change which ones are fenced."""
        if len(self.broker_ids) == 1:
            return [BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=self.broker_epoch, fenced=1)]
        brokers = [self.image.brokers[broker_id] for broker_id in self.broker_ids]
        return [
            BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
            )
            for broker in brokers
        ]

    # -- closing -------------------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> None:
        """Close the log; if `clean`, fence our registration first. May be called twice. Blocks on the disk."""
        if self._files.is_closed:
            return
        try:
            if clean and self._files.failure is None:
                self.append(self._closing())
                self.sync()
                # This file is only a cache: opening the log rebuilds the epochs from its batches.
                self._epochs.sync()
        finally:
            self._files.close()
