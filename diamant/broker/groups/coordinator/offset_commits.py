"""Offset commits, including those that take effect at the end of a transaction.

Source: OffsetMetadataManager.commitOffset, commitTransactionalOffset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.offset_selection import without_long_metadata
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.offset_records import encode_offset_records
from diamant.protocol.messages.offset_columns import TopicOffsets
from diamant.storage.config_key import LONG_MAX

if TYPE_CHECKING:
    from diamant.broker.groups.classic.classic_group import ClassicGroup
    from diamant.broker.node.node import Node

FIRST_WITH_GROUP_ID_NOT_FOUND = 9
"""Earlier versions of OffsetCommit return ILLEGAL_GENERATION if a member's group does not exist."""
FIRST_TXN_WITH_GROUP_ID_NOT_FOUND = 6
"""The corresponding version of TxnOffsetCommit, which is also its first version with STALE_MEMBER_EPOCH."""

NO_RETENTION_MS = -1


class OffsetCommits:
    """Commits the offsets of all groups. Belongs to the loop thread."""

    def __init__(self, node: Node, store: GroupStore, log: GroupLog, seen: Callable[[ClassicGroup, str], None]) -> None:
        """`seen(group, member_id)` is called when a member of a classic group commits, which counts as a heartbeat."""
        self._node = node
        self._store = store
        self._log = log
        self._seen = seen
        self._open_transactions: dict[tuple[int, int], set[str]] = {}

    def commit(
        self,
        group_id: str,
        topics: Sequence[TopicOffsets],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        retention_ms: int = NO_RETENTION_MS,
    ) -> list[tuple[int, int]]:
        """Commit offsets; return the (number, row) in `topics` of each offset refused as OFFSET_METADATA_TOO_LARGE.

        `generation` is the member epoch in consumer groups, and -1 if the caller is not a member. `version` is the API version.
        Raises KafkaError if all offsets are refused: the errors of `check_usable`, the group's `validate_commit` and `append`;
        GROUP_ID_NOT_FOUND or ILLEGAL_GENERATION if a member's group does not exist. Source: OffsetMetadataManager.commitOffset.
        """
        self._store.check_usable(group_id, may_be_empty=True)
        group = self._group(group_id, generation, is_known=version >= FIRST_WITH_GROUP_ID_NOT_FOUND)
        _check_member(group, topics, member_id, instance_id, generation, version, is_transactional=False)
        if group.classic is not None and member_id:
            self._seen(group.classic, member_id)
        now_ms = self._node.env.clock.now_ms()
        expire_ms = -1 if retention_ms == NO_RETENTION_MS else min(now_ms + retention_ms, LONG_MAX)
        topics, too_long = without_long_metadata(topics, self._node.config.offset_metadata_max_bytes)
        if topics:
            encoded = encode_offset_records(group_id, topics, now_ms, expire_ms)
            partition = self._log.partition_of(group_id)
            log_offset = self._log.append_encoded(partition, encoded.payload, encoded.record_count, timestamp_ms=now_ms)
            self._store.adopt(group)
            group.offsets.put_encoded(topics, encoded, log_offset)
        return too_long

    def commit_transactional(
        self,
        group_id: str,
        topics: Sequence[TopicOffsets],
        *,
        producer_id: int,
        producer_epoch: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
    ) -> list[tuple[int, int]]:
        """Like `commit`, but the offsets stay pending until `end_transaction` commits or drops them (TxnOffsetCommit).

        Raises the KafkaErrors of `commit` (before version 6, ILLEGAL_GENERATION instead of STALE_MEMBER_EPOCH and
        GROUP_ID_NOT_FOUND) and the log's errors about the producer. Source: OffsetMetadataManager.commitTransactionalOffset.
        """
        self._store.check_usable(group_id)
        is_known = version >= FIRST_TXN_WITH_GROUP_ID_NOT_FOUND
        group = self._group(group_id, generation, is_known=is_known)
        try:
            _check_member(group, topics, member_id, instance_id, generation, version, is_transactional=True)
        except KafkaError as error:
            if error.code == ErrorCode.STALE_MEMBER_EPOCH and not is_known:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.detail) from None
            raise
        now_ms = self._node.env.clock.now_ms()
        topics, too_long = without_long_metadata(topics, self._node.config.offset_metadata_max_bytes)
        if topics:
            encoded = encode_offset_records(group_id, topics, now_ms)
            partition = self._log.partition_of(group_id)
            log_offset = self._log.append_encoded(
                partition,
                encoded.payload,
                encoded.record_count,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=now_ms,
            )
            self._store.adopt(group)
            self.open_transaction(partition, producer_id, group_id)
            group.offsets.put_encoded_pending(producer_id, topics, encoded, log_offset)
        return too_long

    def _group(self, group_id: str, generation: int, *, is_known: bool) -> Group:
        """Return the group, or a new one if the caller is not a member. `is_known`: the version has GROUP_ID_NOT_FOUND."""
        group = self._store.group(group_id)
        if group is None and generation >= 0:
            code = ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION
            raise KafkaError(code, f"Group {group_id} not found.")
        return Group(group_id) if group is None else group

    def open_transaction(self, partition: int, producer_id: int, group_id: str) -> None:
        """Record that a producer has pending offsets in a group, whose records are in `partition`."""
        self._open_transactions.setdefault((partition, producer_id), set()).add(group_id)

    def end_transaction(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """Commit or drop the pending offsets of a producer in a partition."""
        for group_id in self._open_transactions.pop((partition, producer_id), ()):
            group = self._store.group(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, is_commit=is_commit)

    def clear(self) -> None:
        """Drop all pending transactions."""
        self._open_transactions.clear()


def _check_member(
    group: Group,
    topics: Sequence[TopicOffsets],
    member_id: str,
    instance_id: str | None,
    generation: int,
    version: int,
    *,
    is_transactional: bool,
) -> None:
    """Raise KafkaError unless the caller may commit all of these offsets."""
    group.check_has_offsets()
    if group.classic is not None:
        group.classic.validate_commit(member_id, instance_id, generation, version, is_transactional=is_transactional)
    elif group.consumer is not None:
        from diamant.broker.groups.consumer.offset_checks import validate_commit

        check = validate_commit(
            group.consumer, member_id, instance_id, generation, version, is_transactional=is_transactional
        )
        if check is not None:
            for name, topic_id, partitions, *_ in topics:
                for partition in partitions:
                    check(name, topic_id, partition)
    elif group.other is not None:
        group.other.validate_commit(group.group_id, generation, is_transactional=is_transactional)
    elif generation >= 0:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has no members")
