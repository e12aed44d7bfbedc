"""A partition's idempotent and transactional producers (ProducerStateManager, ProducerAppendInfo).

The state of a producer id: its epoch, its last five batches (to recognise a resent one), and the first offset of its open
transaction. Checks and changes are separate steps, so that a failed write leaves the state unchanged:

    check(header)        duplicate? refused? else an Update          changes nothing
      ... the batch is written ...
    apply(update, base_offset)           or refuse(header, now_ms) if the write failed

    check_marker(header, coordinator_epoch)                           changes nothing
    completed = transaction_ended_by(header, control_type, offset)    changes nothing
    stable = last_stable_offset_after(completed)                      for the index of aborted transactions
      ... the marker is written ...
    transactions.complete(append_marker(header, control_type, coordinator_epoch, offset))

`start_verification` records a producer that begins a transaction, before the broker has the coordinator verify it.

`replay` applies batches that are already in the log, without checking sequence or epoch.

A sequence number counts the records of one producer in one partition, from 0 to 2^31-1, and then restarts at 0.

At startup, the state is rebuilt from the newest valid snapshot file and the batches after it (see `producer_snapshot`).

Memory: about 1 KB per producer id seen within `producer.id.expiration.ms` (a day); as in Kafka, there is no other bound.
Owned by one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from diamant.protocol.batches.header import (
    CONTROL_FLAG,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.checkpoints.producer_snapshot import ProducerEntry, write_snapshot
from diamant.storage.env.env import Env
from diamant.storage.producers.open_transactions import CompletedTxn, OpenTransactions
from diamant.storage.producers.producer import (
    MAX_CACHED_BATCHES,
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    CachedBatch,
    DuplicateBatch,
    ProducerState,
    check_sequence,
    check_verification,
    stale_epoch,
)
from diamant.storage.producers.producer_snapshots import ProducerSnapshots
from diamant.storage.producers.verification_states import VerificationStates

ABORT = 0
COMMIT = 1


class Update(NamedTuple):
    """A batch that passed its checks; `ProducerStateManager.apply` records it after the write."""

    header: BatchHeader


class ProducerStateManager:
    """The producers of one partition, and the snapshot files in its directory."""

    def __init__(self, env: Env, directory: str, topic: str, partition: int, *, expiration_ms: int) -> None:
        self.snapshots = ProducerSnapshots(env, directory)
        self.map_end_offset = 0
        """The state includes all records below this offset."""
        self.is_loaded = False
        """True once `load` has been called."""
        self._name = f"{topic}-{partition}"
        self._expiration_ms = expiration_ms
        self._producers: dict[int, ProducerState] = {}
        self.transactions = OpenTransactions(self._name)
        self._verifications = VerificationStates()
        self._refused = VerificationStates()
        """Unknown producers whose first batch could not be written."""

    # -- a batch about to be appended ------------------------------------------------------------------------------

    def start_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> bool:
        """Record a transactional batch before the coordinator verifies it; return whether it must be verified.

        Returns False if the producer already has an open transaction of this epoch in the partition. `supports_epoch_bump`:
        the request uses transactions version 2. Raises KafkaError: INVALID_PRODUCER_EPOCH.
        """
        state = self._producers.get(producer_id)
        if state is not None:
            if producer_epoch < state.producer_epoch:
                raise stale_epoch(state, producer_epoch, self._name)
            if state.current_txn_first_offset >= 0 and producer_epoch == state.producer_epoch:
                return False
        self._verifications.start(
            producer_id, base_sequence, producer_epoch, now_ms, supports_epoch_bump=supports_epoch_bump
        )
        return True

    def check(self, header: BatchHeader, *, is_client: bool) -> Update | DuplicateBatch:
        """Check a data batch with a producer id, before it is written; return its Update, or the batch that it duplicates.

        `is_client` is false for batches of our own coordinators, whose sequences (always 0) are not checked.
        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_TXN_STATE.
        """
        state = self._producers.get(header.producer_id)
        if self._verifications and is_client:
            verification = self._verifications.get(header.producer_id)
            if verification is not None:
                duplicate = check_verification(state, header, verification, self._name)
                if duplicate is not None:
                    return duplicate
        if state is None:
            # An unknown producer may begin at any sequence, since its state may have expired or been deleted (KIP-360).
            refused = self._refused.get(header.producer_id)
            if refused is not None:
                check_verification(None, header, refused, self._name)
            return Update(header)
        if is_client:
            expected = NO_SEQUENCE
            if state.producer_epoch == header.producer_epoch:
                if state.batches:
                    expected = state.batches[-1][0]
                expected = expected + 1 if expected != MAX_SEQUENCE else 0
            if header.base_sequence != expected:
                duplicate = check_sequence(state, header, self._name)
                if duplicate is not None:
                    return duplicate
        if header.producer_epoch < state.producer_epoch:
            raise stale_epoch(state, header.producer_epoch, self._name)
        if state.current_txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_FLAG:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {header.producer_id} in partition {self._name}",
            )
        return Update(header)

    def apply(self, update: Update, base_offset: int, max_timestamp: int | None = None) -> None:
        """Record a checked batch as appended at `base_offset`.

        `max_timestamp` overrides the header's, for LogAppendTime.
        """
        header = update.header
        self._add_batch(header, base_offset, header.max_timestamp if max_timestamp is None else max_timestamp)

    def _add_batch(self, header: BatchHeader, base_offset: int, timestamp: int) -> None:
        producer_id = header.producer_id
        state = self._producers.get(producer_id)
        if state is None:
            self._producers[producer_id] = state = ProducerState(producer_id, header.producer_epoch)
            self._refused.on_batch(producer_id)
        elif state.producer_epoch != header.producer_epoch:
            state.set_epoch(header.producer_epoch)
        delta = header.last_offset_delta
        base_sequence = header.base_sequence
        last_sequence = base_sequence + delta if base_sequence >= 0 else NO_SEQUENCE
        if last_sequence > MAX_SEQUENCE:
            last_sequence = header.last_sequence
        batches = state.batches
        if len(batches) == MAX_CACHED_BATCHES:
            del batches[0]
        batches.append(CachedBatch(last_sequence, base_offset + delta, delta, timestamp))
        state.last_timestamp = timestamp
        if header.attributes & TRANSACTIONAL_FLAG:
            self._verifications.on_batch(producer_id)
            if state.current_txn_first_offset < 0:
                state.current_txn_first_offset = base_offset
                self.transactions.begin(base_offset, producer_id)
        self.map_end_offset = base_offset + delta + 1

    def refuse(self, header: BatchHeader, now_ms: int) -> None:
        """Record that a checked batch could not be written, so that an unknown producer cannot begin with a later batch.

        librdkafka assumes that a batch succeeds only if all batches before it have succeeded.
        """
        if header.producer_id not in self._producers:
            self._refused.start(
                header.producer_id, header.base_sequence, header.producer_epoch, now_ms, supports_epoch_bump=False
            )

    # -- markers and transactions ----------------------------------------------------------------------------------

    def check_marker(self, header: BatchHeader, coordinator_epoch: int) -> None:
        """Check a transaction marker before it is written.

        Raises KafkaError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        state = self._producers.get(header.producer_id)
        if state is None:
            return
        if header.producer_epoch < state.producer_epoch:
            raise stale_epoch(state, header.producer_epoch, self._name)
        if coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producer {header.producer_id} in partition {self._name}: "
                f"{coordinator_epoch} (zombie), {state.coordinator_epoch} (current)",
            )

    def transaction_ended_by(self, header: BatchHeader, control_type: int, offset: int) -> CompletedTxn | None:
        """Return the transaction that `append_marker` would return; changes nothing."""
        state = self._producers.get(header.producer_id)
        if control_type not in (ABORT, COMMIT) or state is None or state.current_txn_first_offset < 0:
            return None
        return CompletedTxn(header.producer_id, state.current_txn_first_offset, offset, control_type == ABORT)

    def append_marker(
        self, header: BatchHeader, control_type: int, coordinator_epoch: int, offset: int, *, is_replay: bool = False
    ) -> CompletedTxn | None:
        """Record a marker as appended at `offset`; return the transaction that it ends, or None if none was open.

        The transaction counts as open until `transactions.complete`. Other control records have no effect. Unless
        `is_replay`, raises the errors of `check_marker` before any change.
        """
        if control_type not in (ABORT, COMMIT):
            return None
        if not is_replay:
            self.check_marker(header, coordinator_epoch)
        state = self._producers.get(header.producer_id)
        if state is None:
            self._producers[header.producer_id] = state = ProducerState(header.producer_id)
        self._verifications.on_marker(header.producer_id, header.producer_epoch)
        first_offset = state.current_txn_first_offset
        state.set_epoch(header.producer_epoch)
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = header.max_timestamp
        state.current_txn_first_offset = NO_OFFSET
        self.map_end_offset = offset + 1
        if first_offset < 0:
            return None
        return CompletedTxn(header.producer_id, first_offset, offset, control_type == ABORT)

    def on_log_start_offset(self, log_start_offset: int) -> None:
        """Release completed transactions below the new log start offset."""
        self.transactions.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    # -- batches already in the log ---------------------------------------------------------------------------------

    def replay(
        self, header: BatchHeader, *, control_type: int | None = None, coordinator_epoch: int = NO_COORDINATOR_EPOCH
    ) -> CompletedTxn | None:
        """Apply a stored batch as a follower would, without checking sequence or epoch; return the transaction that it ends.

        For a control batch, pass the fields of its record; a batch that compaction has emptied has none, and ends no transaction.
        The caller passes the result to `transactions.complete`.
        """
        if header.attributes & CONTROL_FLAG:
            self.map_end_offset = header.next_offset
            if control_type is None:
                return None
            return self.append_marker(header, control_type, coordinator_epoch, header.base_offset, is_replay=True)
        self._add_batch(header, header.base_offset, header.max_timestamp)
        return None

    # -- queries ----------------------------------------------------------------------------------------------------

    @property
    def producer_count(self) -> int:
        """Number of known producers."""
        return len(self._producers)

    @property
    def active_producers(self) -> list[ProducerEntry]:
        """The snapshot entry of every known producer, for DescribeProducers and the cleaner's retention."""
        return [state.to_entry() for state in self._producers.values()]

    def state_of(self, producer_id: int) -> ProducerState | None:
        """Return a producer's state, read-only; None if unknown."""
        return self._producers.get(producer_id)

    def expire(self, now_ms: int, expiration_ms: int | None = None) -> int:
        """Forget producers idle for `expiration_ms` without an open transaction; return their number."""
        limit_ms = self._expiration_ms if expiration_ms is None else expiration_ms
        expired = [
            producer_id
            for producer_id, state in self._producers.items()
            if state.current_txn_first_offset < 0 and now_ms - state.last_timestamp >= limit_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self._verifications.expire(now_ms, limit_ms)
        self._refused.expire(now_ms, limit_ms)
        return len(expired)

    def clear(self, offset: int = 0) -> None:
        """Reset the state to that of an empty log at `offset`."""
        self._producers.clear()
        self.transactions.clear()
        self.map_end_offset = offset

    def restore(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        """Add the producers of a snapshot that have not expired."""
        opened: list[tuple[int, int]] = []
        for entry in entries:
            if entry.current_txn_first_offset < 0 and now_ms - entry.timestamp >= self._expiration_ms:
                continue
            state = ProducerState(entry.producer_id, entry.producer_epoch)
            state.coordinator_epoch = entry.coordinator_epoch
            state.last_timestamp = entry.timestamp
            state.current_txn_first_offset = entry.current_txn_first_offset
            if entry.last_offset >= 0:
                batch = CachedBatch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
                state.batches.append(batch)
            if entry.current_txn_first_offset >= 0:
                opened.append((entry.current_txn_first_offset, entry.producer_id))
            self._producers[entry.producer_id] = state
        for first_offset, producer_id in sorted(opened):
            self.transactions.begin(first_offset, producer_id)

    # -- snapshot files ---------------------------------------------------------------------------------------------

    def take_snapshot(self, offset: int) -> str | None:
        """Write the state, which is complete up to `offset`, to a snapshot file without syncing it; return the path.

        Writes nothing and returns None if `offset` is 0 or not above that of the newest snapshot.
        """
        self.map_end_offset = offset
        return self.snapshots.write(offset, self._producers.values())

    def encode_snapshot(self) -> bytes:
        """Return the contents of a snapshot file for the current state."""
        return write_snapshot(producer.to_entry() for producer in self._producers.values())

    def load(self, now_ms: int, end_offset: int, *, log_start_offset: int) -> None:
        """Reload the state from the newest valid snapshot in `(log_start_offset, end_offset]` (`truncateAndReload`).

        Removes snapshots outside that range, and corrupt ones. Afterwards the log must be replayed from `map_end_offset`.
        """
        self.is_loaded = True
        self.clear(log_start_offset)
        newest = self.snapshots.newest(log_start_offset, end_offset)
        if newest is not None:
            self.map_end_offset, entries = newest
            self.restore(entries, now_ms)
