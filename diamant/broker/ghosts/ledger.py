"""The ledger of deletions that groups have missed. It is kept in memory, since an erasure does not reach other files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from diamant.broker.record_json import key_fields

MAX_GHOSTS = 10_000
MAX_KEY_BYTES = 1024
"""The longest key that is stored; longer keys are only counted. A ledger takes at most about 15 MB."""


class Ghost(NamedTuple):
    """A key whose tombstone was removed before these groups passed it."""

    key: bytes
    offset: int
    """The offset of the tombstone."""
    removed_ms: int
    groups: Mapping[str, int]
    """The groups, with their committed offsets at that time."""


class GhostReport(NamedTuple):
    """The ghosts of a topic, by partition and offset. `left_out`: the number that did not fit into the ledger."""

    topic: str
    ghosts: tuple[tuple[int, Ghost], ...]
    left_out: int

    def to_fields(self) -> dict[str, object]:
        """The fields of the JSON object."""
        return {
            "topic": self.topic,
            "ghosts": [
                {
                    "partition": partition,
                    "key": key_fields(ghost.key),
                    "offset": ghost.offset,
                    "removed_ms": ghost.removed_ms,
                    "groups": sorted(ghost.groups),
                }
                for partition, ghost in self.ghosts
            ],
            "left_out": self.left_out,
        }


class GhostLedger:
    """Holds at most `MAX_GHOSTS`; further ones are counted by topic. Topics are keyed by id, so a recreated topic has none."""

    def __init__(self) -> None:
        self._by_partition: dict[tuple[UUID, int], dict[bytes, Ghost]] = {}
        self._count = 0
        self.left_out: dict[UUID, int] = {}

    def add(self, topic_id: UUID, partition: int, ghost: Ghost) -> None:
        """Add a ghost, replacing an earlier one of its key."""
        keys = self._by_partition.setdefault((topic_id, partition), {})
        if ghost.key not in keys:
            if self._count >= MAX_GHOSTS or len(ghost.key) > MAX_KEY_BYTES:
                self.left_out[topic_id] = self.left_out.get(topic_id, 0) + 1
                return
            self._count += 1
        keys[ghost.key] = ghost

    def of(self, topic_id: UUID) -> dict[int, dict[bytes, Ghost]]:
        """Copies of the ghosts of a topic, by partition and key."""
        return {
            partition: dict(keys) for (one, partition), keys in self._by_partition.items() if keys and one == topic_id
        }

    def discard(self, topic_id: UUID, partition: int, key: bytes) -> None:
        """Remove a ghost if it exists."""
        if self._by_partition.get((topic_id, partition), {}).pop(key, None) is not None:
            self._count -= 1

    def forget_key(self, key: bytes) -> None:
        """Remove an erased key from all topics."""
        for topic_id, partition in self._by_partition:
            self.discard(topic_id, partition, key)
