"""Deletion of groups without members, and of all their offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.offset_removal import OffsetRemoval
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import encode_offset_commit_key

if TYPE_CHECKING:
    from diamant.broker.groups.share.share_group import ShareGroup


class GroupDeletion:
    """Deletes groups. Belongs to the loop thread."""

    def __init__(
        self, store: GroupStore, log: GroupLog, removal: OffsetRemoval, forget_share: Callable[[ShareGroup], None]
    ) -> None:
        """`forget_share` erases the states of a share group's partitions."""
        self._store = store
        self._log = log
        self._removal = removal
        self._forget_share = forget_share

    def delete(self, group_id: str) -> None:
        """Delete a group without members, and all its offsets.

        KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, and the errors of `GroupStore.check_usable` and `GroupLog`.
        Source: GroupCoordinatorShard.deleteGroups.
        """
        self._store.check_usable(group_id, may_be_empty=True)
        group = self._store.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.has_members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        if group.share is not None:
            self._forget_share(group.share)
        self.delete_empty(group)

    def delete_empty(self, group: Group) -> None:
        """Write tombstones for a group without members and for its offsets, and drop the group from memory.

        The tombstones form one batch, of which a crash leaves all or nothing. If it would be too large, earlier batches remove
        offsets until the rest fits. After a crash between two batches, the deletion can be repeated.
        """
        group_id = group.group_id
        records = group.tombstones()
        places = list(group.offsets.places())
        limit = self._log.tombstones_per_batch(group_id, records)
        rest = max(len(places) - limit, 0)
        self._removal.remove([(group, *place) for place in places[:rest]])
        tombstones = [(encode_offset_commit_key(group_id, *place), None) for place in places[rest:]]
        self._log.append(group_id, [*tombstones, *records])
        for place in places[rest:]:
            group.offsets.remove(*place)
        self._store.become(group, error=ErrorCode.GROUP_ID_NOT_FOUND)
        self._store.forget(group_id)
