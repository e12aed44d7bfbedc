"""Expires committed offsets (`offsets.retention.minutes`), and deletes groups that have neither members nor offsets.

Source: OffsetMetadataManager.cleanupExpiredOffsets, GroupCoordinatorShard.cleanupGroupMetadata.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.group_deletion import GroupDeletion
from diamant.broker.groups.coordinator.loading import GroupLoading
from diamant.broker.groups.coordinator.offset_removal import GROUPS_PER_TURN, OffsetRemoval
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.protocol.errors import KafkaError
from diamant.protocol.internal_topics.group_records import NO_TIMESTAMP, parse_offset_commit_value

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)


class OffsetExpiry:
    """Expires the offsets of all groups. Belongs to the loop thread."""

    def __init__(
        self, node: Node, store: GroupStore, loading: GroupLoading, removal: OffsetRemoval, deletion: GroupDeletion
    ) -> None:
        self._node = node
        self._store = store
        self._loading = loading
        self._removal = removal
        self._deletion = deletion

    async def expire(self) -> None:
        """Remove expired offsets, and groups that have neither members nor offsets left.

        Source: GroupCoordinatorShard.cleanupGroupMetadata.
        """
        for count, group_id in enumerate(list(self._store.groups), start=1):
            group = self._store.group(group_id)
            if group is not None and not self._loading.is_loading:
                self._expire_group(group)
            if count % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _expire_group(self, group: Group) -> None:
        config = self._node.config
        now_ms = self._node.env.clock.now_ms()
        try:
            expired = expired_offsets(group, now_ms, config.offsets_retention_minutes * 60_000)
            is_all = not group.has_members and len(expired) == group.offsets.count and not group.offsets.pending
            if is_all and not group.is_kept_when_empty:
                self._deletion.delete_empty(group)
            else:
                self._removal.remove([(group, *place) for place in expired])
            if expired:
                logger.info("group %s: %d offsets expired", group.group_id, len(expired))
        except KafkaError as error:
            logger.error("offsets of group %s could not be expired: %s", group.group_id, error)


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
    """Return the (topic, partition) pairs whose offsets have expired at `now_ms`."""
    may_expire, since_ms = _base_time(group)
    if not may_expire:
        return []
    expired = []
    for topic, partitions in group.offsets.committed.items():
        if group.is_subscribed(topic):
            continue
        for partition, (value, _) in partitions.items():
            commit = parse_offset_commit_value(value)
            if commit.expire_timestamp != NO_TIMESTAMP:
                is_expired = now_ms >= commit.expire_timestamp
            else:
                is_expired = now_ms - (commit.commit_timestamp if since_ms is None else since_ms) >= retention_ms
            if is_expired and not group.offsets.is_pending(topic, partition):
                expired.append((topic, partition))
    return expired


def _base_time(group: Group) -> tuple[bool, int | None]:
    """Return whether offsets may expire, and when their retention began (None: each at its own commit)."""
    classic = group.classic
    if classic is None or not classic.protocol_type:
        return True, None
    if classic.is_empty:
        return True, classic.current_state_timestamp_ms
    is_stable = group.state == "Stable"
    return is_stable and classic.uses_consumer_protocol and classic.subscriptions.topics is not None, None
