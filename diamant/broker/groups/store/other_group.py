"""Streams groups that Kafka has left in `__consumer_offsets`. Diamant does not serve them.

They keep their ids, are listed, and can be deleted like other groups. Once empty, such a group can be replaced by a classic
group. Their records stay unchanged, so that Kafka can use them again. Their members cannot send heartbeats to Diamant, so their
sessions expire after the group is loaded, as in Kafka if the members do not return.

Source: StreamsGroup.
"""

from __future__ import annotations

import asyncio

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.other_group_keys import (
    STREAMS,
    OtherGroupKey,
    OtherRecord,
    epoch_of,
    tombstone_keys,
)

SESSION_S = 45.0
"""Kafka's default of `group.streams.session.timeout.ms`."""


class OtherGroup:
    """A streams group. Belongs to the loop thread. Memory: the keys of its records."""

    __slots__ = ("_epochs", "_has_members", "_keys", "group_type", "sessions_end_s")

    def __init__(self, group_type: str) -> None:
        self.group_type = group_type
        self._keys: list[OtherGroupKey] = []
        self._has_members = False
        self.sessions_end_s = asyncio.get_running_loop().time() + SESSION_S
        """The end of the members' sessions, by the loop's clock."""
        self._epochs = {OtherRecord.EPOCH: -1, OtherRecord.TARGET_EPOCH: -1}

    def restore(self, key: OtherGroupKey, value: bytes) -> None:
        """Apply the last record of a key."""
        self._keys.append(key)
        self._has_members |= key.record is OtherRecord.MEMBER
        if key.record in self._epochs:
            self._epochs[key.record] = epoch_of(value)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, or their sessions have ended."""
        return not self._has_members or asyncio.get_running_loop().time() >= self.sessions_end_s

    @property
    def state(self) -> str:
        """Kafka's name of the state."""
        if self.is_empty:
            return "Empty"
        is_assigning = self._epochs[OtherRecord.EPOCH] > self._epochs[OtherRecord.TARGET_EPOCH]
        return "Assigning" if is_assigning and self.group_type == STREAMS else "Stable"

    def check_join(self, group_id: str) -> None:
        """Raise KafkaError INCONSISTENT_GROUP_PROTOCOL unless a classic group may replace this one."""
        if not self.is_empty:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group_id} is a {self.group_type} group")

    def validate_commit(self, group_id: str, generation: int, *, is_transactional: bool) -> None:
        """Raise KafkaError UNKNOWN_MEMBER_ID if the caller claims to be a member, or if the commit is not transactional and the
        group still has members.
        """
        if generation >= 0 or not (is_transactional or self.is_empty):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no such member")

    def validate_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise KafkaError UNKNOWN_MEMBER_ID if the caller claims to be a member, since a streams group's members are unknown."""
        if self.group_type == STREAMS and (member_id is not None or member_epoch >= 0):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no such member")

    def tombstones(self, group_id: str) -> list[tuple[bytes, bytes | None]]:
        """Return the tombstones of the group's records, except those of its offsets, in Kafka's order."""
        return [(key, None) for key in tombstone_keys(self.group_type, group_id, self._keys)]
