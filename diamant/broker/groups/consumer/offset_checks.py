"""Checks whether members of a consumer group may commit or fetch offsets.

Source: ConsumerGroup.validateOffsetCommit, validateOffsetFetch of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.member import ConsumerGroupMember
from diamant.protocol.errors import ErrorCode, KafkaError

FIRST_COMMIT_VERSION = 9
"""The first version of OffsetCommit that contains a member epoch, which the consumer protocol needs."""

PartitionCheck: TypeAlias = Callable[[str, UUID | None, int], None]
"""Takes (topic name, topic id, partition). Raises KafkaError if the partition's offset must not be committed."""


def validate_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    member_epoch: int,
    version: int,
    *,
    is_transactional: bool = False,
) -> PartitionCheck | None:
    """Check a commit. Return None if it is allowed for all partitions, otherwise a function that checks one partition.

    A commit with an epoch older than the member's is valid for partitions that the member has owned since that epoch
    (KIP-1251). Raises KafkaError if the whole request is refused: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (classic members:
    ILLEGAL_GENERATION), UNSUPPORTED_VERSION. Source: ConsumerGroup.validateOffsetCommit.
    """
    if member_epoch < 0 and not group.members:
        return None  # an administrator, or a consumer without group membership
    if is_transactional and member_epoch == -1 and not member_id and instance_id is None:
        return None
    member = group.member(member_id)
    if not is_transactional and not member.uses_classic_protocol and version < FIRST_COMMIT_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"OffsetCommit version {FIRST_COMMIT_VERSION} or above must be used by members using the consumer group "
            "protocol",
        )
    if member_epoch == member.member_epoch:
        return None
    if member_epoch > member.member_epoch:
        raise _stale(member, f"Received {{}} {member_epoch} is newer than current member epoch {member.member_epoch}.")

    def check(topic: str, topic_id: UUID | None, partition: int) -> None:
        since = None if topic_id is None else member.assignment_epoch(topic_id, partition)
        if since is None:
            raise _stale(member, f"Partition {topic}-{partition} is not assigned or pending revocation for member.")
        if member_epoch < since:
            raise _stale(
                member,
                f"Received {{}} {member_epoch} is older than assignment epoch {since} for partition "
                f"{topic}-{partition}.",
            )

    return check


def validate_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> None:
    """Check that the caller may fetch offsets. Raises KafkaError UNKNOWN_MEMBER_ID, or STALE_MEMBER_EPOCH (classic members:
    ILLEGAL_GENERATION).

    Source: ConsumerGroup.validateOffsetFetch.
    """
    if member_id is None and member_epoch < 0:
        return
    member = group.member(member_id or "")
    if member_epoch != member.member_epoch:
        raise _stale(
            member,
            f"The received {{}} {member_epoch} does not match the expected member epoch {member.member_epoch}.",
        )


def _stale(member: ConsumerGroupMember, message: str) -> KafkaError:
    if member.uses_classic_protocol:
        return KafkaError(ErrorCode.ILLEGAL_GENERATION, message.format("generation id"))
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, message.format("member epoch"))
