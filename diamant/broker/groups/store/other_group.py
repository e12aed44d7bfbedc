"""Streams groups, which are not served: a Kafka left them in `__consumer_offsets`.

They keep their ids (only a classic group may replace them, once empty), are listed, and can be deleted like other groups. Their
records stay as they are for a Kafka to use. Members cannot send heartbeats here, so they count as members for one session after
the load, as in a Kafka to which they do not return.

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
        """By the loop's clock."""
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
        """Check that a classic group may replace this one. Raises KafkaError INCONSISTENT_GROUP_PROTOCOL."""
        if not self.is_empty:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group_id} is a {self.group_type} group")

    def validate_commit(self, group_id: str, generation: int, *, is_transactional: bool) -> None:
        """Check that offsets may be committed. Raises KafkaError UNKNOWN_MEMBER_ID for a member, and for a caller outside a
        transaction while the group has members.
        """
        if generation >= 0 or not (is_transactional or self.is_empty):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no such member")

    def validate_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Check that a member may read offsets. Raises KafkaError UNKNOWN_MEMBER_ID in a streams group, as no member is known."""
        if self.group_type == STREAMS and (member_id is not None or member_epoch >= 0):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no such member")

    def tombstones(self, group_id: str) -> list[tuple[bytes, bytes | None]]:
        """Return the records that erase the group from the log, without its offsets, in Kafka's order."""
        return [(key, None) for key in tombstone_keys(self.group_type, group_id, self._keys)]
