"""The members of a consumer group that hold partitions.

A partition is held from the moment it is assigned until the member has reported that it gave it up, or is gone.
"""

from __future__ import annotations

from uuid import UUID

from diamant.broker.groups.consumer.member import ConsumerGroupMember, EpochedPartitions

NOT_ASSIGNED = -1


class PartitionHolders:
    """The member epoch of the holder of each partition."""

    __slots__ = ("epochs",)

    def __init__(self) -> None:
        self.epochs: dict[UUID, dict[int, int]] = {}
        """By topic id and partition."""

    def epoch_of(self, topic_id: UUID, partition: int) -> int:
        """The epoch of the member that holds a partition, NOT_ASSIGNED if no member does."""
        return self.epochs.get(topic_id, {}).get(partition, NOT_ASSIGNED)

    def replace(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """Let `after` hold what it has in place of `before`."""
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
                # Another epoch: another member has it already, as the records were written.
                if holders.get(partition) == member_epoch:
                    del holders[partition]
            if not holders:
                del self.epochs[topic_id]
