"""Answers the requests that brokers send each other about states of share partitions: initialize, read, write, delete.

A write request releases the records that members have acquired, because it makes the share partition reload its state.

Source: ShareCoordinatorService, ShareCoordinatorShard of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.groups.delivery.share_state import ShareState, StoredState
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.share_records import SharePartitionKey, StateBatch

if TYPE_CHECKING:
    from diamant.broker.topics.topics import Topics

NOT_HOSTED = "This server does not host this topic-partition."
NO_EPOCH = -1


class WrittenState(NamedTuple):
    """The fields of a write request. A start offset or leader epoch of -1 leaves the stored value unchanged."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    completed_count: int
    batches: Sequence[StateBatch]


class StateRequests:
    """Answers the requests; see the module. Belongs to the loop thread."""

    def __init__(self, state: ShareState, topics: Topics) -> None:
        self._state = state
        self._topics = topics

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Create a state. Raises KafkaError NOT_COORDINATOR, INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, FENCED_STATE_EPOCH."""
        stored = self._found(key)
        if stored is not None and NO_EPOCH != state_epoch < stored.state_epoch:
            raise _fenced_state()
        self._check_hosted(key)
        self._state.initialize(key, state_epoch, start_offset)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> StoredState:
        """Return a state; store `leader_epoch` if it is later. Raises KafkaError as `initialize` does, or FENCED_LEADER_EPOCH."""
        stored = self._found(key)
        if stored is None:
            raise _refused("Read operation on uninitialized share partition not allowed.")
        self._check(key, stored, leader_epoch)
        if leader_epoch > stored.leader_epoch:
            start, count, _ = stored.current()
            self._state.write_update(key, leader_epoch, start, count, ())
        return stored

    def summary(self, key: SharePartitionKey, leader_epoch: int) -> StoredState | None:
        """Return a state, or None if it does not exist. Raises KafkaError as `read` does."""
        stored = self._found(key)
        if stored is not None:
            self._check(key, stored, leader_epoch)
        return stored

    def write(self, key: SharePartitionKey, written: WrittenState) -> None:
        """Change a state. Raises KafkaError as `read` does, or FENCED_STATE_EPOCH."""
        stored = self._found(key)
        if stored is None:
            raise _refused("Write operation on uninitialized share partition not allowed.")
        self._check(key, stored, written.leader_epoch)
        if NO_EPOCH != written.state_epoch < stored.state_epoch:
            raise _fenced_state()
        stored.unload()
        start = stored.start_offset if written.start_offset == UNKNOWN_OFFSET else written.start_offset
        leader_epoch = stored.leader_epoch if written.leader_epoch == NO_EPOCH else written.leader_epoch
        self._state.write_update(key, leader_epoch, start, written.completed_count, written.batches)

    def remove(self, key: SharePartitionKey) -> None:
        """Delete a state if it exists. Raises KafkaError as `initialize` does."""
        if self._found(key) is not None:
            self._state.remove([key])

    def _found(self, key: SharePartitionKey) -> StoredState | None:
        if key.partition < 0:
            raise _refused("The partition id cannot be a negative number.")
        if not self._state.topic.exists:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "This is not the correct coordinator.")
        self._state.check(key)
        return self._state.states.get(key)

    def _check(self, key: SharePartitionKey, stored: StoredState, leader_epoch: int) -> None:
        if NO_EPOCH != leader_epoch < stored.leader_epoch:
            detail = "The leader epoch in the request is older than the epoch on the broker."
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, detail)
        self._check_hosted(key)

    def _check_hosted(self, key: SharePartitionKey) -> None:
        topic = self._topics.by_id.get(key.topic_id)
        if topic is None or key.partition not in topic.logs:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _fenced_state() -> KafkaError:
    message = "The share coordinator rejected the request because the share-group state epoch did not match."
    return KafkaError(ErrorCode.FENCED_STATE_EPOCH, message)
