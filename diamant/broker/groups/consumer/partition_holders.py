"""The holders of partitions in a consumer group.

A member holds a partition from the time it is assigned until the member confirms its revocation or leaves.
"""

from __future__ import annotations

from uuid import UUID

from diamant.broker.groups.consumer.member import ConsumerGroupMember, EpochedPartitions

NOT_ASSIGNED = -1


class PartitionHolders:
    """The partitions that members hold, and the member epoch of each holder."""

    __slots__ = ("epochs",)

    def __init__(self) -> None:
        self.epochs: dict[UUID, dict[int, int]] = {}
        """The member epoch of the holder, by topic id and partition."""

    def epoch_of(self, topic_id: UUID, partition: int) -> int:
        """Return the epoch of the member that holds a partition; NOT_ASSIGNED if no member does."""
        return self.epochs.get(topic_id, {}).get(partition, NOT_ASSIGNED)

    def replace(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """Replace the partitions that `before` holds with those that `after` holds."""
        if before is not None:
            self._release(before.assigned, before.member_epoch)
            self._release(before.pending_revocation, before.member_epoch)
        if after is not None:
            self._hold(after.assigned, after.member_epoch)
            self._hold(after.pending_revocation, after.member_epoch)

    def _hold(self, partitions: EpochedPartitions, member_epoch: int) -> None:
        for topic_id, epochs in partitions.items():
            holders = self.epochs.setdefault(topic_id, {})
            for partition in epochs:
                held = holders.get(partition)
                if held is None or held < member_epoch:
                    holders[partition] = member_epoch

    def _release(self, partitions: EpochedPartitions, member_epoch: int) -> None:
        for topic_id, epochs in partitions.items():
            holders = self.epochs.get(topic_id)
            if holders is None:
                continue
            for partition in epochs:
                # If the epoch differs, a later record has already given the partition to another member.
                if holders.get(partition) == member_epoch:
                    del holders[partition]
            if not holders:
                del self.epochs[topic_id]
